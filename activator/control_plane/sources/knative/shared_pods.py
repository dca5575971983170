"""Keeps track of which pods of a revision are shared out, and which of them belong to this activator.

Rules
  1. sharing.py defines which pods are shared out and how. A pod that comes, leaves, answers or falls silent costs a few
     steps: the share is a block of the sorted addresses, and one more pod moves its ends by a few places. Only the list
     of addresses is moved in memory, eight bytes a pod.
  2. After any sequence of updates the share equals that of one update with all pods.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from activator.control_plane.sources.knative.sharing import SHARE_PATIENCE_S, block_of
from activator.runtime.clock import NEVER

_SORT_ALL_MIN: Final = 200  # changed addresses from which sorting all of them is cheaper
_STALE_MAX: Final = 100  # void entries of the queue, beyond the number of the others


class SharedPods:
    """The pods by identity. A pod that has answered is `proven`."""

    def __init__(self) -> None:
        self.due_s = NEVER  # when a pod will have been silent for too long
        self._share = _Share()
        self._listed: dict[str, str] = {}  # addresses by identity
        self._up_since_s = NEVER  # since when a pod has answered
        self._silent_since_s: dict[str, float] = {}  # pods that have not answered
        self._left_out: set[str] = set()  # silent pods that are not shared out until they answer
        self._patience: deque[tuple[str, float]] = deque()  # the other silent pods, the longest silent first

    def forget(self) -> None:
        """Forget all pods."""
        self._silent_since_s = {}
        self._up_since_s = NEVER
        self.update_all({}, frozenset(), 0.0, 0, 1)

    @property
    def leaves_out(self) -> bool:
        """True if a listed pod is not shared out until it answers."""
        return bool(self._left_out)

    def is_ours(self, address: str) -> bool:
        return self._share.has(address)

    def update_all(
        self, listed: Mapping[str, str], proven: AbstractSet[str], now_s: float, index: int, activators: int
    ) -> None:
        """Replace all pods with these, which Kubernetes lists, with their addresses."""
        self._share = _Share()
        self._listed = {}
        self._left_out = set()
        self._silent_since_s = {pod: since_s for pod, since_s in self._silent_since_s.items() if pod in listed}
        self._patience = deque(self._silent_since_s.items())
        self.update(listed, proven, now_s, index, activators)

    def update(
        self, pods: Mapping[str, str | None], proven: AbstractSet[str], now_s: float, index: int, activators: int
    ) -> set[str]:
        """Update some pods, leave out silent ones, and set `due_s`.

        Return the addresses that may have become, or ceased to be, this activator's. `pods`: the pods that may have
        changed, with their address; None: no longer listed. `index`: the place of this activator among `activators`.
        """
        for identity, address in pods.items():
            self._update_pod(identity, address, identity in proven, now_s)
        self._leave_out_silent(now_s)
        return self._share.move_block(index, activators)

    # --- within ---

    def _update_pod(self, identity: str, address: str | None, is_proven: bool, now_s: float) -> None:
        before = None if identity in self._left_out else self._listed.get(identity)
        if address is None:
            self._listed.pop(identity, None)
        else:
            self._listed[identity] = address
        if address is None or is_proven:
            self._silent_since_s.pop(identity, None)
            self._left_out.discard(identity)
        elif identity not in self._silent_since_s:
            self._silent_since_s[identity] = now_s
            self._queue_silent(identity, now_s)
        after = None if identity in self._left_out else address
        if before != after:
            if before is not None:
                self._share.remove(before)
            if after is not None:
                self._share.add(after)

    def _queue_silent(self, identity: str, since_s: float) -> None:
        if len(self._patience) > 2 * len(self._silent_since_s) + _STALE_MAX:
            self._requeue_silent()
        else:
            self._patience.append((identity, since_s))

    def _requeue_silent(self) -> None:
        silent = self._silent_since_s.items()
        self._patience = deque([(identity, since_s) for identity, since_s in silent if identity not in self._left_out])

    def _leave_out_silent(self, now_s: float) -> None:
        """Leave out pods that have been silent for too long while others answer, and set `due_s`."""
        self.due_s = NEVER
        if len(self._silent_since_s) == len(self._listed):  # no pod answers: all are equal
            self._up_since_s = NEVER
            if self._left_out:
                for identity in self._left_out:
                    self._share.add(self._listed[identity])
                self._left_out = set()
                self._requeue_silent()
            return
        self._up_since_s = min(self._up_since_s, now_s)
        while self._patience:
            identity, since_s = self._patience[0]
            if self._silent_since_s.get(identity) == since_s and identity not in self._left_out:
                until_s = max(since_s, self._up_since_s) + SHARE_PATIENCE_S
                if now_s < until_s:
                    self.due_s = until_s
                    return
                self._left_out.add(identity)
                self._share.remove(self._listed[identity])
            self._patience.popleft()


class _Share:
    """The addresses that are shared out, and this activator's block of them. Several pods may have one address."""

    def __init__(self) -> None:
        self._pods: dict[str, int] = {}  # how many pods, by address
        self._sorted: list[str] = []
        self._changed: dict[str, None] = {}  # addresses since the last `move_block`
        # This activator's addresses: the first and last of its block, and one after all blocks. Empty: none.
        self._ends = ("", "", "")

    def has(self, address: str) -> bool:
        """Return True if the address belongs to this activator."""
        first, last, more = self._ends
        return address in self._pods and (first <= address <= last or address == more)

    def add(self, address: str) -> None:
        self._pods[address] = self._pods.get(address, 0) + 1
        self._changed[address] = None

    def remove(self, address: str) -> None:
        count = self._pods[address] - 1
        if count:
            self._pods[address] = count
        else:
            del self._pods[address]
        self._changed[address] = None

    def move_block(self, index: int, activators: int) -> set[str]:
        """Move this activator's block; return the addresses that may have become, or ceased to be, in it."""
        doubtful = set(self._changed)
        self._sort()
        addresses, before = self._sorted, self._ends
        first, end, more = block_of(len(addresses), index, activators)
        self._ends = (
            addresses[first] if first < end else "",
            addresses[end - 1] if first < end else "",
            addresses[more] if more >= 0 else "",
        )
        for old_end, new_end in zip(before[:2], self._ends):
            if old_end != new_end:
                doubtful.update(self._between(min(old_end, new_end), max(old_end, new_end)))
        doubtful.update((before[2], self._ends[2]))
        return doubtful

    def _sort(self) -> None:
        changed, self._changed = self._changed, {}
        if len(changed) > _SORT_ALL_MIN:
            self._sorted = sorted(self._pods)
            return
        addresses = self._sorted
        for address in changed:
            position = bisect_left(addresses, address)
            is_listed = position < len(addresses) and addresses[position] == address
            if is_listed and address not in self._pods:
                del addresses[position]
            elif not is_listed and address in self._pods:
                addresses.insert(position, address)

    def _between(self, low: str, high: str) -> list[str]:
        return self._sorted[bisect_left(self._sorted, low) : bisect_right(self._sorted, high)]
