"""The chains of leases beside a plain list of them."""

from __future__ import annotations

import gc
import weakref

from hypothesis import given
from hypothesis import strategies as st

from activator.data_plane.throttle.leases import NO_HOLDER, Lease, LeaseHolder, Leases, newest_of
from lb.tracker import PodTracker


def of(tracker: PodTracker) -> list[Lease]:
    """From the newest on."""
    found = []
    lease = newest_of(tracker)
    while lease is not None:
        found.append(lease)
        older = lease.pod_older
        assert not older.is_lease or isinstance(older, Lease)
        lease = older if isinstance(older, Lease) else None
    return found


steps = st.tuples(st.sampled_from(["open", "open", "open", "close", "close", "free", "move"]), st.integers(0, 1 << 20))


@given(st.lists(steps, min_size=20, max_size=80))
def test_leases_are_found_by_their_pod_and_all_together(told: list[tuple[str, int]]) -> None:
    trackers = [PodTracker(slot, 1) for slot in range(3)]
    leases = Leases()
    opened: list[Lease] = []
    at: dict[int, list[Lease]] = {slot: [] for slot in range(3)}
    for what, number in told:
        tracker = trackers[number % 3]
        slot = number % 3
        if what == "open":
            lease = Lease(tracker, 0.0)
            leases.open(lease, LeaseHolder())
            opened.append(lease)
            at[slot].append(lease)
        elif what == "free":
            tracker.vacate(tracker.generation + 1)
            at[slot] = []  # late from now on
        elif opened:
            lease = opened[number // 3 % len(opened)]
            for found in at.values():
                if lease in found:
                    found.remove(lease)
            if what == "close":
                opened.remove(lease)
                leases.close(lease)
                assert lease.holder is NO_HOLDER
            else:
                leases.move(lease, tracker)
                at[slot].append(lease)
                assert (lease.tracker, lease.generation) == (tracker, tracker.generation)
        assert list(leases) == opened and len(leases) == len(opened)
        for other in range(3):
            assert of(trackers[other]) == at[other][::-1]


def test_a_closed_lease_keeps_nothing_alive() -> None:
    """A request keeps its last lease: what that refers to would live on until the collector comes."""

    class Holder(LeaseHolder):
        lease: Lease

    gc.collect()
    gc.disable()
    try:
        leases = Leases()
        tracker = PodTracker(0, 1)
        holders = [Holder() for _ in range(3)]
        gone = [weakref.finalize(one, lambda: None) for one in holders]
        for holder in holders:
            holder.lease = Lease(tracker, 0.0)
            leases.open(holder.lease, holder)
        for holder in (holders[1], holders[0], holders[2]):
            leases.close(holder.lease)
        del holder
        holders.clear()
        assert [one.alive for one in gone] == [False] * 3
    finally:
        gc.enable()
