"""The part of CEL that validation rules of ours use; anything else is refused when the definition is created.

`self`, `oldSelf`, fields and indexes, `has(…)`, `size(…)`, `type(…)` with names of types, `.size()`, `.startsWith`,
`.endsWith`, `.contains`, `.matches`, `.all(x, …)`, `.exists(x, …)`, `in`, comparisons, `&& || !`, `? :`, `+ - * / %`,
numbers, strings, lists, `true`, `false`, `null`. A rule that names `oldSelf` holds for changes only, as in the API.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]
Scope = dict[str, Any]
Run = Callable[[Scope], Any]

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<word>[A-Za-z_]\w*)"""
    r"""|(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%!<>?:.,()\[\]]))"""
)
_FIELDS = re.compile(r"\b(?:self|oldSelf)((?:\.[A-Za-z_]\w*\b(?!\s*\())+)")  # not what is called
_WORDS = {"true": True, "false": False, "null": None}
_TYPES: dict[str, type] = {"int": int, "double": float, "string": str, "bool": bool, "list": list, "map": dict}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: bool(a == b),
    "!=": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
    "in": lambda a, b: a in b,
}
_SUMS: dict[str, Callable[[Any, Any], Any]] = {"+": lambda a, b: a + b, "-": lambda a, b: a - b}
_PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if isinstance(a, int) and isinstance(b, int) else a / b,
    "%": lambda a, b: a % b,
}
_METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "startsWith": lambda a, b: a.startswith(b),
    "endsWith": lambda a, b: a.endswith(b),
    "contains": lambda a, b: b in a,
    "matches": lambda a, b: re.search(b, a) is not None,
}


class RuleError(Exception):
    """No rule, or none that is understood here."""


class AbsentError(Exception):
    """A field that is not there: the rule fails, as in the API ("no such key")."""


class Rule:
    """One entry of x-kubernetes-validations."""

    def __init__(self, entry: Json) -> None:
        unknown = set(entry) - {"rule", "message", "messageExpression", "reason", "fieldPath", "optionalOldSelf"}
        if unknown or entry.get("optionalOldSelf") or "messageExpression" in entry:
            raise RuleError(f"the fake does not know {sorted(unknown) or 'optionalOldSelf and messageExpression'}")
        self.text: str = entry["rule"]
        self.message: str = entry.get("message") or f"failed rule: {self.text}"
        self._run = _Parser(self.text).parsed()
        self.fields = [tuple(found[1].strip(".").split(".")) for found in _FIELDS.finditer(self.text)]  # that it names
        self._of_changes = re.search(r"\boldSelf\b", self.text) is not None

    def mistakes(self, value: Any, old: Any, path: str) -> Iterator[str]:
        if self._of_changes and old is None:
            return
        try:
            holds = self._run({"self": value, "oldSelf": old})
        except (AbsentError, TypeError, KeyError, ZeroDivisionError, IndexError) as error:
            yield f"{path}: Invalid value: rule evaluation error: {self.text}: {error}"
            return
        if holds is not True:
            shown = "object" if isinstance(value, dict) else value
            yield f'{path}: Invalid value: "{shown}": {self.message}'


