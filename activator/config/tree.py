"""The configuration as it was written: a tree of items with their lines.

Rules
  1. Nothing is interpreted here. A scalar is its text as written, so `name: no` is the word "no" and not false.
  2. The environment overrides the file: `ACTIVATOR_LIMITS__HEADER_BYTES` is the key header_bytes in limits, a number is
     an index of a list (`ACTIVATOR_REVISIONS__0__POLICY`), and a value in brackets or braces is YAML.
  3. For any text the result is a tree or problems; aliases cannot make a tree larger than ITEMS_MAX.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from activator.config.yaml_hints import yaml_hint

PREFIX: Final = "ACTIVATOR_"
HANDOVER: Final = "ACTIVATOR_HANDOVER"  # set in the new process of an upgrade (app/handover/taking.py)
# Read elsewhere: by `lb.world`, the command line and the tests.
RESERVED: Final = frozenset(
    {
        "ACTIVATOR_BIND_HOST",
        "ACTIVATOR_COMPILE",
        "ACTIVATOR_EXPECT_COMPILED",
        "ACTIVATOR_CI",
        "ACTIVATOR_DEEP",
        HANDOVER,
        # Knative's own, for its TLS listener.
        "ACTIVATOR_TLS_MIN_VERSION",
        "ACTIVATOR_TLS_MAX_VERSION",
        "ACTIVATOR_TLS_CIPHER_SUITES",
        "ACTIVATOR_TLS_CURVE_PREFERENCES",
        "ACTIVATOR_TEST_KUBECONFIG",
    }
)
# Kubernetes sets these in every container for a Service whose name begins with "activator". No such name ends with a
# hyphen, so `…__PORT` is a configuration key.
_SERVICE_LINK: Final = re.compile(
    r"ACTIVATOR_(\w*[^\W_]_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
CASE_KEPT_BELOW: Final = "environment"  # names of a process's variables; all other keys are lower case
ITEMS_MAX: Final = 500_000  # 10,000 revisions need a third of this
DEPTH_MAX: Final = 50
NULLS: Final = ("", "~", "null", "Null", "NULL")
_TEXT_TAG: Final = "tag:yaml.org,2002:str"
LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster with libyaml


class Item:
    """A value and its origin. At most one of `text`, `entries` and `elements` is not None; none of them: a null."""

    def __init__(
        self,
        where: str,
        text: str | None = None,
        entries: dict[str, Item] | None = None,
        elements: list[Item] | None = None,
    ) -> None:
        self.where = where  # the file and the line, or the variable
        self.text = text
        self.entries = entries
        self.elements = elements
        self.key_where = where  # the same for its key
        self.is_quoted = False  # `text` was in quotes, or a block
        self.moved_from: str = ""  # the path in the file, if that is another one than in the tree

    def describe(self) -> str:
        """Return a description for users."""
        if self.text is not None:
            return f'"{_shortened(self.text)}"'
        if self.entries is not None:
            return "a mapping"
        return "nothing" if self.elements is None else "a list"


def read_tree(
    text: str,
    name: str,
    environ: Mapping[str, str],
    problems: list[str],
    items_max: int = ITEMS_MAX,
    loader: Any = LOADER,
) -> Item | None:
    """Parse the file's text and apply the environment; add mistakes to `problems`. None if it is not a tree."""
    root = _parse_yaml(text, name, problems, items_max, loader)
    if root is None:
        return None
    if root.text is None and root.entries is None and root.elements is None:
        root.entries = {}
    lay_environment_over(root, environ, problems)
    return root


def read_documents(text: str, name: str, problems: list[str]) -> list[Item]:
    """Parse every document of a file; add mistakes to `problems`, in which case there may be none."""
    maker = _parsed(text, name, problems, ITEMS_MAX, LOADER, is_stream=True)
    return [] if maker is None else maker.roots


def is_setting(variable: str) -> bool:
    """Return True if the environment variable of this name replaces a key of the configuration file."""
    return variable.startswith(PREFIX) and variable not in RESERVED and not _SERVICE_LINK.fullmatch(variable)


def lay_environment_over(root: Item, environ: Mapping[str, str], problems: list[str]) -> None:
    """Put the value of every `ACTIVATOR_…` variable at its place in the tree."""
    for variable in sorted(environ):
        if is_setting(variable):
            _lay_over(root, variable, environ[variable], problems)


