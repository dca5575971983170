"""The registry of policies by name: built-in ones, those of installed packages, and any class by its dotted path.

Rules
  1. Built-in policies come first, so that no package can replace one.
  2. A package registers policies by entry points of the group `activator.lb_policies`.
  3. "package.module:Class" needs no registration.
  4. A policy is a subclass of lb.policy.Policy, constructed with the generator alone.
  5. A policy that was found stays: each table asks for its own, and a search through all packages takes 2 ms or more.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from lb.policies.choice_of_two import ChoiceOfTwo
from lb.policies.consistent_hash import ConsistentHash
from lb.policies.ewma import Ewma
from lb.policies.first_available import FirstAvailable
from lb.policies.least_connections import LeastConnections
from lb.policies.random import RandomPick
from lb.policies.round_robin import RoundRobin
from lb.policies.weighted import Weighted
from lb.policy import Policy
from lb.rng import Rng
from lb.weights import RoomWeights

ENTRY_POINTS: Final = "activator.lb_policies"

BUILT_IN: Final[dict[str, type[Policy]]] = {
    "random": RandomPick,
    "choice-of-2": ChoiceOfTwo,
    "round-robin": RoundRobin,
    "least-connections": LeastConnections,
    "first-available": FirstAvailable,
    "weighted": Weighted,
    "ewma": Ewma,
    "consistent-hash": ConsistentHash,
}
ALIASES: Final = {"choice-of-two": "choice-of-2"}

_FOUND: Final[dict[str, type[Policy]]] = {}  # the policies in use that are not built in

PACKED_BELOW: Final = 4  # with a concurrency of 1 to 3 the lowest pods are filled first, as in Knative


class UnknownPolicyError(ValueError):
    """No policy has this name, or it names an object that is not a policy."""


def create(name: str, rng: Rng) -> Policy:
    """Return a new policy for one table. Raises UnknownPolicyError."""
    policy: object = _class_of(ALIASES.get(name, name))(rng)
    assert isinstance(policy, Policy)
    return policy


def names() -> tuple[str, ...]:
    """Return all names that `create` accepts, except dotted paths: built-in, aliases, then those of packages."""
    installed = sorted(name for name in _installed() if name not in BUILT_IN and name not in ALIASES)
    return (*BUILT_IN, *ALIASES, *installed)


def default_name(container_concurrency: int) -> str:
    """Return the policy of a revision that names none; a `container_concurrency` of 0 means no limit."""
    if container_concurrency <= 0:
        return "choice-of-2"
    return "first-available" if container_concurrency < PACKED_BELOW else "round-robin"


def problem_with(name: str) -> str:
    """Return the reason why `create` would fail, in one line; empty if it would succeed."""
    try:
        policy = _class_of(ALIASES.get(name, name))
    except UnknownPolicyError as error:
        return str(error)
    try:
        policy(Rng(1))
    except Exception as error:  # a third-party class may raise anything
        return f"policy {name!r} cannot be made: {type(error).__name__}: {error}"
    return ""


def takes_weights(name: str) -> bool:
    """Return True if the policy uses weights; policies that are not built in may use them."""
    built_in = BUILT_IN.get(ALIASES.get(name, name))
    return built_in is None or built_in.needs is RoomWeights


def takes_key(name: str) -> bool:
    """Return True if the policy uses keys; policies that are not built in may use them."""
    built_in = BUILT_IN.get(ALIASES.get(name, name))
    return built_in is None or built_in.wants_key


def _class_of(name: str) -> type[Policy]:
    """Return the policy's class; `name` is no alias. Raises UnknownPolicyError."""
    known = BUILT_IN.get(name) or _FOUND.get(name)
    if known is not None:
        return known
    try:
        found = _dotted(name) if ":" in name else _entry_point(name)
    except Exception as error:  # a third-party package may raise anything on import
        raise UnknownPolicyError(f"policy {name!r} cannot be loaded: {error}") from error
    if found is None:
        raise UnknownPolicyError(
            f"no policy is called {name!r}; there are {', '.join(names())} and package.module:Class"
        )
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise UnknownPolicyError(f"policy {name!r} is {found!r}, which is not a subclass of lb.policy.Policy")
    _FOUND[name] = found
    return found


def _dotted(path: str) -> object:
    """Import and return the object at "package.module:Class"."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def _entry_point(name: str) -> object:
    """Import and return the object that a package registers under this name; None if no package does."""
    path = _installed().get(name)
    return None if path is None else _dotted(path)


def _installed() -> dict[str, str]:
    """Return the dotted paths of the policies that packages register, by name."""
    from importlib.metadata import entry_points  # takes 15 ms, needed only for names that are not built in

    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
