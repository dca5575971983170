"""The common parser of the commands: it suggests corrections, and shows examples."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

REFUSED: Final = 1  # exit code of an invalid configuration, a failed check or a refused command
USAGE: Final = 2  # exit code of wrong usage

_INVALID_CHOICE: Final = re.compile(
    r"argument (?P<of>[^:]+): invalid choice: '(?P<found>[^']*)'.* \(choose from (?P<all>.*)\)"
)
_UNKNOWN: Final = re.compile(r"unrecognized arguments: (?P<found>.*)")

# What to use instead of a command that others have.
_INSTEAD: Final = {
    "reload": "`kill -HUP PID` makes an activator read its file again, and so does `activator upgrade --or-reload`",
    "start": "`activator run` serves a file, `activator load NAME` starts the programs of a revision",
    "stop": "`activator drain` ends an activator, `activator unload NAME` stops the programs of a revision",
}


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake as one line with a correction. `examples`: command lines, shown by `--help`."""

    def __init__(self, *, examples: tuple[str, ...] = (), **settings: Any) -> None:
        if examples:
            settings["epilog"] = "examples:\n" + "\n".join(f"  {example}" for example in examples)
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        """Print the mistake and exit with USAGE."""
        self.exit(USAGE, f"{self.prog}: {self._mistake(message)}\n")

    def _mistake(self, message: str) -> str:
        """Return argparse's message with a correction, as one line."""
        choice = _INVALID_CHOICE.fullmatch(message)
        if choice is not None:
            word, known = choice["found"], re.findall(r"[\w-]+", choice["all"])
            argument = choice["of"].lower() if choice["of"].isupper() else choice["of"]
            if argument == "command" and word in _INSTEAD:
                return f'there is no command "{word}": {_INSTEAD[word]}'
            return f'there is no {argument} "{word}"{_meant(word, known)} ({", ".join(known)})'
        unknown = _UNKNOWN.fullmatch(message)
        if unknown is not None:
            first = unknown["found"].split()[0]
            known = [name for action in self._actions for name in action.option_strings]
            if not first.startswith("-"):
                hint = f": put the command to start after `--`, as in `{self.prog} -- {unknown['found']}`"
                return f'unexpected argument "{first}"{hint if self.prog.endswith(" run") else ""}'
            return f'unknown option "{first}"{_meant(first, known)}; see `{self.prog} --help`'
        return f"{message}; `{self.prog} --help` shows the usage"


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from actions_of(command)


def _meant(word: str, known: list[str]) -> str:
    """Return a question about the nearest known word; empty if none is near."""
    near = difflib.get_close_matches(word, known, n=1)
    return f': did you mean "{near[0]}"?' if near else ""