def _parse_yaml(
    text: str, name: str, problems: list[str], items_max: int = ITEMS_MAX, loader: Any = LOADER
) -> Item | None:
    maker = _parsed(text, name, problems, items_max, loader)
    return None if maker is None else maker.root or Item(f"{name}:1")


def _parsed(
    text: str, name: str, problems: list[str], items_max: int, loader: Any, is_stream: bool = False
) -> _TreeMaker | None:
    """Return the maker that holds the parsed trees; None, and a problem, if the text is not YAML."""
    maker = _TreeMaker(name, problems, items_max, is_stream)
    try:
        # Events instead of `yaml.compose`, which recurses for every bracket; with libyaml that crashes the process.
        for event in yaml.parse(text, Loader=loader):
            maker.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        problems.append(_no_yaml(f"{name}:{line}", f"{error.problem or error.context}{yaml_hint(text, line, error)}"))
        return None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: text that cannot be decoded, such as a lone surrogate
        problems.append(_no_yaml(f"{name}:1", " ".join(str(error).split())))
        return None
    except _NoTreeError as error:
        problems.append(str(error))
        return None
    return maker


def _no_yaml(where: str, detail: str) -> str:
    return f"{where}: found text that is not YAML ({detail}), expected YAML"


class _NoTreeError(Exception):
    """The text is YAML but not a tree; the message is the problem."""


class _Open:
    """A list or mapping that has not ended."""

    def __init__(self, item: Item, anchor: str | None) -> None:
        self.item = item
        self.anchor = anchor
        self.key: str | None = None  # in a mapping: the key of the next value
        self.key_where = ""
        self.is_at_value = False


class _TreeMaker:
    """Converts PyYAML's events into items. `is_stream`: there may be several documents."""

    def __init__(self, name: str, problems: list[str], items_max: int, is_stream: bool) -> None:
        self._items_max = items_max
        self._is_stream = is_stream
        self.root: Item | None = None
        self.roots: list[Item] = []  # one per document that is not empty
        self._name = name
        self._problems = problems
        self._open: list[_Open] = []
        self._anchors: dict[str, Item] = {}
        self._items = 0

    def take(self, event: yaml.Event) -> None:
        """Process one event of PyYAML. Raises _NoTreeError."""
        where = f"{self._name}:{1 if event.start_mark is None else event.start_mark.line + 1}"
        match event:
            case yaml.ScalarEvent():
                is_null = not event.style and event.implicit[0] and event.value in NULLS
                item = Item(where, text=None if is_null else event.value)
                item.is_quoted = bool(event.style) or event.tag == _TEXT_TAG
                self._add(item, event.anchor)
            case yaml.SequenceStartEvent():
                self._begin(Item(where, elements=[]), event.anchor)
            case yaml.MappingStartEvent():
                self._begin(Item(where, entries={}), event.anchor)
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                closed = self._open.pop()
                self._add(closed.item, closed.anchor)
            case yaml.AliasEvent():
                if event.anchor not in self._anchors:
                    raise _NoTreeError(_no_yaml(where, f"the alias *{event.anchor} has no anchor before it"))
                self._add(self._copy(self._anchors[event.anchor], where, len(self._open)), None)
            case yaml.DocumentEndEvent() if self._is_stream:
                if self.root is not None and self.root.entries is not None:
                    self.roots.append(self.root)
                self.root = None
                self._anchors.clear()
            case yaml.DocumentStartEvent() if self.root is not None:
                raise _NoTreeError(f"{where}: found a second document, expected one")

    def _begin(self, item: Item, anchor: str | None) -> None:
        self._open.append(_Open(item, anchor))
        self._count(item.where, len(self._open))

    def _add(self, item: Item, anchor: str | None) -> None:
        """Put a complete item into the innermost open list or mapping: as an element, a key or a value."""
        self._count(item.where, len(self._open))
        if anchor is not None:
            self._anchors[anchor] = item
        if not self._open:
            self.root = item
            return
        parent = self._open[-1]
        if parent.item.elements is not None:
            parent.item.elements.append(item)
        elif parent.is_at_value:
            parent.is_at_value = False
            if parent.key is not None and parent.item.entries is not None:
                item.key_where = parent.key_where
                parent.item.entries[parent.key] = item
        else:
            parent.is_at_value = True
            parent.key = self._key(item, parent.item)
            parent.key_where = item.where

    def _key(self, item: Item, mapping: Item) -> str | None:
        """Return the key of an item; None if its value is to be skipped."""
        if item.elements is not None or (item.entries is not None):
            self._problems.append(f"{item.where}: found {item.describe()} as a key, expected a word")
            return None
        key = item.text or ""
        first = (mapping.entries or {}).get(key)
        if first is None:
            return key
        line = first.key_where.rpartition(":")[2]
        self._problems.append(f'{item.where}: found the key "{key}" again, expected only the one in line {line}')
        return None

    def _copy(self, item: Item, where: str, depth: int) -> Item:
        # A copy, because the environment may override one occurrence and not the other.
        self._count(where, depth)
        copy = Item(where, text=item.text)
        copy.is_quoted = item.is_quoted
        if item.elements is not None:
            copy.elements = [self._copy(child, where, depth + 1) for child in item.elements]
        if item.entries is not None:
            copy.entries = {key: self._copy(child, where, depth + 1) for key, child in item.entries.items()}
        return copy

    def _count(self, where: str, depth: int) -> None:
        self._items += 1
        if depth > DEPTH_MAX or self._items > self._items_max:
            limits = f"at most {DEPTH_MAX} levels and {self._items_max} values"
            raise _NoTreeError(f"{where}: found too many values in values, expected {limits}")


