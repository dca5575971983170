"""Checks of load balancing beyond the types of values: the names of policies, and keys that only some use.

Part of `checks.py`, with its rules. A key that the policy would ignore is a mistake.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from activator.config.edge_checks import item_at
from activator.config.model.routing import HASH_ON_CLIENT_IP
from activator.config.reader import TOKEN, UNREADABLE, Reader, Values
from activator.config.tree import Item
from lb.registry import problem_with, takes_key, takes_weights


class PolicyChecker:
    """The checks of policies. `policy_names`: the available ones; None: any name is accepted."""

    def __init__(self, reader: Reader, policy_names: AbstractSet[str] | None) -> None:
        self._reader = reader
        self._policy_names = policy_names

    def check_revision(self, item: Item, values: Values, path: str) -> None:
        policy = values.get("policy", "")
        if policy:
            self._check_name(item_at(item, "policy"), policy, f"{path}.policy")
        self._check_weights(item_at(item, "pods"), values, f"{path}.pods", policy)
        hash_on = values.get("hash_on")
        if hash_on is None or hash_on is UNREADABLE:
            return
        hash_item = item_at(item, "hash_on")
        if not policy or not takes_key(policy):
            self._reader.advise(
                hash_item, f"{path}.hash_on", f"`hash_on` requires `policy: consistent-hash`{_but(policy)}"
            )
        else:
            check_key_source(self._reader, hash_item, hash_on, f"{path}.hash_on", "hash_on")

    def _check_name(self, item: Item, policy: str, path: str) -> None:
        if self._policy_names is None:
            return
        if ":" not in policy and policy not in self._policy_names:
            expected = "one of " + ", ".join(sorted(self._policy_names)) + " or package.module:Class"
            self._reader.found(item, path, expected)
            return
        problem = problem_with(policy)
        if problem:
            self._reader.found(item, path, "a policy that can be loaded", problem)

    def _check_weights(self, item: Item, values: Values, path: str, policy: str) -> None:
        if policy and takes_weights(policy):
            return
        for place, pod in enumerate(values.get("pods", [])):
            if isinstance(pod, dict) and "weight" in pod and item.elements is not None:
                one = item_at(item.elements[place], "weight")
                advice = f"`weight` requires `policy: weighted`{_but(policy)}"
                self._reader.advise(one, f"{path}[{place}].weight", advice)
                return  # reported once


def check_key_source(reader: Reader, item: Item, source: Values | str, path: str, key: str) -> None:
    """Check the source of a request's key: the value of `key`, which is at `path`."""
    if isinstance(source, str):
        if source != HASH_ON_CLIENT_IP:
            reader.found(item, path, "client_ip, {header: NAME} or {cookie: NAME}")
        return
    named = [name for name in ("header", "cookie") if source.get(name, "")]
    if len(named) != 1:
        if (item.entries or {}).keys() <= {"header", "cookie"}:  # otherwise the unknown key has been reported
            reader.advise(item, path, f"`{key}` requires exactly one of `header` and `cookie`")
    elif TOKEN.fullmatch(source[named[0]]) is None:
        reader.found(item_at(item, named[0]), f"{path}.{named[0]}", f"the name of a {named[0]}")


def _but(policy: str) -> str:
    """Return a clause with the policy that the file has instead of the required one."""
    return f", and it is {policy}" if policy else ", and no policy is set"
