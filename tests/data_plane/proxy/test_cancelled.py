"""The slot of a request that was given up: whatever its pod does then, it is released once, and in time."""

from __future__ import annotations

import pytest

from activator.config.specs import TimeoutsSpec
from activator.data_plane.proxy.cancelled import CLOSE_PATIENCE_S, CancelledRequest
from activator.data_plane.streams import PodUser
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import Pod, World, response_head

WAIT_S = 5.0


class StoppingPod(Pod):
    """Takes its time to stop; `successor` is to be told."""

    successor: PodUser | None = None
    waits = False

    def cancel(self, successor: PodUser, waits: bool) -> bool:
        self.successor, self.waits = successor, waits
        return True


def given_up(**spec: object) -> tuple[World, StoppingPod, CancelledRequest]:
    world = World(container_concurrency=1, **spec)  # type: ignore[arg-type]
    pool = world.pod(makes=StoppingPod)
    exchange, _ = world.begin()
    exchange.client_gone()
    pod = pool.pods[0]
    assert exchange.over and isinstance(pod, StoppingPod)
    assert isinstance(pod.successor, CancelledRequest)
    assert world.table.in_flight == 1, "the pod has not stopped"
    return world, pod, pod.successor


@pytest.mark.parametrize("end", ["answered", "closed", "refused", "revoked", "late"])
def test_it_is_released_when_the_pod_has_stopped(end: str) -> None:
    world, pod, cancelled = given_up()
    assert not pod.waits
    (lease,) = world.throttler.leases
    assert cancelled.is_served(lease)
    cancelled.response_interim(response_head(103))
    cancelled.response_head(response_head())
    cancelled.response_body(b"hello")
    cancelled.response_flush()
    cancelled.pod_blocked()
    cancelled.pod_drained()
    assert world.table.in_flight == 1
    if end == "answered":
        cancelled.response_end([])
    elif end == "closed":
        cancelled.pod_failed(Reason.POD_CLOSED, "", False)
    elif end == "refused":
        cancelled.pod_refused(Reason.POD_CLOSED, "")
    elif end == "revoked":
        world.throttler.revoke(lease, Reason.POD_REMOVED, "")
    else:
        world.clock.pass_time(CLOSE_PATIENCE_S + 0.1)
    assert world.table.in_flight == 0 and not cancelled.is_served(lease)
    assert pod.aborted == (end in {"revoked", "late"})
    cancelled.response_end([])
    world.check_idle()


def test_a_revision_that_waits_gives_the_pod_its_time() -> None:
    world, pod, _ = given_up(timeouts=TimeoutsSpec(cancel_wait_s=WAIT_S))
    assert pod.waits
    world.clock.pass_time(WAIT_S - 0.1)
    assert (world.table.in_flight, pod.aborted) == (1, False)
    world.clock.pass_time(0.2)
    assert (world.table.in_flight, pod.aborted) == (0, True)
    world.check_idle()
