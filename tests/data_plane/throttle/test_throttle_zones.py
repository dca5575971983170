"""Lent slots of a revision that prefers a zone: none is kept, because a pod whose slot is idle elsewhere looks full."""

from __future__ import annotations

from msgspec.structs import replace

from activator.data_plane.ownership.lending import Lending, LentSlots
from activator.data_plane.ownership.messages import Granted, MemberMessage, Recall, WaitingRequest
from activator.data_plane.throttle.revision import RevisionThrottler
from lb.tracker import READY
from tests.data_plane.throttle.throttle_fakes import make


def prefer(throttler: RevisionThrottler, zone: str) -> None:
    throttler.reconfigure(replace(throttler.spec, balancing=replace(throttler.spec.balancing, zone=zone)))


def test_no_slot_is_kept_and_those_that_are_come_back() -> None:
    throttler, table, _, clock = make("round-robin")
    for number in range(4):
        table.add(f"p{number}", f"10.0.0.{number}:80", 1, READY)
    sent: list[MemberMessage] = []
    lending = Lending(throttler, LentSlots(1), lambda member, message: sent.append(message), clock.now)
    throttler.sharing.lending = lending
    lending.begin()

    def lends(request: int) -> bool:
        lending.want(2, 1, WaitingRequest(request=request, pick_key=0, charge=1))
        granted = sent.pop()
        assert isinstance(granted, Granted)
        return granted.lends

    assert lends(1)
    prefer(throttler, "eu-a")
    assert [type(one) for one in sent] == [Recall]
    sent.clear()
    assert not lends(2)
    prefer(throttler, "eu-b")
    assert sent == [], "nothing is lent any more"
    prefer(throttler, "")
    assert (sent, lends(3)) == ([], True)
