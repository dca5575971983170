"""The queue of changes beside the plainest form of it, a list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from activator.control_plane.state.queue import ChangeQueue, fold_key
from activator.messages import (
    Change,
    ObservedPod,
    PodGone,
    PodsListed,
    PodStatus,
    Probed,
    RevisionBroken,
    RevisionGone,
    SlotDrained,
)
from tests.control_plane.state.state_fakes import seen

KEYS = ["ns/a", "ns/b"]
PODS = ["p1", "p2", "p3"]
CHANGES_MAX = 8

keys = st.sampled_from(KEYS)
pods = st.sampled_from(PODS)
sources = st.sampled_from(["list", "watch"])
changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(
        lambda pod, key, source, status: seen(pod, status, key=key, source=source),
        pods,
        keys,
        sources,
        st.sampled_from(list(PodStatus)),
    ),
    st.builds(PodGone, keys, sources, pods),
    st.builds(Probed, keys, pods),
    st.builds(lambda key, slot: SlotDrained(key, slot, 1), keys, st.integers(0, 3)),
    st.builds(lambda key, source: PodsListed(key, source, ()), keys, sources),
    st.builds(lambda key, kind: RevisionBroken(key, "broke", kind), keys, st.sampled_from(["", "ledger"])),
    st.builds(RevisionGone, keys),
)
steps = st.one_of(changes, changes, st.integers(0, 5), keys)


class PlainQueue:
    """What is in the queue, the oldest first."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.superseded: list[tuple[str, ...]] = []

    def put(self, change: Change) -> bool:
        if type(change) is RevisionGone:
            self._drop([one for one in self.changes if one.key == change.key])
        if type(change) is PodsListed:
            pods = [one for one in self.changes if isinstance(one, ObservedPod | PodGone) and one.key == change.key]
            self._drop([one for one in pods if one.source == change.source])
        for place, one in enumerate(self.changes):
            if fold_key(one) == fold_key(change):
                if not (type(one) is RevisionBroken and one.kind):
                    self.changes[place] = change
                return True
        if len(self.changes) >= CHANGES_MAX and type(change) is ObservedPod and change.status is not PodStatus.DRAINING:
            return False
        self.changes.append(change)
        return True

    def _drop(self, stale: list[Change]) -> None:
        self.superseded += [fold_key(one) for one in stale]
        self.changes = [one for one in self.changes if one not in stale]


@given(st.lists(steps, min_size=20, max_size=60))
def test_the_queue_is_what_the_plainest_one_is(told: list[Change | int | str]) -> None:
    plain = PlainQueue()
    superseded: list[tuple[str, ...]] = []
    queue = ChangeQueue(CHANGES_MAX, superseded.append)
    for one in told:
        if isinstance(one, int):
            taken, plain.changes = plain.changes[:one], plain.changes[one:]
            assert queue.take(one) == taken
        elif isinstance(one, str):
            assert queue.take_of(one) == [change for change in plain.changes if change.key == one]
            plain.changes = [change for change in plain.changes if change.key != one]
        else:
            assert queue.put(one) == plain.put(one)
        assert len(queue) == len(plain.changes)
    assert superseded == plain.superseded
    assert queue.take(len(queue) + 1) == plain.changes
    assert len(queue) == 0