def _lay_over(root: Item, variable: str, value: str, problems: list[str]) -> None:
    """Put the value of one variable into the tree."""
    path = _path_of(variable)
    parent = root
    if path[0] == "models" and len(path) > 2:  # a text is the short form of a mapping with `command`
        model = ((root.entries or {}).get("models") or root).entries or {}
        entry = model.get(path[1])
        if entry is not None and entry.text is not None:
            entry.entries, entry.text = {"command": Item(entry.where, entry.text)}, None
    for component in path[:-1]:
        child = _child(parent, component, variable, problems)
        if child is None:
            return
        parent = child
    _put(parent, path[-1], value_item(variable, value), problems)


def _path_of(variable: str) -> list[str]:
    path: list[str] = []
    for component in variable.removeprefix(PREFIX).split("__"):
        path.append(component if path and path[-1] == CASE_KEPT_BELOW else component.lower())
    return path


def _child(parent: Item, component: str, variable: str, problems: list[str]) -> Item | None:
    """Return the item called `component`, created if missing; None, and a problem, if it cannot exist."""
    if parent.elements is not None or (component.isdecimal() and not parent.entries):
        index = _index_in(parent, component, variable, problems)
        if index is None or parent.elements is None:
            return None
        if index == len(parent.elements):
            parent.elements.append(Item(variable, entries={}))
        return parent.elements[index]
    if parent.entries is None:
        parent.text = None
        parent.entries = {}
    if component not in parent.entries:
        parent.entries[component] = Item(variable, entries={})
    return parent.entries[component]


def _put(parent: Item, component: str, item: Item, problems: list[str]) -> None:
    """Set the entry or the element called `component`."""
    if parent.elements is not None or (component.isdecimal() and not parent.entries):
        index = _index_in(parent, component, item.where, problems)
        if index is not None and parent.elements is not None:
            parent.elements[index : index + 1] = [item]
        return
    if parent.entries is None:
        parent.text = None
        parent.entries = {}
    parent.entries[component] = item


def _index_in(parent: Item, component: str, variable: str, problems: list[str]) -> int | None:
    """Return the index, up to the list's length, that `component` names; None, and a problem, if it is none."""
    if parent.elements is None:
        parent.text = None
        parent.entries = None
        parent.elements = []
    count = len(parent.elements)
    if component.isascii() and component.isdecimal() and len(component) < 8 and int(component) <= count:
        return int(component)
    problems.append(f'{variable}: found "{component}", expected a place in the list, from 0 to {count}')
    return None


def value_item(variable: str, value: str) -> Item:
    """Return the item of a value from `variable`: YAML if it is in brackets or braces, else a text."""
    if value.lstrip()[:1] in ("[", "{"):
        unread: list[str] = []
        item = _parse_yaml(value, variable, unread)
        if item is not None and not unread:
            _move(item, variable)
            return item
        # `[::1]:8080` is not YAML and needs no quotes here; the reader of the text reports other malformed values.
    return Item(variable, text=value)


def _move(item: Item, where: str) -> None:
    item.where = item.key_where = where
    for child in [*(item.entries or {}).values(), *(item.elements or [])]:
        _move(child, where)


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
