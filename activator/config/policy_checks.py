"""Checks of load balancing beyond the types of values: the names of policies, and keys that only some use.

Part of `checks.py`, with its rules. A key that the policy would ignore is a mistake.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from activator.config.key_path import KeyPath
from activator.config.model.revision import Revision
from activator.config.model.routing import HASH_ON_CLIENT_IP, HashOn
from activator.config.reader import TOKEN
from lb.registry import problem_with, takes_key, takes_weights


def check_policy(at: KeyPath, revision: Revision, policy_names: AbstractSet[str] | None) -> None:
    """Check the policy of one revision. `policy_names`: the available ones; None: any name is accepted."""
    policy, hash_on = revision.policy, revision.hash_on
    if policy and policy_names is not None:
        _check_name(at["policy"], policy, policy_names)
    if not policy or not takes_weights(policy):
        for entry_at, pod in at["pods"].each(revision.pods):
            if not isinstance(pod, str) and entry_at.sets("weight"):
                entry_at["weight"].advise(
                    f"`weight` requires `policy: weighted`{_found_instead(policy)}", beside=(at["policy"],)
                )
                break  # reported once
    if hash_on is None:
        return
    if not policy or not takes_key(policy):
        at["hash_on"].advise(
            f"`hash_on` requires `policy: consistent-hash`{_found_instead(policy)}", beside=(at["policy"],)
        )
    else:
        check_key_source(at["hash_on"], hash_on, "hash_on")


def _check_name(at: KeyPath, policy: str, policy_names: AbstractSet[str]) -> None:
    if ":" not in policy and policy not in policy_names:
        at.found("one of " + ", ".join(sorted(policy_names)) + " or package.module:Class")
        return
    problem = problem_with(policy)
    if problem:
        at.found("a policy that can be loaded", problem)


def check_key_source(at: KeyPath, source: str | HashOn, key: str) -> None:
    """Check the source of a request's key: the value of `key`, which is at `at`."""
    if isinstance(source, str):
        if source != HASH_ON_CLIENT_IP:
            at.found("client_ip, {header: NAME} or {cookie: NAME}")
        return
    named = [name for name in ("header", "cookie") if getattr(source, name)]
    if len(named) != 1:
        if at.is_whole:
            at.advise(f"`{key}` requires exactly one of `header` and `cookie`")
    elif TOKEN.fullmatch(getattr(source, named[0])) is None:
        at[named[0]].found(f"the name of a {named[0]}")


def _found_instead(policy: str) -> str:
    """Return a clause with the policy that the file has instead of the required one."""
    return f", and it is {policy}" if policy else ", and no policy is set"
