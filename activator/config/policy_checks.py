"""What types cannot say of balancing: which policies there are, and what only some of them look at.

Part of `checks.py`'s work, with its rules. A key that the policy would ignore is a mistake.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from activator.config.edge_checks import item_at
from activator.config.model import HASH_ON_CLIENT_IP
from activator.config.reader import TOKEN, UNREADABLE, Reader, Values
from activator.config.tree import Item
from lb.registry import problem_with, takes_key, takes_weights


class PolicyChecker:
    """`policy_names`: those that can be had; None: any name is taken."""

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
        elif isinstance(hash_on, dict):
            self._check_hash_on(hash_item, hash_on, f"{path}.hash_on")
        elif hash_on != HASH_ON_CLIENT_IP:
            self._reader.found(hash_item, f"{path}.hash_on", "client_ip, {header: NAME} or {cookie: NAME}")

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
                return  # once is enough

    def _check_hash_on(self, item: Item, hash_on: Values, path: str) -> None:
        named = [key for key in ("header", "cookie") if hash_on.get(key, "")]
        if len(named) != 1:
            if (item.entries or {}).keys() <= {"header", "cookie"}:  # else the unknown key has been reported
                self._reader.advise(item, path, "`hash_on` requires exactly one of `header` and `cookie`")
        elif TOKEN.fullmatch(hash_on[named[0]]) is None:
            self._reader.found(item_at(item, named[0]), f"{path}.{named[0]}", f"the name of a {named[0]}")


def _but(policy: str) -> str:
    """What the file has in place of the policy that is required."""
    return f", and it is {policy}" if policy else ", and no policy is set"
