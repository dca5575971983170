"""The indexes of a table's slots by address and by identity; each leads to the newest slot with that name.

Rules
  1. A slot is enrolled when it is given to a pod, and struck when it is freed; draining slots are enrolled.
  2. Two slots may share an address (an IP is reused while its former pod drains) or an identity (a pod has returned
     under another address), but never both. A lookup finds the newest; the others are linked behind it and drain.
     A draining slot whose pod returns to it becomes the newest again.
  3. Striking an older slot never hides a newer one, and after striking the newest, a lookup finds the next older one.
  4. Python never shrinks a dictionary, so the indexes are copied when at most a quarter of their names is left
     (amortised O(1)).
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from lb.tracker import PodTracker

_SMALL_NAMES: Final = 64  # smaller dictionaries are not copied


@final
class SlotIndexes:
    """Two indexes of the slots that hold a pod."""

    __slots__ = ("_by_address", "_by_identity", "_identities_most")

    def __init__(self) -> None:
        self._identities_most: i64 = 0  # the most since the dictionaries were last copied
        self._by_address: dict[str, PodTracker] = {}
        self._by_identity: dict[str, PodTracker] = {}

    def at(self, address: str) -> PodTracker | None:
        """Return the newest slot at the address."""
        return self._by_address.get(address)

    def of(self, identity: str) -> PodTracker | None:
        """Return the newest slot of the identity."""
        return self._by_identity.get(identity)

    def holder(self, identity: str, address: str) -> PodTracker | None:
        """Return the slot of this pod at this address."""
        tracker = self._by_identity.get(identity)
        while tracker is not None and tracker.address != address:
            tracker = tracker.older_of_identity
        return tracker

    def enrol(self, tracker: PodTracker) -> None:
        """Add the slot to both indexes as the newest of its address and of its identity."""
        tracker.older_at_address = self._by_address.get(tracker.address)
        self._by_address[tracker.address] = tracker
        tracker.older_of_identity = self._by_identity.get(tracker.identity)
        self._by_identity[tracker.identity] = tracker
        self._identities_most = max(self._identities_most, len(self._by_identity))

    def enrol_behind(self, tracker: PodTracker) -> None:
        """Enrol a draining slot as an older one of its names: lookups still find the newer slots."""
        at_address = self._by_address.get(tracker.address)
        of_identity = self._by_identity.get(tracker.identity)
        if at_address is None:
            self._by_address[tracker.address] = tracker
        else:
            tracker.older_at_address = at_address.older_at_address
            at_address.older_at_address = tracker
        if of_identity is None:
            self._by_identity[tracker.identity] = tracker
        else:
            tracker.older_of_identity = of_identity.older_of_identity
            of_identity.older_of_identity = tracker
        self._identities_most = max(self._identities_most, len(self._by_identity))

    def make_newest(self, tracker: PodTracker) -> None:
        """Make the slot the newest of its names, because its pod has returned to it."""
        if self._by_identity[tracker.identity] is not tracker or self._by_address[tracker.address] is not tracker:
            self._strike_address(tracker)
            self._strike_identity(tracker)
            self.enrol(tracker)

    def strike(self, tracker: PodTracker) -> None:
        """Remove the slot from both indexes."""
        self._strike_address(tracker)
        self._strike_identity(tracker)
        self._compact()

    def check_pod(self, tracker: PodTracker) -> None:
        """Raise AssertionError if the slot's names do not lead to it, possibly behind newer slots."""
        found = self.holder(tracker.identity, tracker.address)
        assert found is tracker, f"the identity of {tracker!r} leads to {found!r}"
        found = self._by_address.get(tracker.address)
        while found is not None and found is not tracker:
            found = found.older_at_address
        assert found is tracker, f"the address of {tracker!r} does not lead to it"

    def check_invariants(self, held: list[PodTracker]) -> None:
        """Raise AssertionError if the indexes do not match `held`, the slots that hold a pod, lowest first."""
        by_address: list[int] = []
        for address, at_address in self._by_address.items():
            tracker: PodTracker | None = at_address
            while tracker is not None:
                assert tracker.address == address, f"{tracker!r} is indexed under address {address}"
                by_address.append(tracker.slot)
                tracker = tracker.older_at_address
        by_identity: list[int] = []
        for identity, of_identity in self._by_identity.items():
            tracker = of_identity
            while tracker is not None:
                assert tracker.identity == identity, f"{tracker!r} is indexed under identity {identity}"
                by_identity.append(tracker.slot)
                tracker = tracker.older_of_identity
        slots = [int(tracker.slot) for tracker in held]
        assert sorted(by_address) == slots, f"the addresses lead to slots {sorted(by_address)}, held are {slots}"
        assert sorted(by_identity) == slots, f"the identities lead to slots {sorted(by_identity)}, held are {slots}"
        assert len({(tracker.identity, tracker.address) for tracker in held}) == len(held), "one pod in two slots"

    def _compact(self) -> None:
        """Copy the dictionaries if at most a quarter of their names is left."""
        identities = len(self._by_identity)
        if self._identities_most > _SMALL_NAMES and 4 * identities <= self._identities_most:
            self._by_address = dict(self._by_address)
            self._by_identity = dict(self._by_identity)
            self._identities_most = identities

    def _strike_address(self, tracker: PodTracker) -> None:
        newer = self._by_address[tracker.address]
        if newer is tracker:
            older = tracker.older_at_address
            if older is None:
                del self._by_address[tracker.address]
            else:
                self._by_address[tracker.address] = older
        else:
            while newer.older_at_address is not tracker:
                following = newer.older_at_address
                assert following is not None, f"{tracker!r} is not enrolled at its address"
                newer = following
            newer.older_at_address = tracker.older_at_address
        tracker.older_at_address = None

    def _strike_identity(self, tracker: PodTracker) -> None:
        newer = self._by_identity[tracker.identity]
        if newer is tracker:
            older = tracker.older_of_identity
            if older is None:
                del self._by_identity[tracker.identity]
            else:
                self._by_identity[tracker.identity] = older
        else:
            while newer.older_of_identity is not tracker:
                following = newer.older_of_identity
                assert following is not None, f"{tracker!r} is not enrolled under its identity"
                newer = following
            newer.older_of_identity = tracker.older_of_identity
        tracker.older_of_identity = None
