"""The commands that write files for the program, and need none running: init, import and schema."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from activator.command_line import Parser
from activator.runtime.errors import StartError, one_line
from activator.starters import FILE, MANIFEST, SITUATIONS, file_for, starter


def add_file_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands."""
    init = commands.add_parser(
        "init",
        help="write a commented example file",
        description="Write a commented example file for one of these situations:\n"
        + "\n".join(f"  {name:10}{description}" for name, description in SITUATIONS.items()),
        examples=("activator init program", "activator init models -o models.yaml", "activator init backends -o -"),
    )
    init.add_argument("situation", metavar="SITUATION", choices=tuple(SITUATIONS), help=", ".join(SITUATIONS))
    init.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"write to FILE (default: {FILE}, or {MANIFEST} for a cluster; `-` for standard output)",
    )
    init.add_argument("--force", action="store_true", help="replace FILE if it exists")
    init.set_defaults(handler=_init)
    imported = commands.add_parser(
        "import",
        help="convert the configuration file of another program: llama-swap",
        examples=("activator import llama-swap config.yaml > activator.yaml",),
    )
    imported.add_argument("program", metavar="PROGRAM", choices=("llama-swap",), help="llama-swap")
    imported.add_argument("file", metavar="FILE", help="the file of that program")
    imported.set_defaults(handler=_import)
    schema = commands.add_parser(
        "schema", help="print the JSON Schema of the file", examples=("activator schema > activator.schema.json",)
    )
    schema.set_defaults(handler=_schema)


def _init(options: argparse.Namespace, command: list[str] | None) -> int:
    if options.output == "-":
        print(starter(options.situation), end="")
        return 0
    path = Path(file_for(options.situation) if options.output is None else options.output)
    quoted_path = one_line(shlex.quote(str(path)))
    text = starter(options.situation, quoted_path)
    try:
        with path.open("w" if options.force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise StartError(f"{path}: the file exists; replace it with --force, or name another with -o") from None
    except OSError as error:
        raise StartError(f"{path}: cannot be written: {error.strerror}") from None
    next_command = "kubectl apply -f" if options.situation == "cluster" else "activator run -c"
    print(f"wrote {path}; edit it, then: activator check {quoted_path} && {next_command} {quoted_path}")
    return 0


def _import(options: argparse.Namespace, command: list[str] | None) -> int:
    from activator.config.file import read_text
    from activator.config.llama_swap import convert

    print(convert(read_text(options.file), options.file, os.environ), end="")
    return 0


def _schema(options: argparse.Namespace, command: list[str] | None) -> int:
    import json

    from activator.config.file import schema

    print(json.dumps(schema(), indent=2))
    return 0
