"""The pods of each revision that have answered, kept up to date by the effects of the state worker.

Rules
  1. An effect and a query take constant time: nothing here iterates over the pods of a revision, which may be thousands
     that are all probed every few milliseconds.
  2. A Service in place of its pods (`cluster_pod`) takes requests like a pod, but its answer is no evidence about them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

from activator.messages import DropRevision, Effect, PlacePod, RebuildPods, RebuildRevision, SetPod, WithdrawPod
from lb.tracker import QUARANTINED, READY, RECOVERING

_CLUSTER: Final = "cluster-ip/"
_UP: Final = frozenset({READY, RECOVERING})  # may be picked
_PROVEN: Final = frozenset({READY, RECOVERING, QUARANTINED})  # has answered
_NONE: Final[frozenset[str]] = frozenset()
_NO_ANSWER: Final = (False, False)


def cluster_pod(address: str) -> str:
    """Return the identity of the Service at this address, in place of its pods."""
    return _CLUSTER + address


class _Identities:
    """The identities of one revision."""

    def __init__(self) -> None:
        self.up: set[str] = set()  # pods that may be picked
        self.proven: set[str] = set()  # pods that have answered, including those in quarantine
        self.services: set[str] = set()  # Services that may be picked

    def put(self, identity: str, state: int | None) -> None:
        """Record the state of a pod or a Service; None: it was withdrawn."""
        if identity.startswith(_CLUSTER):
            _put(self.services, identity, state in _UP)
        else:
            _put(self.up, identity, state in _UP)
            _put(self.proven, identity, state in _PROVEN)

    def answers(self) -> tuple[bool, bool]:
        """Return whether a pod may be picked, and whether a Service may."""
        return bool(self.up), bool(self.services)

    def is_empty(self) -> bool:
        return not self.proven and not self.services


class PodAnswers:
    """The pods that have answered.

    `turned(key)` is called when the first pod of a revision, or its Service, answers, and when the last one no longer
    does.
    """

    def __init__(self, turned: Callable[[str], None]) -> None:
        self._turned = turned
        self._known: dict[str, _Identities] = {}
        self._rebuilt: dict[str, _Identities] = {}  # tables that are being rebuilt, by key

    def applied(self, effect: Effect) -> None:
        """Apply an effect."""
        if type(effect) is SetPod or type(effect) is PlacePod:
            self._set(effect.key, effect.identity, effect.state)
        elif type(effect) is WithdrawPod:
            self._set(effect.key, effect.identity, None)
        elif type(effect) is DropRevision:
            self._forget(effect.key)
        elif type(effect) is RebuildRevision:
            self._rebuilt[effect.key] = _Identities()
            self._rebuild(effect.key, effect.pods, effect.complete)
        elif type(effect) is RebuildPods:
            self._rebuild(effect.key, effect.pods, effect.complete)

    def has_answer(self, key: str) -> bool:
        """Return True if requests can be sent to a pod or to the Service."""
        known = self._known.get(key)
        return known is not None and bool(known.up or known.services)

    def has_pod(self, key: str) -> bool:
        """Return True if a pod may be picked."""
        known = self._known.get(key)
        return known is not None and bool(known.up)

    def count(self, key: str) -> int:
        """Return how many pods may be picked."""
        known = self._known.get(key)
        return 0 if known is None else len(known.up)

    def proven(self, key: str) -> AbstractSet[str]:
        """Return the pods that have answered, including those in quarantine, which other activators may use."""
        known = self._known.get(key)
        return _NONE if known is None else known.proven

    def _set(self, key: str, identity: str, state: int | None) -> None:
        known = self._known.get(key)
        if known is None:
            if state not in _PROVEN:
                return
            known = self._known[key] = _Identities()
        before = known.answers()
        known.put(identity, state)
        if known.is_empty():
            del self._known[key]
        if before != known.answers():
            self._turned(key)

    def _forget(self, key: str) -> None:
        self._rebuilt.pop(key, None)
        known = self._known.pop(key, None)
        if known is not None and known.answers() != _NO_ANSWER:
            self._turned(key)

    def _rebuild(self, key: str, pods: tuple[PlacePod, ...], complete: bool) -> None:
        """Add pods to the rebuilt state of a revision; if it is `complete`, it replaces the present state."""
        rebuilt = self._rebuilt.get(key)
        if rebuilt is None:
            return
        for pod in pods:
            rebuilt.put(pod.identity, pod.state)
        if not complete:
            return
        del self._rebuilt[key]
        known = self._known.pop(key, None)
        before = _NO_ANSWER if known is None else known.answers()
        if not rebuilt.is_empty():
            self._known[key] = rebuilt
        if before != rebuilt.answers():
            self._turned(key)


def _put(identities: set[str], identity: str, is_in: bool) -> None:
    if is_in:
        identities.add(identity)
    else:
        identities.discard(identity)
