"""What each pod has answered and failed, as status and page show it."""

from __future__ import annotations

import pytest

from activator.data_plane.upstream.pod_figures import PodFigures
from activator.runtime.reasons import Reason
from activator.workers.snapshots import merged
from tests.data_plane.proxy.proxy_fakes import Pool, World, at_pod, response_head


def figures(pool: Pool) -> tuple[int, int, float]:
    return pool.figures.responses, pool.figures.errors, pool.figures.first_byte_total_s


def test_responses_errors_and_first_bytes() -> None:
    world = World()
    pool = world.pod()
    for status, wait_s in ((200, 0.5), (404, 0.25), (500, 0.0), (503, 0.25)):
        exchange, _ = world.begin()
        world.clock.pass_time(wait_s)
        world.answer(exchange, status)
    assert figures(pool)[:2] == (4, 2)
    assert figures(pool)[2] == pytest.approx(1.0)
    world.check_idle()


def test_a_pod_that_fails_a_request_has_an_error() -> None:
    world = World()
    pool = world.pod()
    exchange, _ = world.begin()
    at_pod(exchange).pod_failed(Reason.BAD_RESPONSE, "", False)
    assert figures(pool) == (0, 1, 0.0)


def test_a_response_that_is_cut_short_is_a_response_and_an_error() -> None:
    world = World()
    pool = world.pod()
    exchange, _ = world.begin()
    at_pod(exchange).response_head(response_head(200, 100))
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
    assert figures(pool)[:2] == (1, 1)


def test_an_error_that_is_cut_short_is_one_error() -> None:
    world = World()
    pool = world.pod()
    exchange, _ = world.begin()
    at_pod(exchange).response_head(response_head(503, 100))
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
    assert figures(pool)[:2] == (1, 1)


def test_a_client_that_leaves_is_no_error_of_the_pod() -> None:
    world = World()
    pool = world.pod()
    exchange, _ = world.begin()
    exchange.client_gone()
    assert figures(pool) == (0, 0, 0.0)


def test_a_negative_time_counts_as_none() -> None:
    made = PodFigures()
    made.responded(200, -1.0)
    assert made.first_byte_total_s == 0.0


def test_the_figures_of_several_workers_are_added() -> None:
    def shown(responses: int, errors: int, total_s: float) -> dict[str, object]:
        slot = {"pod": "p", "address": "a", "in_flight": 1, "state": "ready"}
        slot |= {"responses": responses, "errors": errors, "first_byte_total_s": total_s}
        queue = dict.fromkeys(("waiting", "held_bytes", "granted", "queued", "exempted", "errors", "retry_after_s"), 0)
        sums = dict.fromkeys(("requests", "in_flight", "queued", "gathering", "delivering", "client_gone"), 0)
        rest = {"failed": {}, "retries": {}, "owner": True, "capacity": 1, "failure": None, "waits_for": ""}
        return {**sums, **rest, "waiting_requests": [], "queue": queue, "slots": [slot]}

    (slot,) = merged({0: {"a": shown(3, 1, 0.5)}, 1: {"a": shown(4, 0, 1.0)}})["a"]["slots"]
    assert (slot["responses"], slot["errors"], slot["first_byte_total_s"]) == (7, 1, 1.5)
