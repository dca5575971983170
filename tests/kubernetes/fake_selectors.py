"""Label and field selectors in the API's notation."""

from __future__ import annotations

import re
from typing import Any

_SET = re.compile(r"^([\w./-]+)\s+(in|notin)\s+\(([^)]*)\)$")
_SPLIT = re.compile(r",(?![^(]*\))")


def labels_match(selector: str, labels: dict[str, str]) -> bool:
    """`a=b`, `a==b`, `a!=b`, `a`, `!a`, `a in (b,c)`, `a notin (b,c)`, joined by commas. Raises ValueError."""
    return all(_label_matches(term.strip(), labels) for term in _SPLIT.split(selector) if term.strip())


def _label_matches(term: str, labels: dict[str, str]) -> bool:
    found = _SET.match(term)
    if found:
        values = {value.strip() for value in found[3].split(",")}
        return (labels.get(found[1]) in values) == (found[2] == "in")
    if not re.fullmatch(r"!?[\w./-]+(\s*(=|==|!=)\s*[\w.-]*)?", term):
        raise ValueError(f"unable to parse requirement: {term}")
    if "!=" in term:
        name, _, value = term.partition("!=")
        return labels.get(name.strip()) != value.strip()
    if "=" in term:
        name, _, value = term.replace("==", "=").partition("=")
        return labels.get(name.strip()) == value.strip()
    return (term.lstrip("!") in labels) != term.startswith("!")


def fields_match(selector: str, thing: dict[str, Any]) -> bool:
    """Of metadata.name and metadata.namespace. Raises ValueError for any other field."""
    for term in selector.split(","):
        if not term:
            continue
        negated = "!=" in term
        name, _, value = term.replace("!=", "=").replace("==", "=").partition("=")
        if name not in {"metadata.name", "metadata.namespace"}:
            raise ValueError(f"field label not supported: {name}")
        if (thing["metadata"].get(name.removeprefix("metadata."), "") == value) == negated:
            return False
    return True
