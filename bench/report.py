"""`python -m bench report FILE…`: the contents of JSON files as one Markdown table, or as pictures (`--plots FOLDER`).

The table has one column per file, in the given order; with two or more files a last column compares the last file with
the first.
"""

from __future__ import annotations

import msgspec

from bench import header, plots, results
from bench.processes import UsageError
from bench.results import Document, Result


def run(paths: list[str], plots_folder: str | None, json_path: str | None) -> int:
    """Run `python -m bench report`. Raises UsageError."""
    documents = [_read(path) for path in paths]
    if plots_folder is not None:
        for picture in plots.draw([one for document in documents for one in document.results], plots_folder):
            print(picture)
        return 0
    for path, document in zip(paths, documents):
        print(f"- `{path}`: {_about(document)}")
    print("\n" + results.markdown(*rows(paths, documents)))
    if json_path is not None:
        head: dict[str, object] = {**header.collect([]), "files": dict(zip(paths, (one.header for one in documents)))}
        merged = [
            msgspec.structs.replace(one, params={**one.params, "file": path})
            for path, document in zip(paths, documents)
            for one in document.results
        ]
        results.write(json_path, Document(head, merged))
    return 0


def _read(path: str) -> Document:
    try:
        return results.read(path)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path}: {error}") from None


def _about(document: Document) -> str:
    try:
        return header.one_line(document.header)
    except (KeyError, AssertionError):
        return "written by another program"


def rows(paths: list[str], documents: list[Document]) -> tuple[list[str], list[list[str]]]:
    """Return the table with one line per name, in the order of first appearance."""
    by_name: dict[str, list[Result | None]] = {}
    for column, document in enumerate(documents):
        for one in document.results:
            by_name.setdefault(one.name, [None] * len(documents))[column] = one
    lines = []
    for name, found in by_name.items():
        unit = next(one.unit for one in found if one is not None)
        line = [f"{name} ({unit})", *(results.figure(one.value if one is not None else None) for one in found)]
        lines.append([*line, change(found[0], found[-1])] if len(paths) > 1 else line)
    title = ["figure", *paths]
    return ([*title, "last / first"] if len(paths) > 1 else title), lines


def change(first: Result | None, last: Result | None) -> str:
    """Return the ratio as `0.80 better`; a dash if either is missing or the first is zero."""
    if first is None or last is None or first.value == 0:
        return "-"
    ratio = last.value / first.value
    if f"{ratio:.2f}" == "1.00":
        return "1.00"
    return f"{ratio:.2f} {'better' if (ratio < 1) == first.lower_is_better else 'worse'}"
