"""The path and the line of each key of a file, for the messages about it.

Rules
1. A mistake is one line: where it is, the key's path, the found and the expected value, or the correction.
  2. A value that could not be read has been reported by the reader, and the struct has a default in its place. A second
     message would mislead: `KeyPath` omits messages about such a value, and those that depend on it (`beside`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Final, TypeVar

from activator.config.tree import Item

T = TypeVar("T")
_NOTHING: Final = Item("")
Path = tuple[str | int, ...]  # ("revisions", 3, "pods", 0)


def _below(item: Item, step: str | int) -> Item | None:
    if isinstance(step, int):
        return item.elements[step] if item.elements and step < len(item.elements) else None
    return item.entries.get(step) if item.entries else None


class Findings:
    """The errors found in one configuration tree, and the values that could not be read."""

    def __init__(self, root: Item, problems: list[str]) -> None:
        self.root = root
        self.problems = problems
        self.unread: set[Path] = set()
        self.partial: set[Path] = set()  # lists, and mappings with free names, without some of their values
        self.broken: set[Path] = set()  # what directly contains an unread value

    def skip(self, path: Path, is_part: bool) -> None:
        """Note a value that could not be read. `is_part`: it is left out of a list or a mapping with free names."""
        self.unread.add(path)
        self.broken.add(path[:-1])
        if is_part:
            self.partial.add(path[:-1])

    def item_at(self, path: Path) -> Item:
        """Return the item at a path, or the nearest one around it."""
        item = self.root
        for step in path:
            child = _below(item, step)
            if child is None:
                return item
            item = child
        return item

    def name_of(self, path: Path) -> str:
        """Return a path as messages show it: `revisions[3].pods[0]`. A moved value has its path in the file."""
        text, item = "", self.root
        for step in path:
            text += f"[{step}]" if isinstance(step, int) else f".{step}"
            item = _below(item, step) or _NOTHING
            text = item.moved_from or text
        return text.removeprefix(".")


class KeyPath:
    """A key, by its path. `at["queue"]` is a key below it, `at[0]` an element."""

    __slots__ = ("_findings", "path")

    def __init__(self, findings: Findings, path: Path = ()) -> None:
        self._findings = findings
        self.path = path

    def __getitem__(self, step: str | int) -> KeyPath:
        return KeyPath(self._findings, (*self.path, step))

    def __contains__(self, key: str) -> bool:
        """Return True if the file has this key, whether or not its value could be read."""
        return self[key].item is not self.item

    def each(self, values: Iterable[T]) -> Iterator[tuple[KeyPath, T]]:
        """Yield the elements of a list with their paths."""
        unread, path = self._findings.unread, self.path
        indexes = (index for index in count() if (*path, index) not in unread)
        for value, index in zip(values, indexes):
            yield self[index], value

    @property
    def problem_count(self) -> int:
        """The number of mistakes that have been reported so far, of any key."""
        return len(self._findings.problems)

    @property
    def item(self) -> Item:
        return self._findings.item_at(self.path)

    @property
    def where(self) -> str:
        """The file and the line of the key, or of the nearest one around it."""
        return self.item.where

    @property
    def is_unread(self) -> bool:
        """True if the value, a part of it, or what contains it could not be read."""
        unread, path = self._findings.unread, self.path
        if not unread:
            return False
        return path in self._findings.partial or any(path[:end] in unread for end in range(1, len(path) + 1))

    @property
    def is_whole(self) -> bool:
        """True if every key of this mapping is known and could be read."""
        return self.path not in self._findings.broken

    def sets(self, key: str) -> bool:
        """Return True if the file has this key and its value could be read."""
        return key in self and not self[key].is_unread

    def found(self, expected: str, found: str = "", where: str = "", beside: tuple[KeyPath, ...] = ()) -> None:
        """Report a mistake: `found` (by default the value) instead of `expected`.

        `where`: its line, by default that of the key. `beside`: other keys that the message depends on.
        """
        self.advise(f"found {found or self.item.describe()}, expected {expected}", where, beside)

    def advise(self, advice: str, where: str = "", beside: tuple[KeyPath, ...] = ()) -> None:
        """Report a mistake that is best described by what to change."""
        if not any(key.is_unread for key in (self, *beside)):
            self._findings.problems.append(f"{where or self.where}: {f'{self}: ' if self.path else ''}{advice}")

    def __str__(self) -> str:
        return self._findings.name_of(self.path)
