"""How often a program that starts is looked at: soon, in proportion to its start, and for a bounded share of a core."""

from __future__ import annotations

import pytest

from activator.control_plane.sources.process.readiness import PORT_STEP_SHARE, READINESS_STEP_SHARE, step_s


@pytest.mark.parametrize(
    ("waited_s", "took_s", "share", "expected_s"),
    [
        (0.05, 50e-6, PORT_STEP_SHARE, 0.002),
        (1.0, 50e-6, PORT_STEP_SHARE, 0.005),
        (0.05, 324e-6, PORT_STEP_SHARE, 0.00324),  # beside 5,000 listeners
        (0.05, 324e-6, READINESS_STEP_SHARE, 0.0025),
        (1.0, 0.5, READINESS_STEP_SHARE, 0.05),  # a program that answers slowly is asked no less often
    ],
)
def test_the_step(waited_s: float, took_s: float, share: float, expected_s: float) -> None:
    assert step_s(waited_s, took_s, share) == pytest.approx(expected_s)