class _Parser:
    """By recursive descent, from the weakest operator to the strongest."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                raise RuleError(f"not understood at {text[place:][:20]!r}: {text}")
            assert found.lastgroup is not None
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            place = found.end()
        self._next = 0
        self._names = ["self", "oldSelf"]

    def parsed(self) -> Run:
        run = self._choice()
        if self._next < len(self._tokens):
            raise RuleError(f"not understood at {self._tokens[self._next][1]!r}: {self._text}")
        return run

    def _peek(self) -> str:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""

    def _take(self, *signs: str) -> str:
        if self._peek() in signs:
            self._next += 1
            return self._tokens[self._next - 1][1]
        return ""

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise RuleError(f"{sign!r} is missing at {self._peek()!r}: {self._text}")

    def _choice(self) -> Run:
        condition = self._either()
        if not self._take("?"):
            return condition
        yes = self._choice()
        self._need(":")
        no = self._choice()
        return lambda scope: yes(scope) if condition(scope) else no(scope)

    def _either(self) -> Run:
        left = self._both()
        while self._take("||"):
            left = self._or(left, self._both())
        return left

    @staticmethod
    def _or(left: Run, right: Run) -> Run:
        return lambda scope: bool(left(scope)) or bool(right(scope))

    def _both(self) -> Run:
        left = self._compared()
        while self._take("&&"):
            left = self._and(left, self._compared())
        return left

    @staticmethod
    def _and(left: Run, right: Run) -> Run:
        return lambda scope: bool(left(scope)) and bool(right(scope))

    def _compared(self) -> Run:
        left = self._sum()
        sign = self._take(*_COMPARE)
        return _combined(_COMPARE[sign], left, self._sum()) if sign else left

    def _sum(self) -> Run:
        left = self._product()
        while sign := self._take(*_SUMS):
            left = _combined(_SUMS[sign], left, self._product())
        return left

    def _product(self) -> Run:
        left = self._signed()
        while sign := self._take(*_PRODUCTS):
            left = _combined(_PRODUCTS[sign], left, self._signed())
        return left

    def _signed(self) -> Run:
        if self._take("!"):
            inner = self._signed()
            return lambda scope: not inner(scope)
        if self._take("-"):
            inner = self._signed()
            return lambda scope: -inner(scope)
        return self._member(self._primary())

    def _member(self, value: Run) -> Run:
        while True:
            if self._take("."):
                name = self._peek()
                self._next += 1
                value = self._call(value, name) if self._take("(") else _field(value, name)
            elif self._take("["):
                value = _combined(lambda a, b: a[b], value, self._choice())
                self._need("]")
            else:
                return value

    def _call(self, value: Run, name: str) -> Run:
        if name == "size":
            self._need(")")
            return lambda scope: len(value(scope))
        if name in {"all", "exists"}:
            variable = self._peek()
            self._next += 1
            self._need(",")
            self._names.append(variable)
            inner = self._choice()
            self._names.remove(variable)
            self._need(")")
            quantify = all if name == "all" else any
            return lambda scope: quantify(inner({**scope, variable: one}) for one in value(scope))
        if name not in _METHODS:
            raise RuleError(f"the fake does not know {name}(): {self._text}")
        argument = self._choice()
        self._need(")")
        return _combined(_METHODS[name], value, argument)

    def _primary(self) -> Run:
        if self._next >= len(self._tokens):
            raise RuleError(f"ends too early: {self._text}")
        kind, text = self._tokens[self._next]
        self._next += 1
        if kind == "number":
            number = float(text) if "." in text else int(text)
            return lambda scope: number
        if kind == "string":
            string = text[1:-1].replace("\\\\", "\\").replace('\\"', '"')
            return lambda scope: string
        if text == "(":
            inner = self._choice()
            self._need(")")
            return inner
        if text == "[":
            return self._list()
        if kind == "word":
            return self._word(text)
        raise RuleError(f"not understood at {text!r}: {self._text}")

    def _list(self) -> Run:
        items: list[Run] = []
        while not self._take("]"):
            items.append(self._choice())
            if self._peek() != "]":
                self._need(",")
        return lambda scope: [item(scope) for item in items]

    def _word(self, word: str) -> Run:
        if word in _WORDS:
            return lambda scope: _WORDS[word]
        if word == "type":
            self._need("(")
            inner = self._choice()
            self._need(")")
            return lambda scope: type(inner(scope))
        if word in _TYPES:
            return lambda scope: _TYPES[word]
        if word in {"has", "size"}:
            self._need("(")
            inner = self._choice()
            self._need(")")
            return _present(inner) if word == "has" else lambda scope: len(inner(scope))
        if word not in self._names:
            raise RuleError(f"the fake does not know {word}: {self._text}")
        return lambda scope: scope[word]


def _combined(operation: Callable[[Any, Any], Any], left: Run, right: Run) -> Run:
    return lambda scope: operation(left(scope), right(scope))


def _field(value: Run, name: str) -> Run:
    def read(scope: Scope) -> Any:
        whole = value(scope)
        if not isinstance(whole, dict) or name not in whole:
            raise AbsentError(f"no such key: {name}")
        return whole[name]

    return read


def _present(inner: Run) -> Run:
    def read(scope: Scope) -> bool:
        try:
            inner(scope)
        except AbsentError:
            return False
        return True

    return read
