"""The output of a run: the JSON file of `--json`, and the tables on the terminal.

The file is `{"header": {...}, "results": [{"name", "value", "unit", "lower_is_better", "params"}]}`. Scripts depend on
it: a published name keeps its meaning.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

Value = str | int | float | bool | None


class Result(msgspec.Struct, frozen=True):
    """A figure; `name` identifies the measurement and the program, `params` the circumstances."""

    name: str
    value: float
    unit: str
    lower_is_better: bool
    params: dict[str, Value]


class Document(msgspec.Struct, frozen=True):
    """The file of one run."""

    header: dict[str, object]
    results: list[Result]


def write(path: str, document: Document) -> None:
    """Write the file of `--json`."""
    Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def read(path: str) -> Document:
    """Read what `write` wrote. Raises OSError or msgspec.ValidationError."""
    return msgspec.json.decode(Path(path).read_bytes(), type=Document)


def figure(value: float | None, digits: int = 2) -> str:
    """Format a value for a cell of a table; None becomes a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return an aligned table: the first column to the left, the figures to the right."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(row: list[str]) -> str:
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        return "  ".join([row[0].ljust(widths[0]), *rest]).rstrip()

    return "\n".join([line(head), "  ".join("-" * width for width in widths), *map(line, rows)])


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """Return the table in Markdown."""

    def line(row: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"

    rule = "|---" + "|---:" * (len(head) - 1) + "|"
    return "\n".join([line(head), rule, *map(line, rows)])
