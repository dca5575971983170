"""Authorization as of roles: who may do what, and the words of a refusal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.kubernetes.fake_objects import RefusalError

Json = dict[str, Any]


def check_rights(
    rules: Iterable[Json], user: str, verb: str, group: str, resource: str, name: str, namespace: str
) -> None:
    """`rules` as of a Role; `resource` with its subresource. Raises RefusalError 403."""
    for rule in rules:
        names = rule.get("resourceNames") or [name]
        if (
            _has(rule["apiGroups"], group)
            and _has(rule["resources"], resource)
            and _has(rule["verbs"], verb)
            and name in names
        ):
            return
    plural = resource.partition("/")[0]
    suffix = f".{group}" if group else ""
    whose = f' "{name}"' if name else ""
    where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
    raise RefusalError(
        403,
        "Forbidden",
        f'{plural}{suffix}{whose} is forbidden: User "{user}" cannot {verb} resource "{resource}" '
        f'in API group "{group}"{where}',
    )


def _has(words: list[str], word: str) -> bool:
    return "*" in words or word in words
