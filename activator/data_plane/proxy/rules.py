"""The rules of one host that select a revision by more than the host, as a search index.

    path prefix ──► header = value ──► … ──► model ──► method ──► the position of a rule

Rules
  1. The first matching rule in the order of the file wins. A search visits the conditions that the request meets, not
     all rules, and keeps the lowest position.
  2. The rules of a host come first, then those of `*.suffix`es from the longest on, then those of `*`; then defaults
     in the same order.
  3. The search determines whether the body must be read: it must if a rule that lacks only the model precedes all rules
     that match.
  4. An index is immutable; the router builds a new one after a change (routing.py).
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.codec.message import Fields, RequestHead
from activator.data_plane.proxy.model_lists import ModelList, lists_of
from activator.data_plane.proxy.split import Split
from activator.data_plane.streams import ClientStream
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.users import Access, User
from activator.runtime.url_path import for_comparison, is_plain, other_reading, to_send

_NONE: Final = 1 << 60  # no rule
LISTS_MAX: Final = 64  # users whose lists are kept, for each host

# results of a search
MATCHED: Final = 0
NEEDS_MODEL: Final = 1  # depends on the body
UNMATCHED: Final = 2

_UNDECIDED: Final = "the path could be read in two ways (an encoded slash, a backslash, a semicolon or a null byte)"


@final
class RouteQuery:
    """The inputs and the state of the rule search of one request."""

    def __init__(self, head: RequestHead) -> None:
        self.head = head
        self.method = head.method
        self.path: bytes = b""  # normalized for comparison
        self.sent: bytes = b""  # the path for the pod; empty if it is unchanged
        self.refusal: str = ""  # why the path cannot be compared
        self.model: str = ""
        self.has_model: bool = False
        self.model_known: bool = False  # the model, or its absence, is known
        self.lacks_model: bool = False  # a rule would match if the request had a model
        self.target: Rule | None = None  # the rule that has matched
        self.best: i64 = _NONE  # the lowest position of a rule that matches
        self.best_undecided: i64 = _NONE  # the lowest position of a rule that matches except for the model
        self.level: HostRules | None = None  # the host rules that `nodes` belong to
        self.nodes: list[_Node] = []  # the nodes of `level` for this path
        self._lowered: bytes = b""  # the header block in lower case; empty: not needed yet
        self._named: Fields | None = None  # the fields that `Connection` names

    def read_path(self, rules: HostRules) -> None:
        """Normalize the path if any rule has a path prefix."""
        target = self.head.target
        mark = target.find(b"?")
        path = target if mark < 0 else target[:mark]
        self.path = path
        self.level = None
        if not rules.has_paths or is_plain(path) or not path.startswith(b"/"):
            return
        sent = to_send(path)
        if sent != path:
            self.sent = sent
        self.path = for_comparison(sent)  # the form that the pod receives
        if (b"%" in sent or b";" in sent) and (
            b"%00" in sent or not rules.same_prefixes(self.path, other_reading(sent))
        ):
            self.refusal = _UNDECIDED

    def field(self, name: bytes) -> bytes | None:
        """Return the first field with this name. The block is lowercased once for all rules."""
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
    """The revision that one `match` selects, or several revisions by weight."""

    def __init__(self, members: list[RevisionThrottler]) -> None:
        routing = members[0].routing
        self.match = routing.match
        self.names = (*routing.match.models, *routing.aliases)
        self.split = Split(members)

    def pick(self, head: RequestHead, client: ClientStream) -> RevisionThrottler:
        """Return the revision for this request."""
        return self.split.pick(head, client)


@final
class _Methods:
    """The lowest positions of rules by method."""

    def __init__(self) -> None:
        self.any_method: i64 = _NONE
        self.by_method: dict[bytes, int] = {}

    def add(self, methods: tuple[str, ...], position: int) -> None:
        for method in methods:
            name = method.encode("latin-1")
            self.by_method[name] = min(self.by_method.get(name, position), position)
        if not methods and position < self.any_method:
            self.any_method = position

    def find(self, method: bytes) -> i64:
        position = self.any_method
        if self.by_method:
            own = self.by_method.get(method)
            if own is not None and own < position:
                position = own
        return position


@final
class _Models:
    """The lowest positions of rules by model and method."""

    def __init__(self) -> None:
        self.any_model = _Methods()
        self._exact: dict[str, _Methods] = {}
        self._prefixes: dict[str, _Methods] = {}
        self._lengths: list[int] = []  # lengths of the prefixes, ascending

    def add(self, names: tuple[str, ...], methods: tuple[str, ...], position: int) -> None:
        self.any_model.add(methods, position)
        for name in names:
            if name.endswith("*"):
                self._prefixes.setdefault(name[:-1], _Methods()).add(methods, position)
                if len(name) - 1 not in self._lengths:
                    self._lengths = sorted([*self._lengths, len(name) - 1])
            else:
                self._exact.setdefault(name, _Methods()).add(methods, position)

    def find(self, model: str, method: bytes) -> i64:
        exact = self._exact.get(model)
        position: i64 = _NONE if exact is None else exact.find(method)
        for length in self._lengths:
            if length > len(model):
                break
            prefix = self._prefixes.get(model[:length])
            if prefix is not None:
                candidate = prefix.find(method)
                if candidate < position:
                    position = candidate
        return position


@final
class _Node:
    """The rules that remain after some conditions are met."""

    def __init__(self) -> None:
        self.lowest: i64 = _NONE  # the lowest position in this node and below
        self._methods = _Methods()
        self._models: _Models | None = None
        self._headers: dict[bytes, dict[bytes, _Node]] = {}  # by name and value of the next condition

    def add(self, rule: Rule, position: int, headers_met: int) -> None:
        """Add a rule below this node, which requires the first `headers_met` of the rule's header conditions."""
        if position < self.lowest:
            self.lowest = position
        match = rule.match
        if headers_met < len(match.headers):
            name, value = match.headers[headers_met]
            values = self._headers.setdefault(name.encode("latin-1"), {})
            values.setdefault(value.encode(), _Node()).add(rule, position, headers_met + 1)
        elif rule.names:
            if self._models is None:
                self._models = _Models()
            self._models.add(rule.names, match.methods, position)
        else:
            self._methods.add(match.methods, position)

    def search(self, query: RouteQuery) -> None:
        """Lower `best` and `best_undecided` of the query to the positions in this node and below."""
        if self.lowest >= query.best:
            return
        position = self._methods.find(query.method)
        if position < query.best:
            query.best = position
        models = self._models
        if models is not None:
            if not query.model_known:
                position = models.any_model.find(query.method)
                if position < query.best_undecided:
                    query.best_undecided = position
            elif query.has_model:
                position = models.find(query.model, query.method)
                if position < query.best:
                    query.best = position
            elif models.any_model.find(query.method) != _NONE:
                query.lacks_model = True
        for name, values in self._headers.items():
            value = query.field(name)
            if value is not None:
                node = values.get(value)
                if node is not None:
                    node.search(query)


