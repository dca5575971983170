"""The simulation of `bench stale-loads`: what must be so whatever the figures are."""

from __future__ import annotations

import pytest

from bench.stale_loads import NEVER, make_work, simulate


@pytest.mark.parametrize("policy", ["least-connections", "choice-of-2"])
def test_reports_that_come_at_once_are_as_good_as_one_data_plane(policy: str) -> None:
    work = make_work(8_000, 1.0, 3)
    alone = simulate(policy, 1, NEVER, work, 1.0).mean
    at_once = simulate(policy, 4, 0.0, work, 1.0).mean
    soon = simulate(policy, 4, 0.05, work, 1.0).mean
    never = simulate(policy, 4, NEVER, work, 1.0).mean
    assert abs(at_once / alone - 1.0) < 0.1
    assert at_once * 0.9 < soon < (at_once + never) / 2.0
    assert never > 1.4 * alone
