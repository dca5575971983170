"""What a local program is started with: its directory, its variables, and whether there is such a program here.

Rules
  1. Everything is looked up when a process starts, and by `activator check`; a file is read for each start.
  2. A mistake is a `ConfigError` whose lines state what to do. Values of variables are secrets: no message shows one.
  3. `~`, `$VAR` and `${VAR}` are expanded in paths only; `$$` is a dollar sign. A command is a list, as exec takes it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from activator.config.model import Process
from activator.runtime.errors import ConfigError

ENV_FILE_BYTES_MAX: Final = 256 * 1024  # a program gets some MiB of variables and arguments at most

_VARIABLE: Final = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\})", re.ASCII)
_LINE: Final = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*(.*)", re.ASCII | re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "$": "$"}


def expand(text: str, environ: Mapping[str, str]) -> str:
    """A path as a shell would read it; raises ConfigError."""

    def value_of(match: re.Match[str]) -> str:
        name = match[2] or match[3]
        if match[1]:
            return "$"
        if name not in environ:
            raise ConfigError([f"{text}: the variable {name} is not set: set it, or write $$ for a dollar sign"])
        return environ[name]

    home = ""
    if text.startswith("~"):
        user, slash, rest = text.partition("/")
        home = (environ.get("HOME", "") if user == "~" else "") or os.path.expanduser(user)
        if home == user:
            raise ConfigError([f"{text}: there is no such user: correct the name behind ~"])
        text = slash + rest
    return home + _VARIABLE.sub(value_of, text)


def directory_of(process: Process, environ: Mapping[str, str]) -> str:
    """The working directory; empty: that of the activator. Raises ConfigError."""
    directory = expand(process.directory, environ)
    if directory and not os.path.isdir(directory):
        reason = "it is not a directory" if os.path.exists(directory) else "no such directory"
        raise ConfigError([f"cannot start in {directory}: {reason}; create it, or correct `directory`"])
    return directory


def variables_of(process: Process, directory: str, environ: Mapping[str, str]) -> dict[str, str]:
    """All environment variables; raises ConfigError."""
    found = dict(environ)
    if process.env_file:
        found |= read_env_file(os.path.join(directory, expand(process.env_file, environ)))
    return found | process.environment


def log_file_of(process: Process, environ: Mapping[str, str]) -> str:
    """The file that the output is written to. Raises ConfigError."""
    path = os.path.abspath(os.path.join(expand(process.directory, environ), expand(process.logs.file, environ)))
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise ConfigError([f"{path}: there is no directory {folder}; create it, or correct `file`"])
    if os.path.isdir(path):
        raise ConfigError([f"{path}: is a directory; give a file"])
    return path


def check_program(command: list[str], directory: str, variables: Mapping[str, str]) -> None:
    """Raises ConfigError if the first word of a command is no program that can be run."""
    word = command[0]
    if "/" not in word:
        if shutil.which(word, path=variables.get("PATH", os.defpath)) is None:
            here = os.access(os.path.join(directory, word), os.X_OK)
            advice = f"write ./{word}" if here else "check its spelling, or give its whole path"
            raise ConfigError([f"cannot start {word}: there is no such program in the PATH; {advice}"])
        return
    path = os.path.join(directory, word)
    if not os.path.exists(path):
        raise ConfigError([f"cannot start {word}: no such file; check its spelling (~ and $VAR are not expanded here)"])
    if os.path.isdir(path):
        raise ConfigError([f"cannot start {word}: it is a directory; give a program"])
    if not os.access(path, os.X_OK):
        advice = "make it so (chmod +x), or put its interpreter before it"
        raise ConfigError([f"cannot start {word}: it is not executable; {advice}"])


def read_env_file(path: str) -> dict[str, str]:
    """The variables of a file; raises ConfigError with the line of each mistake."""
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would hold us up
        raise ConfigError([f"{path}: is no file; correct `env_file`"])
    try:
        with Path(path).open("rb") as file:
            data = file.read(ENV_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}; correct `env_file`"]) from None
    if len(data) > ENV_FILE_BYTES_MAX:
        raise ConfigError([f"{path}: has more than {ENV_FILE_BYTES_MAX} bytes; variables are meant to be short"])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError([f"{path}:{line}: found bytes that are not UTF-8, expected text"]) from None
    return parse_env(text, path)


def parse_env(text: str, name: str) -> dict[str, str]:
    """`KEY=VALUE` lines: comments, `export`, values in single quotes (as they are) or double ones (with escapes)."""
    found: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            problems.append(f"{name}:{number}: expected KEY=VALUE")
            continue
        value = _value_of(match[2])
        if value is None:
            problem = "the quotes do not fit: close them on the line, and put nothing but a comment behind them"
            problems.append(f"{name}:{number}: {match[1]}: {problem}")
        elif "\0" in value:
            problems.append(f"{name}:{number}: {match[1]}: a value cannot have a null byte: take it out")
        else:
            found[match[1]] = value
    if problems:
        raise ConfigError(problems)
    return found


def _value_of(text: str) -> str | None:
    """None: its quotes do not fit."""
    if text[:1] not in ("'", '"'):
        if text.startswith("#"):
            return ""
        return re.split(r"\s#", text, maxsplit=1)[0].rstrip()
    quote, value, place = text[0], [], 1
    while place < len(text) and text[place] != quote:
        letter = text[place]
        if quote == '"' and letter == "\\" and text[place + 1 : place + 2] in _ESCAPES:
            place += 1
            letter = _ESCAPES[text[place]]
        value.append(letter)
        place += 1
    rest = text[place + 1 :].lstrip()
    if place >= len(text) or (rest and not rest.startswith("#")):
        return None
    return "".join(value)