@final
class HostRules:
    """The rules of one host. `throttlers`: in the order of the file; `parent`: of the next less specific host."""

    def __init__(self, throttlers: list[RevisionThrottler], parent: HostRules | None) -> None:
        self._parent = parent
        self._rules: list[Rule] = []
        self._nodes: dict[bytes, _Node] = {}  # by path prefix
        self._longest: i64 = 0  # length of the longest prefix
        self._default: Rule | None = None
        for members in _grouped(throttlers):
            rule = Rule(members)
            is_default = any(member.routing.default for member in members)
            if is_default and self._default is None:
                self._default = rule
            if is_default and rule.match.is_every() and not rule.names:
                continue
            path = rule.match.path.encode("latin-1")
            self._nodes.setdefault(path, _Node()).add(rule, len(self._rules), 0)
            self._longest = max(self._longest, len(path))
            self._rules.append(rule)
        self.has_paths: bool = self._longest > 0 or (parent is not None and parent.has_paths)
        self.has_models: bool = any(rule.names for rule in self._rules) or (parent is not None and parent.has_models)
        self.throttlers: list[RevisionThrottler] = [*throttlers, *(parent.throttlers if parent is not None else [])]
        # By the users of a request, () if no keys are required:
        self._lists: dict[tuple[User, ...], dict[bytes, ModelList]] = {}
        self._allowed: dict[tuple[User, ...], bool] = {}  # True if they may use any revision

    def decide(self, query: RouteQuery) -> i64:
        """Return MATCHED with `target` set, NEEDS_MODEL, or UNMATCHED."""
        level: HostRules | None = self
        while level is not None:
            query.best = query.best_undecided = _NONE
            level._search(query)
            if query.best_undecided < query.best:
                return NEEDS_MODEL
            if query.best != _NONE:
                query.target = level._rules[query.best]
                return MATCHED
            level = level._parent
        level = self
        while level is not None:
            if level._default is not None:
                query.target = level._default
                return MATCHED
            level = level._parent
        return UNMATCHED

    def same_prefixes(self, path: bytes, other: bytes) -> bool:
        """Return True if the two paths begin with the same rule prefixes, in this host and in less specific ones."""
        if self._nodes_of(path) != self._nodes_of(other):
            return False
        return self._parent is None or self._parent.same_prefixes(path, other)

    def lists(self, access: Access | None) -> dict[bytes, ModelList]:
        """Return the lists, by path, of the models that a request may use; they are built on first use."""
        users: tuple[User, ...] = () if access is None else access.users
        lists = self._lists.get(users)
        if lists is None:
            allowed = [throttler for throttler in self.throttlers if access is None or access.allows(throttler.key)]
            if len(self._lists) >= LISTS_MAX:
                self._lists.clear()
            lists = self._lists[users] = lists_of(allowed)
        return lists

    def allows(self, access: Access) -> bool:
        """Return True if a request may use any of the revisions."""
        users = access.users
        allowed = self._allowed.get(users)
        if allowed is None:
            parent = self._parent
            allowed = any(access.allows(throttler.key) for throttler in self.throttlers)
            allowed = allowed or (parent is not None and parent.allows(access))
            if len(self._allowed) >= LISTS_MAX:
                self._allowed.clear()
            self._allowed[users] = allowed
        return allowed

    # --- within ---

    def _search(self, query: RouteQuery) -> None:
        """Search the rules of this host for a request."""
        if query.level is not self:
            query.level = self
            query.nodes = self._nodes_of(query.path)
        for node in query.nodes:
            node.search(query)

    def _nodes_of(self, path: bytes) -> list[_Node]:
        """Return the nodes of all prefixes of this path that end at a slash or at its end."""
        nodes: list[_Node] = []
        node = self._nodes.get(b"")
        if node is not None:
            nodes.append(node)
        longest = self._longest
        size: i64 = len(path)
        end: i64 = 0
        while end < size and end < longest:
            slash: i64 = path.find(b"/", end + 1)
            end = size if slash < 0 else slash
            if end <= longest:
                node = self._nodes.get(path[:end])
                if node is not None:
                    nodes.append(node)
        return nodes


def _grouped(throttlers: list[RevisionThrottler]) -> list[list[RevisionThrottler]]:
    """Group the revisions that split their requests by weight; a group has the position of its first revision."""
    groups: dict[object, list[RevisionThrottler]] = {}
    for throttler in throttlers:
        routing = throttler.routing
        match = routing.match
        separate: object = throttler.key if routing.weight < 0 else ""
        names = (tuple(sorted(match.models)), tuple(sorted(routing.aliases)))
        condition = (match.path, match.methods, match.headers, names, separate)
        groups.setdefault(condition, []).append(throttler)
    return list(groups.values())
