"""The zone of a pod, from what a source reports to the table: at once, again when it changes, and after repairs."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from activator.config.specs import BalancingSpec
from activator.control_plane.state.reduce import reduce
from activator.messages import (
    ObservedPod,
    ObservedTable,
    PlacePod,
    PodGone,
    PodSetAside,
    PodsListed,
    PodStatus,
    Probed,
    RevisionBroken,
    RevisionSet,
    SetPod,
    SlotView,
    decode,
    encode,
)
from lb.tracker import READY
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, balanced, seen

ZONED = balanced(zone="a")


def far(joined: Joined) -> dict[str, bool]:
    """identity → is_far, of all slots with a pod."""
    table = joined.throttler().table
    table.check_invariants()
    return {one.identity: one.is_far for one in table.slots[: table.length] if one.identity}


def test_a_pod_is_far_if_its_zone_is_known_and_another() -> None:
    joined = Joined()
    joined.do(RevisionSet(ZONED), seen("p1", zone="a"), seen("p2", zone="b"), seen("p3"), seen("p4", zone="A"))
    assert far(joined) == {"p1": False, "p2": True, "p3": False, "p4": True}


def test_without_a_zone_to_prefer_all_are_near() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", zone="a"), seen("p2", zone="b"))
    assert far(joined) == {"p1": False, "p2": False}


def test_a_reload_changes_the_preference_of_pods_that_are_there() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", zone="a"), seen("p2", zone="b"))
    for zone, expected in (("a", [False, True]), ("b", [True, False]), ("c", [True, True]), ("", [False, False])):
        joined.do(RevisionSet(balanced(zone=zone)))
        assert list(far(joined).values()) == expected
    effects = reduce(joined.worker.model, RevisionSet(balanced(zone="b")), 0.0).effects
    assert [type(one).__name__ for one in effects] == ["SetRevision", "SetPod"], "only the pod that changes"


def test_the_zone_of_a_living_pod_changes() -> None:
    """By single reports and by lists, with a request in flight, which goes on."""
    joined = Joined()
    joined.do(RevisionSet(ZONED), seen("p1", zone="b"))
    request = joined.ask()
    assert request.ends == ["granted"]
    joined.do(seen("p1", zone="a"))
    assert far(joined) == {"p1": False}
    joined.do(seen("p1"))
    joined.do(PodsListed(KEY, "list", (seen("p1", zone="b"),)))
    assert far(joined) == {"p1": True}
    joined.do(PodsListed(KEY, "list", (seen("p1", zone="a"),)))
    joined.do(PodsListed(KEY, "list", (seen("p1", zone="b"),)))
    assert far(joined) == {"p1": True}
    assert joined.throttler().table.in_flight == 1
    request.release()
    assert reduce(joined.worker.model, seen("p1", zone="b"), 0.0).effects == [], "nothing new"


def test_requests_go_to_the_other_zone_when_the_own_is_full() -> None:
    joined = Joined()
    joined.do(RevisionSet(ZONED), seen("p1", zone="b"), seen("p2", zone="a"))
    requests = [joined.ask() for _ in range(5)]
    at = [None if one.lease is None else one.lease.identity for one in requests]
    assert at == ["p2", "p2", "p1", "p1", None]
    requests[0].release()
    assert requests[4].lease is not None and requests[4].lease.identity == "p2"


def test_a_pod_returns_from_a_drain_with_another_zone() -> None:
    joined = Joined()
    joined.do(RevisionSet(ZONED), seen("p1", zone="b"))
    request = joined.ask()
    joined.do(PodGone(KEY, "list", "p1"))
    assert joined.slots() == {"p1": "draining"}
    joined.do(seen("p1", zone="a"))
    assert (joined.slots(), far(joined)) == ({"p1": "ready"}, {"p1": False})
    request.release()


def test_a_pod_that_is_put_back_into_service_has_its_zone() -> None:
    joined = Joined()
    joined.do(RevisionSet(ZONED), seen("p1", zone="b"), seen("p2", zone="a"))
    joined.do(PodSetAside(KEY, "p1", True))
    assert far(joined) == {"p2": False}
    joined.do(PodSetAside(KEY, "p1", False))
    joined.do(Probed(KEY, "p1"))
    assert (joined.slots()["p1"], far(joined)) == ("ready", {"p1": True, "p2": False})


def test_a_pods_own_report_leaves_its_zone() -> None:
    joined = Joined()
    joined.do(RevisionSet(ZONED), seen("p1", zone="b"), seen("p1", source="push"))
    assert far(joined) == {"p1": True}


def test_a_table_that_is_made_anew_has_the_zones() -> None:
    joined = Joined()
    joined.do(RevisionSet(ZONED), seen("p1", zone="b"), seen("p2", zone="a"))
    old = joined.throttler().table
    request = joined.ask()
    joined.do(RevisionBroken(KEY, "a test"))
    assert joined.throttler().table is not old
    assert far(joined) == {"p1": True, "p2": False}
    request.release()


def test_a_slot_with_the_wrong_zone_is_found_and_repaired() -> None:
    joined = Joined()
    joined.do(RevisionSet(ZONED), seen("p1", zone="b"))
    model, epoch = joined.worker.model, joined.epoch("p1")
    right = SlotView("p1", "10.0.0.1:80", READY, 2, 1, epoch, True)
    assert reduce(model, ObservedTable(KEY, model.sent[KEY], (right,)), 0.0).mismatches == []
    wrong = reduce(model, ObservedTable(KEY, model.sent[KEY], (replace(right, is_far=False),)), 0.0)
    assert wrong.mismatches == [("state", "p1 is ready with limit 2 and weight 1, near")]
    assert wrong.effects == [SetPod(KEY, "p1", READY, 2, 1, epoch, True)]


def test_messages_of_a_version_without_zones_are_read_and_ours_by_it() -> None:
    place = PlacePod(KEY, "p1", "10.0.0.1:80", READY, 2, 1, 7, True)
    assert decode(encode(place)) == place
    for message in (place, SetPod(KEY, "p1", READY, 2, 1, 7, True), seen("p1", zone="b")):
        kind = type(message)
        last, default = kind.__struct_fields__[-1], kind.__struct_defaults__[-1]
        assert last in ("is_far", "zone"), "new fields are the last ones"
        fields = msgspec.to_builtins(message)
        del fields[last]
        assert msgspec.convert(fields, kind) == replace(message, **{last: default})
        assert msgspec.convert({**fields, "unknown": 1}, kind) is not None
    assert BalancingSpec.__struct_fields__[-1] == "zone"
    assert ObservedPod(KEY, "list", "p1", "a:1", PodStatus.READY).zone == ""
