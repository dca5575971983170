"""The tally of a revision's pods is what counting its records anew gives, whatever changes come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from activator.config.specs import HealthSpec, RevisionSpec
from activator.control_plane.state.model import Model, commit
from activator.control_plane.state.records import PodRecord, RevisionRecord
from activator.control_plane.state.reduce import reduce
from activator.messages import (
    PUSH,
    Change,
    PlacePod,
    PodGone,
    PodRefused,
    PodsListed,
    PodStatus,
    PodUnplaced,
    Probed,
    RevisionSet,
    SlotDrained,
    Sweep,
    TrialEnded,
)
from lb.tracker import DRAINING, EMPTY, QUARANTINED, READY, RECOVERING
from tests.control_plane.state.state_fakes import KEY, seen

PODS = [f"p{number}" for number in range(4)]
SPEC_OF = {
    limit: RevisionSpec(key=KEY, container_concurrency=limit, health=HealthSpec(strikes=1, ejection_share=0.5))
    for limit in (1, 2)
}
pods = st.sampled_from(PODS)
statuses = st.sampled_from([PodStatus.READY, PodStatus.READY, *PodStatus])
seen_pods = st.builds(
    seen, pods, statuses, source=st.sampled_from(["list", "watch", PUSH]), limit=st.sampled_from([-1, 0])
)
changes = st.one_of(
    seen_pods,
    seen_pods,
    pods.map(lambda pod: seen(pod, address="10.0.9.9:80")),
    st.builds(lambda source, pod: PodGone(KEY, source, pod), st.sampled_from(["list", "watch", PUSH]), pods),
    # One pod may stand in a list twice.
    st.lists(st.builds(seen, pods, statuses)).map(lambda found: PodsListed(KEY, "list", tuple(found))),
    st.builds(lambda pod, dead: PodRefused(KEY, pod, 0, dead), pods, st.booleans()),
    pods.map(lambda pod: Probed(KEY, pod)),
    st.builds(lambda pod, passed: TrialEnded(KEY, pod, 0, passed), pods, st.booleans()),
    pods.map(lambda pod: PodUnplaced(KEY, pod)),
    st.just(SlotDrained(KEY, 0, 0)),
    st.just(Sweep(KEY)),
    st.sampled_from([1, 2]).map(lambda limit: RevisionSet(SPEC_OF[limit])),
)


def may_eject(record: RevisionRecord, pod: PodRecord) -> bool:
    """By a look at every pod."""
    others = [one for one in record.pods.values() if one.state() != DRAINING]
    out = [one for one in others if one.state() in {QUARANTINED, RECOVERING}]
    ready = [one for one in others if one.state() == READY and one.limit != 0 and one.identity != pod.identity]
    return bool(ready) and len(out) < max(1, int(len(others) * record.spec.health.ejection_share))


def check(record: RevisionRecord) -> None:
    states = [one.state() for one in record.pods.values()]
    tally = record.tally
    assert all(one.slot_state == one._state() for one in record.pods.values())
    assert tally.known == sum(state not in {DRAINING, EMPTY} for state in states)
    assert tally.out == sum(state in {QUARANTINED, RECOVERING} for state in states)
    assert tally.ready == sum(one.state() == READY and one.limit != 0 for one in record.pods.values())
    waiting = {one.identity for one in record.pods.values() if one.unplaced and one.state() != DRAINING}
    assert set(tally.unplaced) == waiting
    for pod in record.pods.values():
        assert tally.may_eject(pod, record.spec.health.ejection_share) == may_eject(record, pod)


@given(st.lists(changes, min_size=15, max_size=50))
def test_a_tally_is_what_counting_anew_gives(told: list[Change]) -> None:
    model = Model()
    commit(model, reduce(model, RevisionSet(SPEC_OF[1]), 0.0))
    for number, change in enumerate(told):
        record = model.revisions[KEY]
        waiting = list(record.tally.unplaced)
        reduction = reduce(model, change, float(number))
        if type(change) is SlotDrained:
            placed = [effect.identity for effect in reduction.effects if type(effect) is PlacePod]
            assert placed == waiting[:1], "the slot goes to the pod that has waited for one the longest"
        commit(model, reduction)
        check(model.revisions[KEY])
