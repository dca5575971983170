"""The pods of one declared revision: from its slices to what is submitted of them.

Rules
  1. What was submitted before is remembered, and only what is new is submitted: a slice costs what it holds.
  2. A pod that is ready for Kubernetes is probed before it gets requests, since Kubernetes calls a container ready
     when it has started if no readiness probe says otherwise. A pod that is not ready is probed only where the object
     says how (`probe`): then the first answer counts, and the kubelet's interval does not.
  3. A pod that was ready and then was not, or whose events were lost, may run another program: it is probed again
     before it gets new requests. Its `restarts` count that, also where both came in one turn.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from activator.control_plane.sources.cluster.backends import Backend, of_slice
from activator.control_plane.sources.cluster.slice_index import SliceIndex
from activator.kubernetes.objects import EndpointSlice
from activator.messages import Change, PodGone, PodSeen, PodStatus

SOURCE: Final = "kubernetes"
PORT_NAME: Final = "pods"  # of the one port of the private Service


class _Life(NamedTuple):
    is_ready: bool
    restarts: int


_UNBORN: Final = _Life(False, 0)


class DeclaredPods:
    """Of the revision of this key."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._index = SliceIndex(PORT_NAME)
        self._changed: dict[str, EndpointSlice | None] = {}  # slices by name; None: gone
        self._doubted: set[str] = set()  # pods that were not ready for a while, or may have been
        self._lives: dict[str, _Life] = {}
        self._said: dict[str, PodSeen] = {}
        self._are_lost = False  # what was submitted is not known

    def put_slice(self, name: str, one: EndpointSlice | None) -> None:
        """None: it is gone."""
        waiting = self._changed.get(name)
        if waiting is not None:  # of the same turn: the next one would hide what it says
            for identity, backend in of_slice(waiting, PORT_NAME).items():
                if not backend.ready:
                    self._doubted.add(identity)
        self._changed[name] = one

    def events_lost(self, one: EndpointSlice) -> None:
        """The slice is like this now; what it was in between is not known."""
        self._doubted.update(of_slice(one, PORT_NAME))

    def forget_submitted(self) -> None:
        """Some of it was lost: all of it is submitted again."""
        self._are_lost = True

    def end(self) -> None:
        """The revision is not served: what its slices show is submitted if it is served again."""
        self._index.read(self._changed)
        self._changed, self._said, self._lives = {}, {}, {}
        self._doubted = set()
        self._are_lost = True

    def is_empty(self) -> bool:
        """Nothing is known of them."""
        return not len(self._index) and not any(self._changed.values())

    def changes(self, is_probed: bool) -> list[Change]:
        """What is to be submitted; those that are gone come first. `is_probed`: the object says how."""
        left: list[Change] = []
        came: list[Change] = []
        for identity, one in self._news().items():
            if one is None:
                self._lives.pop(identity, None)
                if self._said.pop(identity, None) is not None:
                    left.append(PodGone(self._key, SOURCE, identity))
                continue
            seen = self._seen(one, is_probed)
            if self._said.get(identity) != seen or self._are_lost:
                self._said[identity] = seen
                came.append(seen)
        self._are_lost = False
        self._doubted = set()
        return left + came

    def _news(self) -> dict[str, Backend | None]:
        changed, self._changed = self._changed, {}
        news = self._index.read(changed)
        pods = self._index.pods
        if self._are_lost:
            gone = [identity for identity in self._said if identity not in pods]
            return {**dict.fromkeys(gone), **pods}
        for identity in sorted(self._doubted - news.keys()):
            if identity in pods:
                news[identity] = pods[identity]
        return news

    def _seen(self, one: Backend, is_probed: bool) -> PodSeen:
        was = self._lives.get(one.identity, _UNBORN)
        ends = was.is_ready and not one.terminating and (not one.ready or one.identity in self._doubted)
        life = self._lives[one.identity] = _Life(one.ready, was.restarts + ends)
        if one.terminating:
            status, probe = PodStatus.DRAINING, False
        elif one.ready or is_probed:
            status, probe = PodStatus.PENDING, True
        else:
            status, probe = PodStatus.NOT_READY, False
        return PodSeen(self._key, SOURCE, one.identity, one.address, status, probe, restarts=life.restarts)
