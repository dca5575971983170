"""The operations whose cost must not grow with the size; each was once linear because of a search.

A name ends in `_turn` if the figure is the longest turn of the loop during all of the work.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from activator.config.cluster_settings import ClusterSettings
from activator.config.model.pods import Health, PodTls
from activator.config.specs import BalancingSpec, HealthSpec, RevisionSpec
from activator.control_plane.sources.knative.environment import KnativeEnvironment
from activator.control_plane.sources.knative.revision_specs import SpecMaker
from activator.control_plane.sources.knative.source import KnativeSource
from activator.control_plane.state.queue import ChangeQueue
from activator.data_plane.throttle.disciplines import FifoQueue
from activator.data_plane.throttle.waiters import Waiter
from activator.kubernetes.objects import EndpointSlice, Revision
from activator.messages import PodGone, PodRefused, PodStatus, Probed, RevisionSet, SlotDrained
from activator.runtime.controller_counts import Controllers
from bench.growth import Case, Measure, each
from bench.growth_world import KEY, World, seen, with_pods
from lb.registry import default_name, names
from lb.rng import Rng

TIMES: Final = 100  # operations per round, if all are alike
SLICE_PODS: Final = 100  # pods per slice, as in Kubernetes
ACTIVATORS: Final = ("10.200.0.1", "10.200.0.2", "10.200.0.3")  # the activators in front of a revision


def slot_drained(size: int) -> Measure:
    world = with_pods(size)
    changes = [SlotDrained(KEY, 0, -number) for number in range(1, TIMES + 1)]
    return each(lambda: world.do(changes), TIMES)


def strike_beyond_share(size: int) -> Measure:
    world = with_pods(size, health=HealthSpec(strikes=1, ejection_share=0.0))
    world.do([PodRefused(KEY, "pod-0", 1, False)])  # one pod is ejected, and no other may be
    changes = [PodRefused(KEY, f"pod-{1 + number % (size - 1)}", 1, False) for number in range(TIMES)]
    return each(lambda: world.do(changes), TIMES)


def not_ready_pod_leaves(size: int) -> Measure:
    world = with_pods(size, PodStatus.NOT_READY)
    changes = [PodGone(KEY, "list", f"pod-{number}") for number in range(size)]
    return each(lambda: world.do(changes), size)


def drain_time_outs_turn(size: int) -> Measure:
    world = with_pods(size)
    world.take_every_slot()
    world.do([PodGone(KEY, "list", f"pod-{number}") for number in range(size)])
    throttler = world.throttler()

    def measure() -> float:
        longest_ns = world.loop.longest_turn_ns(throttler.spec.drain_timeout_s + 1.0)
        world.settle()
        assert (throttler.table.in_flight, throttler.table.used, world.drained) == (0, 0, size)
        return longest_ns

    return measure


def audit_turn(size: int) -> Measure:
    """Audit one revision that has changed completely since the last audit."""
    world = with_pods(size)
    world.take_every_slot()
    return _audit(world, 1)


def audit_of_revisions_turn(size: int) -> Measure:
    """Audit many revisions, each with few pods and many slots."""
    world = World()
    for number in range(size):
        key = f"ns/rev-{number}"
        world.worker.submit(
            RevisionSet(RevisionSpec(key=key, container_concurrency=1, balancing=BalancingSpec(max_scale=10)))
        )
        world.worker.submit(seen(number, key=key))
    world.settle()
    return _audit(world, size)


def audit_compared_turn(size: int) -> Measure:
    """Compare the table that the auditor has read with the model."""
    world = with_pods(size)
    world.loop.defer(lambda: world.auditor.expired(world.loop.now()))
    world.settle()
    (seen_table,) = world.found

    def measure() -> float:
        taken = world.worker.changes_total
        world.worker.submit(seen_table)
        world.loop.defer(world.turn_worker)
        longest_ns = world.loop.longest_turn_ns()
        assert world.worker.changes_total > taken and not world.worker.mismatch_totals
        return longest_ns

    return measure


def _audit(world: World, revisions: int) -> Measure:
    def measure() -> float:
        world.loop.defer(lambda: world.auditor.expired(world.loop.now()))
        longest_ns = world.loop.longest_turn_ns()
        assert world.auditor.checked_total == revisions
        return longest_ns

    return measure


def requeue_in_random_order(size: int) -> Measure:
    """Requeue a waiter, and then grant it; the figure is for each."""
    waiters = [Waiter() for _ in range(size)]
    for number, waiter in enumerate(waiters, start=1):
        waiter.arrival = number
    order = shuffled(waiters)
    queue = FifoQueue()

    def operation() -> None:
        for waiter in order:
            queue.rejoin(waiter)
        for waiter in waiters:
            assert queue.first() is waiter
            queue.take(waiter)

    return each(operation, size)


def change_taken(size: int) -> Measure:
    """Put changes into the queue and take them in small batches; per change, with ten times the size of other cases."""
    size *= 10
    changes = [seen(number, key=f"ns/rev-{number % 10}") for number in range(size)]
    queue = ChangeQueue(size)

    def operation() -> None:
        for change in changes:
            queue.put(change)
        taken = 0
        while some := queue.take(4):
            taken += len(some)
        assert taken == size

    return each(operation, size)


def slice_event(size: int) -> Measure:
    """Change the readiness of a pod in one slice; from the event to the table."""
    return _slice_events(size, range(min(SLICE_PODS, size)), 1)


def slice_event_of_a_new_pod(size: int) -> Measure:
    """Add a pod to one slice, or remove it; from the event to the table."""
    return _slice_events(size, range(1, min(SLICE_PODS, size)), -1)


def slice_event_where_pods_are_shared(size: int) -> Measure:
    """Do the same at the second of three activators, whose share changes; every pod answers."""
    return _slice_events(size, range(1, min(SLICE_PODS, size)), -1, shares=True)


def _slice_events(size: int, numbers: range, unready: int, shares: bool = False) -> Measure:
    """Send events after which the first slice has the pods of these numbers, and then all of its own again."""
    world = World()
    source = _source(world, shares)
    first, *others = [
        _slice(number, range(number, min(number + SLICE_PODS, size)), -1) for number in range(0, size, SLICE_PODS)
    ]
    other = _slice(0, numbers, unready)
    spec = {"containerConcurrency": 1}
    source.revision_objects.changed(None, _made(Revision, {"metadata": _metadata("rev"), "spec": spec}))
    for one in (first, *others, _public_slice()):
        source.slice_objects.changed(None, one)
    _work(world)
    assert world.throttler().table.used == size
    for number in range(size):
        world.worker.submit(Probed(KEY, f"pod-{number}"))
    _work(world)
    source.mark(KEY)
    _work(world)
    capacity = world.throttler().table.capacity
    assert (size // 3 <= capacity <= size // 3 + 1) if shares else capacity == size
    assert first.endpoints != other.endpoints

    def operation() -> None:
        before = first
        for number in range(TIMES // 10):
            after = other if number % 2 == 0 else first
            source.slice_objects.changed(before, after)
            before = after
            _work(world)

    return each(operation, TIMES // 10)


def _work(world: World) -> None:
    world.loop.settle()
    while world.worker.turn():
        pass


class _NoListener:
    """Ignores what the source learns beside its changes."""

    def settings_changed(self, settings: ClusterSettings) -> None:
        pass

    def pass_done(self, key: str) -> None:
        pass

    def tls_of(self, namespace: str) -> PodTls | None:
        return None


def _source(world: World, shares: bool) -> KnativeSource:
    def fail(key: str, what: object, error: object, now_s: float) -> float:
        raise AssertionError(error)

    source = KnativeSource(
        KnativeEnvironment("activator-1", ACTIVATORS[1], "knative-serving"),
        SpecMaker("cluster.local", 0.5, Health(), default_name, frozenset(names())),
        shares,
        world.worker.submit,
        world.loop.defer,
        _NoListener(),
        Controllers(world.loop.now),
        fail,
        world.loop.call_later,
    )
    world.applied = source.applied
    return source


def _metadata(name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"name": name, "namespace": "ns", "uid": f"uid-{name}", "labels": labels or {}}


def _slice(first: int, numbers: range, unready: int) -> EndpointSlice:
    endpoints = [
        {
            "addresses": [f"10.{number // 62_500}.{number // 250 % 250}.{number % 250}"],
            "conditions": {"ready": number != unready, "serving": True, "terminating": False},
            "targetRef": {"kind": "Pod", "name": f"pod-{number}", "uid": f"pod-{number}"},
        }
        for number in numbers
    ]
    return _slice_of(f"rev-private-{first:05}", "Private", endpoints)


def _public_slice() -> EndpointSlice:
    return _slice_of("rev-public", "Public", [{"addresses": [ip], "conditions": {"ready": True}} for ip in ACTIVATORS])


def _slice_of(name: str, kind: str, endpoints: list[dict[str, Any]]) -> EndpointSlice:
    labels = {"networking.internal.knative.dev/serviceType": kind, "serving.knative.dev/revision": "rev"}
    made = {
        "metadata": _metadata(name, labels),
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8012}],
    }
    found: EndpointSlice = _made(EndpointSlice, made)
    return found


def _made(kind: Any, fields: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(fields), type=kind)


def rebuild_turn(size: int) -> Measure:
    """Rebuild a table with a request at each pod."""
    world = with_pods(size)
    world.take_every_slot()
    throttler = world.throttler()

    def measure() -> float:
        before = throttler.table
        world.tables.distrust(KEY, "told so")
        world.loop.defer(world.turn_worker)
        longest_ns = world.loop.longest_turn_ns()
        assert throttler.table is not before and throttler.queue.failure is None
        assert (throttler.table.used, throttler.table.in_flight) == (size, size)
        return longest_ns

    return measure


def shuffled(waiters: list[Waiter]) -> list[Waiter]:
    """Return the waiters in a random order that is the same in each run."""
    rng = Rng(1)
    order = list(waiters)
    for index in range(len(order) - 1, 0, -1):
        other = int(rng.below(index + 1))
        order[index], order[other] = order[other], order[index]
    return order


CASES: Final = (
    Case("slot_drained", "the last request of a leaving pod ends", slot_drained),
    Case("strike_beyond_share", "a pod is struck while no more may be ejected", strike_beyond_share),
    Case("not_ready_pod_leaves", "one of many pods that are not ready leaves", not_ready_pod_leaves),
    Case("drain_time_outs_turn", "the drains of all pods take too long at once", drain_time_outs_turn),
    Case("audit_turn", "the audit of one large revision", audit_turn),
    Case("audit_of_revisions_turn", "the audit of many revisions", audit_of_revisions_turn),
    Case("audit_compared_turn", "a large table is compared with the model", audit_compared_turn),
    Case("requeue_in_random_order", "a request comes back into line", requeue_in_random_order),
    Case("change_taken", "a change passes the queue", change_taken),
    Case("slice_event", "a pod of an EndpointSlice turns ready", slice_event),
    Case("slice_event_of_a_new_pod", "a pod joins an EndpointSlice", slice_event_of_a_new_pod),
    Case(
        "slice_event_where_pods_are_shared",
        "a pod joins an EndpointSlice before three activators",
        slice_event_where_pods_are_shared,
    ),
    # The last turn moves all requests in flight at once, because they count towards the limits.
    Case("rebuild_turn", "a table is rebuilt", rebuild_turn, 40.0),
)
