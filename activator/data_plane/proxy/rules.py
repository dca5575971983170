"""Which revision of a host takes a request, where more than the host decides: the rules of one host, as an index.

    path prefix ──► header = value ──► … ──► model ──► method ──► the place of a rule

Rules
  1. The first rule in the order of the file is taken, however it is found: a search looks at all conditions that the
     request meets, not at all rules, and keeps the lowest place.
  2. A host asks its own rules, then those of `*.suffix`es from the longest on, then those of `*`; then in the same
     order for a default.
  3. Whether a body has to be read is known without it: a rule that is met but for the model comes before every other
     that is met.
  4. Nothing changes here: rules that change are made anew (routing.py).
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.codec.message import Fields, RequestHead
from activator.data_plane.exchange import ClientStream
from activator.data_plane.proxy.model_lists import lists_of
from activator.data_plane.proxy.split import Split
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.url_path import for_comparison, is_plain, other_reading, to_send

_NONE: Final = 1 << 60  # no rule

# What a search comes to.
MATCHED: Final = 0
NEEDS_MODEL: Final = 1  # it depends on the body
UNMATCHED: Final = 2

_UNDECIDED: Final = "the path could be read in two ways (an encoded slash, a backslash, a semicolon or a null byte)"


@final
class Question:
    """One request that looks for its revision."""

    def __init__(self, head: RequestHead) -> None:
        self.head = head
        self.method = head.method
        self.path: bytes = b""  # as rules are compared with it
        self.sent: bytes = b""  # as pods are sent it; empty: as it came
        self.refusal: str = ""  # why it cannot be compared
        self.model: str = ""
        self.has_model: bool = False
        self.model_known: bool = False  # or it is known that there is none
        self.lacks_model: bool = False  # a rule would be met if there were one
        self.target: Rule | None = None
        self.best: i64 = _NONE  # the lowest place of a rule that is met …
        self.open: i64 = _NONE  # … and of one that is met but for the model
        self.level: HostRules | None = None  # that was asked last …
        self.nodes: list[_Node] = []  # … and what it has for this path
        self._lowered: bytes = b""
        self._named: Fields | None = None

    def read_path(self, rules: HostRules) -> None:
        """Make the path comparable, where a rule looks at it."""
        target = self.head.target
        mark = target.find(b"?")
        path = target if mark < 0 else target[:mark]
        self.path = path
        self.level = None
        if not rules.has_paths or is_plain(path) or not path.startswith(b"/"):
            return
        self.path = for_comparison(path)
        sent = to_send(path)
        if sent != path:
            self.sent = sent
        if (b"%" in path or b";" in path) and (
            b"%00" in path or not rules.same_prefixes(self.path, other_reading(path))
        ):
            self.refusal = _UNDECIDED

    def field(self, name: bytes) -> bytes | None:
        """The first field of this name. The block is lowered once for all rules."""
        if not self._lowered:
            head = self.head
            self._lowered = head.headers.block.lower()
            if head.named:
                self._named = Fields(head.named)
        block = self.head.headers.block
        start = self._lowered.find(b"\r\n%b:" % name)
        if start < 0:
            return None if self._named is None else self._named.get(name)
        start += len(name) + 3
        end = block.find(b"\r\n", start)
        return block[start : end if end >= 0 else len(block)].strip(b" \t")


@final
class Rule:
    """What one `match` leads to: a revision, or several by weight."""

    def __init__(self, members: list[RevisionThrottler]) -> None:
        spec = members[0].spec
        self.match = spec.match
        self.names = (*spec.match.models, *spec.aliases)
        self.split = Split(members)

    def pick(self, head: RequestHead, client: ClientStream) -> RevisionThrottler:
        """The revision for this request."""
        return self.split.pick(head, client)


@final
class _Methods:
    """The lowest place of a rule by method."""

    def __init__(self) -> None:
        self.every: i64 = _NONE
        self.only: dict[bytes, int] = {}

    def add(self, methods: tuple[str, ...], place: int) -> None:
        for method in methods:
            name = method.encode("latin-1")
            self.only[name] = min(self.only.get(name, place), place)
        if not methods and place < self.every:
            self.every = place

    def find(self, method: bytes) -> i64:
        place = self.every
        if self.only:
            found = self.only.get(method)
            if found is not None and found < place:
                place = found
        return place


@final
class _Models:
    """The same by the model of a request."""

    def __init__(self) -> None:
        self.any_of_them = _Methods()
        self._exact: dict[str, _Methods] = {}
        self._beginnings: dict[str, _Methods] = {}
        self._lengths: list[int] = []  # of the beginnings

    def add(self, names: tuple[str, ...], methods: tuple[str, ...], place: int) -> None:
        self.any_of_them.add(methods, place)
        for name in names:
            if name.endswith("*"):
                self._beginnings.setdefault(name[:-1], _Methods()).add(methods, place)
                if len(name) - 1 not in self._lengths:
                    self._lengths = sorted([*self._lengths, len(name) - 1])
            else:
                self._exact.setdefault(name, _Methods()).add(methods, place)

    def find(self, model: str, method: bytes) -> i64:
        exact = self._exact.get(model)
        place: i64 = _NONE if exact is None else exact.find(method)
        for length in self._lengths:
            if length > len(model):
                break
            beginning = self._beginnings.get(model[:length])
            if beginning is not None:
                found = beginning.find(method)
                if found < place:
                    place = found
        return place


@final
class _Node:
    """The rules that are left when some conditions are met."""

    def __init__(self) -> None:
        self.least: i64 = _NONE  # the lowest place of all that are here
        self._methods = _Methods()
        self._models: _Models | None = None
        self._headers: dict[bytes, dict[bytes, _Node]] = {}

    def add(self, rule: Rule, place: int, headers_met: int) -> None:
        if place < self.least:
            self.least = place
        match = rule.match
        if headers_met < len(match.headers):
            name, value = match.headers[headers_met]
            values = self._headers.setdefault(name.encode("latin-1"), {})
            values.setdefault(value.encode(), _Node()).add(rule, place, headers_met + 1)
        elif rule.names:
            if self._models is None:
                self._models = _Models()
            self._models.add(rule.names, match.methods, place)
        else:
            self._methods.add(match.methods, place)

    def search(self, question: Question) -> None:
        """Lower `best` and `open` of the question."""
        if self.least >= question.best:
            return
        place = self._methods.find(question.method)
        if place < question.best:
            question.best = place
        models = self._models
        if models is not None:
            if not question.model_known:
                place = models.any_of_them.find(question.method)
                if place < question.open:
                    question.open = place
            elif question.has_model:
                place = models.find(question.model, question.method)
                if place < question.best:
                    question.best = place
            elif models.any_of_them.find(question.method) != _NONE:
                question.lacks_model = True
        for name, values in self._headers.items():
            value = question.field(name)
            if value is not None:
                node = values.get(value)
                if node is not None:
                    node.search(question)


@final
class HostRules:
    """Of one host: `throttlers` in the order of the file; `parent`: of the next less specific host."""

    def __init__(self, throttlers: list[RevisionThrottler], parent: HostRules | None) -> None:
        self._parent = parent
        self._rules: list[Rule] = []
        self._nodes: dict[bytes, _Node] = {}  # by path prefix
        self._longest: i64 = 0  # of these prefixes
        self._default: Rule | None = None
        for members in _grouped(throttlers):
            spec = members[0].spec
            rule = Rule(members)
            is_default = any(member.spec.default for member in members)
            if is_default and self._default is None:
                self._default = rule
            if is_default and spec.match.is_every() and not rule.names:
                continue
            path = spec.match.path.encode("latin-1")
            self._nodes.setdefault(path, _Node()).add(rule, len(self._rules), 0)
            self._longest = max(self._longest, len(path))
            self._rules.append(rule)
        self.has_paths: bool = self._longest > 0 or (parent is not None and parent.has_paths)
        self.throttlers: list[RevisionThrottler] = [*throttlers, *(parent.throttlers if parent is not None else [])]
        self._lists: dict[bytes, bytes] | None = None

    def decide(self, question: Question) -> i64:
        """MATCHED, and the question has its target; or what is missing."""
        level: HostRules | None = self
        while level is not None:
            question.best = question.open = _NONE
            level._search(question)
            if question.open < question.best:
                return NEEDS_MODEL
            if question.best != _NONE:
                question.target = level._rules[question.best]
                return MATCHED
            level = level._parent
        level = self
        while level is not None:
            if level._default is not None:
                question.target = level._default
                return MATCHED
            level = level._parent
        return UNMATCHED

    def same_prefixes(self, path: bytes, other: bytes) -> bool:
        """Whether the two begin with the same prefixes of rules, of all levels."""
        if self._nodes_of(path) != self._nodes_of(other):
            return False
        return self._parent is None or self._parent.same_prefixes(path, other)

    def lists(self) -> dict[bytes, bytes]:
        """The answers that list models, by path; made when they are first asked for."""
        if self._lists is None:
            self._lists = lists_of([throttler.spec for throttler in self.throttlers])
        return self._lists

    # --- within ---

    def _search(self, question: Question) -> None:
        if question.level is not self:
            question.level = self
            question.nodes = self._nodes_of(question.path)
        for node in question.nodes:
            node.search(question)

    def _nodes_of(self, path: bytes) -> list[_Node]:
        """Of the prefixes that end in this path: at a slash, or at its end."""
        found: list[_Node] = []
        node = self._nodes.get(b"")
        if node is not None:
            found.append(node)
        longest = self._longest
        size: i64 = len(path)
        end: i64 = 0
        while end < size and end < longest:
            slash: i64 = path.find(b"/", end + 1)
            end = size if slash < 0 else slash
            if end <= longest:
                node = self._nodes.get(path[:end])
                if node is not None:
                    found.append(node)
        return found


def _grouped(throttlers: list[RevisionThrottler]) -> list[list[RevisionThrottler]]:
    """Those that share their requests by weight together, at the place of the first of them."""
    groups: dict[object, list[RevisionThrottler]] = {}
    for throttler in throttlers:
        spec = throttler.spec
        match = spec.match
        alone: object = throttler.key if spec.weight < 0 else ""
        names = (tuple(sorted(match.models)), tuple(sorted(spec.aliases)))
        same = (match.path, match.methods, match.headers, names, alone)
        groups.setdefault(same, []).append(throttler)
    return list(groups.values())
