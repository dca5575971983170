"""The cost of a user's quota for one request: admission and end, alone, and at the owner of several data planes.

The calls come from plain Python, as those of filters of packages do, which adds the cost of a call to each of them.
"""

from __future__ import annotations

import time

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from activator.config.specs import QuotaSpec, UserSpec
from activator.data_plane.ownership.names import MemberName
from activator.data_plane.ownership.view import View
from activator.data_plane.quotas.messages import QuotaLevel, QuotaLevelAck, QuotaMessage, QuotaQuery, QuotaState
from activator.data_plane.quotas.quota import key_of
from activator.data_plane.quotas.quotas import Quotas
from bench.micro.test_bench_throttle import note, rounds_of

TIMES = 10_000
SPECS = {
    "requests": QuotaSpec(requests=10**9, requests_period_s=60.0),
    "all": QuotaSpec(concurrency=1_000, requests=10**9, requests_period_s=60.0, tokens=10**9, tokens_period_s=60.0),
}


def ask_and_end(quotas: Quotas, name: str, times: int) -> None:
    for _ in range(times):
        quota = quotas.find(name)
        assert quota is not None
        asked = quotas.ask(quota, 100)
        quotas.end(asked, 90)


@pytest.mark.benchmark(group="quotas")
@pytest.mark.parametrize("limits", SPECS)
def test_alone(benchmark: BenchmarkFixture, limits: str) -> None:
    quotas = Quotas(time.monotonic)
    quotas.set_users([UserSpec("alice", b"", None, quota=SPECS[limits])])
    rounds_of(benchmark)(ask_and_end, args=(quotas, "alice", TIMES), rounds=30)
    note(benchmark, TIMES)


@pytest.mark.benchmark(group="quotas")
def test_at_the_owner_of_two(benchmark: BenchmarkFixture) -> None:
    """The other data plane acknowledges each report at once."""
    quotas = Quotas(time.monotonic)

    def answer(member: int, message: QuotaMessage) -> None:
        if isinstance(message, QuotaQuery):
            quotas.receive(2, QuotaState(1, message.call, ()))
        elif isinstance(message, QuotaLevel):
            quotas.receive(2, QuotaLevelAck(1, message.key, message.requests_taken, message.tokens_taken))

    quotas.join(1, answer)
    quotas.linked(2)
    quotas.adopt(View(1, (MemberName(1, 1), MemberName(2, 2))))
    users = [f"user-{number}" for number in range(100)]
    quotas.set_users([UserSpec(name, b"", None, quota=SPECS["all"]) for name in users])
    view = View(1, (MemberName(1, 1), MemberName(2, 2)))
    name = next(name for name in users if view.owner_of(key_of(name)) == 1)
    rounds_of(benchmark)(ask_and_end, args=(quotas, name, TIMES), rounds=30)
    note(benchmark, TIMES)
