"""The checker of what members say: a good run passes, and each kind of broken one is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from activator.data_plane.ownership.messages import Granted, HeldSlot, Register, Registered, Released, Want
from activator.data_plane.ownership.messages import WaitingRequest as Waiting
from activator.workers.trace import SUFFIX, Adopted, Began, Ceased, Linked, Received, Sent, TraceFile
from tests.simulation.checker import TraceError, check, read
from tests.simulation.storm import LIMITS_COME, storm
from tests.simulation.trace_events import AnyEvent, Left, Used

KEY = "ns/a#0"
SLOT = (1 << 40) + 1


def good() -> list[AnyEvent]:
    """Member 1 owns a revision and grants a slot to member 2, which gives it back."""
    want, registered = Want(1, KEY, Waiting(7)), Registered(1, "")
    granted = Granted(1, KEY, 7, 1, SLOT, "pod", "10.0.0.1:80", False, False)
    released = Released(1, KEY, SLOT, 0.1, True)
    return [
        Adopted(0.0, 1, 1, (1, 2), ()),
        Adopted(0.1, 2, 1, (1, 2), ()),
        Linked(0.2, 1, 2),
        Linked(0.2, 2, 1),
        Sent(0.3, 2, 1, registered),
        Received(0.4, 1, 2, registered),
        Began(0.4, 1, KEY, 1),
        Sent(0.5, 2, 1, want),
        Received(0.6, 1, 2, want),
        Sent(0.6, 1, 2, granted),
        Received(0.7, 2, 1, granted),
        Used(0.7, 2, "pod", 1),
        Left(0.8, 2, "pod"),
        Sent(0.8, 2, 1, released),
        Received(0.9, 1, 2, released),
        Ceased(1.0, 1, KEY),
    ]


def test_a_good_run_passes() -> None:
    assert check(good()) == 16


def test_a_storm_passes_and_is_seen() -> None:
    world = storm(3, 4, 2.0, 6.0, LIMITS_COME)
    assert world.checker is not None and world.checker.events > 1_000


def test_files_of_members_are_merged_by_time(tmp_path: Path) -> None:
    for number in (1, 2):
        file = TraceFile(str(tmp_path / f"{number}{SUFFIX}"))
        for event in good():
            if event.member == number:
                file.write(event)
    assert check(read(tmp_path)) == 16


def _too_many_at_a_pod(events: list[AnyEvent]) -> None:
    events.insert(12, Used(0.75, 1, "pod", 1))


def _granted_before_it_began(events: list[AnyEvent]) -> None:
    events.remove(Began(0.4, 1, KEY, 1))


def _began_before_all_had_registered(events: list[AnyEvent]) -> None:
    events.insert(4, Began(0.3, 1, KEY, 1))


def _began_before_an_unproven_one_had_registered(events: list[AnyEvent]) -> None:
    events[0:2] = [Adopted(0.0, 1, 1, (1, 2), (3,)), Adopted(0.1, 2, 1, (1, 2), (3,))]


def _two_grant_in_one_epoch(events: list[AnyEvent]) -> None:
    registered = Registered(1, "")
    granted = Granted(1, KEY, 8, 1, (2 << 40) + 1, "pod", "10.0.0.1:80", False, False)
    events += [
        Sent(1.1, 1, 2, registered),
        Received(1.1, 2, 1, registered),
        Began(1.1, 2, KEY, 1),
        Sent(1.2, 2, 1, granted),
    ]


def _two_views_of_one_epoch(events: list[AnyEvent]) -> None:
    events[1] = Adopted(0.1, 2, 1, (2,), ())


def _given_back_twice(events: list[AnyEvent]) -> None:
    events.append(Sent(1.1, 2, 1, Released(1, KEY, SLOT, 0.1, True)))


def _registered_after_it_was_given_back(events: list[AnyEvent]) -> None:
    events.append(Sent(1.1, 2, 1, Register(1, KEY, (HeldSlot(SLOT, "pod", "10.0.0.1:80"),), ())))


def _acted_on_a_grant_of_an_older_epoch(events: list[AnyEvent]) -> None:
    events.insert(10, Adopted(0.65, 2, 2, (1, 2), ()))


def _said_before_it_registered(events: list[AnyEvent]) -> None:
    del events[4:7]


def _lost_on_the_way(events: list[AnyEvent]) -> None:
    events.remove(Received(0.4, 1, 2, Registered(1, "")))


@pytest.mark.parametrize(
    ("breaks", "why"),
    [
        (_too_many_at_a_pod, "2 requests are at the pod"),
        (_granted_before_it_began, "has not begun to grant"),
        (_began_before_all_had_registered, "has registered in 0"),
        (_began_before_an_unproven_one_had_registered, "member 3 has registered in 0"),
        (_two_grant_in_one_epoch, "member 1 grants in this epoch"),
        (_two_views_of_one_epoch, "has another view"),
        (_given_back_twice, "was given back before"),
        (_registered_after_it_was_given_back, "was given back"),
        (_acted_on_a_grant_of_an_older_epoch, "was not granted to it"),
        (_said_before_it_registered, "its last registration"),
        (_lost_on_the_way, "has registered in 0"),
    ],
)
def test_a_broken_run_is_found(breaks: Callable[[list[AnyEvent]], None], why: str) -> None:
    events = good()
    breaks(events)
    with pytest.raises(TraceError, match=why):
        check(events)
