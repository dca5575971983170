"""The window of new connections: what opens it, what closes it, and that nobody stays behind it for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from activator.data_plane.upstream.window import (
    DIAL_AGE_INITIAL_S,
    DIAL_AGE_MAX_S,
    DIAL_AGE_MIN_S,
    DIAL_WINDOW_INITIAL,
    DIAL_WINDOW_MAX,
    DialWindow,
)


def ages_until_open(window: DialWindow, wanted: int) -> float:
    """How long it takes until so many stand, at a pod that answers nobody."""
    elapsed_s, opened = 0.0, 0
    while True:
        dialled = 0
        while window.has_room() and opened < wanted:
            window.dialled()
            dialled += 1
            opened += 1
        if opened == wanted:
            return elapsed_s
        assert dialled, "somebody waits, nobody is new, and the window is closed"
        elapsed_s += window.age_s
        for _ in range(dialled):
            window.aged()


def test_a_pod_that_answers_slowly_gets_its_connections_soon() -> None:
    assert ages_until_open(DialWindow(), 50) <= 4 * DIAL_AGE_INITIAL_S


def test_a_slow_pod_that_lost_a_dial_gets_them_too() -> None:
    window = DialWindow()
    window.dialled()
    window.lost()
    window.new_ended()
    assert window.age_s == DIAL_AGE_MAX_S and window.size == DIAL_WINDOW_INITIAL // 2
    assert ages_until_open(window, 100) <= 5 * DIAL_AGE_MAX_S
    assert window.age_s == DIAL_AGE_MIN_S


def test_answers_open_the_window_and_leave_the_age() -> None:
    window = DialWindow()
    for _ in range(DIAL_WINDOW_INITIAL):
        window.dialled()
        window.answered()
    assert (window.size, window.age_s, window.new) == (2 * DIAL_WINDOW_INITIAL, DIAL_AGE_INITIAL_S, 0)


def test_after_a_loss_it_grows_by_one() -> None:
    window = DialWindow()
    window.dialled()
    window.lost()
    window.new_ended()
    before = window.size
    for _ in range(before):
        window.dialled()
        window.answered()
    assert window.size == before + 1


@given(st.lists(st.sampled_from(["answered", "aged", "new_ended", "lost"]), max_size=400))
def test_its_bounds_hold_whatever_happens(events: list[str]) -> None:
    window = DialWindow()
    for event in events:
        assert window.has_room() == (window.new < window.size)
        if event == "lost":
            window.dialled()
            window.lost()
            window.new_ended()
        else:
            window.dialled()
            getattr(window, event)()
        assert window.new == 0
        assert 1 <= window.size <= DIAL_WINDOW_MAX
        assert DIAL_AGE_MIN_S <= window.age_s <= DIAL_AGE_MAX_S
