"""`sharing: knative` with several activators before the same pods: what they carry together, in any order of events.

Each activator is a source, a state worker and a data plane of its own; they know of each other only what Kubernetes
tells each of them, at different times.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.control_plane.sources.knative.sharing import SHARE_PATIENCE_S, assign_slice
from activator.messages import Probed, RevisionBroken
from tests.control_plane.sources.knative.knative_fakes import (
    KEY,
    Cluster,
    config_map,
    endpoint,
    endpoint_slice,
    endpoints,
    revision,
    service,
)
from tests.data_plane.throttle.throttle_fakes import Request

PODS = ["10.0.0.1", "10.0.0.10", "10.0.0.2", "10.0.0.3"]
ACTIVATORS = ["10.9.0.1", "10.9.0.10", "10.9.0.2"]
STEP_S = 0.1


def slice_of(ips: list[str], kind: str = "Private", ready: bool = True) -> Any:
    return endpoint_slice(*(endpoint(ip, ready) for ip in ips), kind=kind)


class Activator(Cluster):
    """One of several."""

    def __init__(self, own_ip: str, limit: int = 1) -> None:
        super().__init__(shares=True, own_ip=own_ip)
        self.requests: list[Request] = []
        self.see(revision(limit=limit))

    def ask(self) -> None:
        self.requests.append(self.joined.ask(KEY))
        self.turn()

    def end_one(self) -> None:
        """The oldest request that has a pod ends."""
        running = [one for one in self.requests if one.lease is not None]
        if running:
            self.requests.remove(running[0])
            running[0].release()
            self.turn()

    def pass_time(self, seconds: float) -> None:
        self.joined.clock.pass_time(seconds)
        self.turn()

    def carries(self) -> dict[str, int]:
        table = self.joined.throttler(KEY).table
        return {one.address: one.in_flight for one in table.slots[: table.length] if one.in_flight}

    def shares(self) -> set[str]:
        return {address for address, limit in self.limits().items() if limit}

    def served(self) -> int:
        return sum(one.lease is not None for one in self.requests)


def together(activators: list[Activator]) -> dict[str, int]:
    """What each pod carries, of all activators."""
    found: dict[str, int] = {}
    for one in activators:
        for address, in_flight in one.carries().items():
            found[address] = found.get(address, 0) + in_flight
    return found


@pytest.mark.parametrize("order", ["public first", "pods first"])
@pytest.mark.parametrize("form", ["slices", "endpoints"])
def test_a_cold_start_with_four_waiters_each_gives_every_pod_one(order: str, form: str) -> None:
    both = [Activator(ip) for ip in ACTIVATORS[:2]]
    make: Any = (lambda ips, kind: endpoints(*ips, kind=kind)) if form == "endpoints" else slice_of
    told = [make(ACTIVATORS[:2], "Public"), make(PODS, "Private")]
    for one in both:
        for _ in range(4):
            one.ask()
        one.answering.update(PODS)
        for thing in told if order == "public first" else reversed(told):
            one.see(thing)
    assert together(both) == {f"{ip}:8012": 1 for ip in PODS}
    assert [one.served() for one in both] == [2, 2]
    for one in both:
        one.end_one()
    assert together(both) == {f"{ip}:8012": 1 for ip in PODS}, "and so on: the next waiter takes what is free"


EVENTS = st.lists(
    st.tuples(
        st.integers(0, len(ACTIVATORS) - 1),
        st.sampled_from(["public", "pods", "ready", "ask", "ask", "ask", "end", "time", *PODS]),
    ),
    max_size=60,
)


@given(
    count=st.integers(2, len(ACTIVATORS)),
    limit=st.integers(1, 2),
    events=EVENTS,
    mode=st.sampled_from(["", "disabled"]),
)
def test_no_pod_carries_more_than_its_limit_over_all_activators(
    count: int, limit: int, events: list[tuple[int, str]], mode: str
) -> None:
    """The list of activators, that of the pods, their readiness, their answers and the requests come in any order."""
    activators = [Activator(ip, limit) for ip in ACTIVATORS[:count]]
    if mode:
        for one in activators:
            one.see(config_map("config-network", mesh_compatibility_mode=mode))
    public, early, late = slice_of(ACTIVATORS[:count], "Public"), slice_of(PODS, ready=False), slice_of(PODS)
    passed_s = 0.0
    for number, what in events:
        one = activators[number % count]
        if what == "public":
            one.see(public)
        elif what in {"pods", "ready"}:
            one.see(early if what == "pods" else late)
        elif what == "ask":
            one.ask()
        elif what == "end":
            one.end_one()
        elif what == "time":
            if passed_s + STEP_S < SHARE_PATIENCE_S:
                passed_s += STEP_S
                for each in activators:
                    each.pass_time(STEP_S)
        else:
            one.answer(what)
        assert max(together(activators).values(), default=0) <= limit, what
    for one in activators:
        one.see(public, late)
        one.answer(*PODS)
    assert max(together(activators).values(), default=0) <= limit
    shares = [one.shares() for one in activators]
    assert sum(map(len, shares)) == len(PODS) and set().union(*shares) == {f"{ip}:8012" for ip in PODS}


@given(order=st.permutations([*PODS, "public"]), events=EVENTS)
def test_where_pods_are_listed_one_by_one_each_takes_from_its_share_of_what_it_was_told(
    order: list[str], events: list[tuple[int, str]]
) -> None:
    """With each pod that comes shares move, as behind Knative's own activators: what runs goes on where it is, and
    nothing new is begun beyond the share.
    """
    both = [Activator(ip) for ip in ACTIVATORS[:2]]
    listed: list[list[str]] = [[], []]
    left = [list(order), list(order)]
    known = [slice_of([]), slice_of([])]
    for number, what in events:
        side = number % 2
        one = both[side]
        before = one.carries()
        if what in {"pods", "ready", "public"} and left[side]:
            comes = left[side].pop(0)
            if comes == "public":
                one.see(slice_of(ACTIVATORS[:2], "Public"))
            else:
                listed[side].append(comes)
                former, known[side] = known[side], slice_of(listed[side])
                one.see(known[side], old=former)
        elif what == "ask":
            one.ask()
        elif what == "end":
            one.end_one()
        elif what in PODS:
            one.answer(what)
        is_told = "public" not in left[side]
        share = assign_slice([f"{ip}:8012" for ip in listed[side]], side, 2) if is_told else []
        begun = {address for address, in_flight in one.carries().items() if in_flight > before.get(address, 0)}
        assert begun <= set(share)
        assert max(one.carries().values(), default=0) <= 1


def test_a_pod_that_does_not_answer_starves_no_activator() -> None:
    """One of two pods crashes again and again: the activator whose share it is goes to the other one, in time."""
    both = [Activator(ip) for ip in ACTIVATORS[:2]]
    for one in both:
        one.see(slice_of(ACTIVATORS[:2], "Public"), slice_of(PODS[:2], ready=False))
        one.ask()
        one.answer(PODS[0])
    starved = next(one for one in both if not one.served())
    starved.pass_time(SHARE_PATIENCE_S - 0.01)
    assert starved.served() == 0
    starved.pass_time(0.02)
    assert starved.served() == 1, "nothing but time has passed"
    for one in both:
        one.pass_time(SHARE_PATIENCE_S)
        one.answer(PODS[1])
    assert [len(one.shares()) for one in both] == [1, 1], "it answers after all"


def test_an_activator_that_is_not_among_the_public_endpoints_takes_every_pod_in_time() -> None:
    alone = Activator("10.9.0.9")
    alone.answer(*PODS)
    alone.see(slice_of(ACTIVATORS[:2], "Public"), slice_of(PODS))
    alone.pass_time(1000.0)
    assert alone.shares() == set(), "nobody asks for it"
    alone.ask()
    alone.pass_time(SHARE_PATIENCE_S - 0.01)
    assert alone.served() == 0
    alone.pass_time(0.02)
    assert alone.served() == 1 and len(alone.shares()) == len(PODS)
    alone.end_one()
    alone.ask()
    assert alone.served() == 1, "the next one waits for nothing"
    alone.see(slice_of([*ACTIVATORS[:2], "10.9.0.9"], "Public"))
    assert len(alone.shares()) == 1


def test_what_is_waited_for_begins_anew_with_the_next_request() -> None:
    alone = Activator("10.9.0.9")
    alone.answer(*PODS)
    alone.see(slice_of(PODS))
    alone.ask()
    alone.pass_time(SHARE_PATIENCE_S - 0.1)
    alone.requests.pop().leave()
    alone.turn()
    alone.pass_time(SHARE_PATIENCE_S)
    alone.ask()
    alone.pass_time(SHARE_PATIENCE_S - 0.1)
    assert alone.served() == 0
    alone.see(slice_of(["10.9.0.9"], "Public"))
    assert alone.served() == 1


def test_the_service_as_a_whole_is_shared_as_well() -> None:
    """Behind a mesh: nothing goes there either before the index is known."""
    one = Activator(ACTIVATORS[0], limit=10)
    one.says["10.96.0.5:80"] = (200, "queue")
    one.see(config_map("config-network", mesh_compatibility_mode="enabled"))
    one.see(service(), slice_of(PODS[:2]))
    assert one.limits() == {"10.96.0.5:80": 0}
    one.see(slice_of(ACTIVATORS[:2], "Public"))
    assert one.limits() == {"10.96.0.5:80": 10}


def test_a_successor_does_not_take_its_predecessors_share() -> None:
    one = Activator(ACTIVATORS[0])
    one.answer(*PODS)
    one.see(slice_of(ACTIVATORS[:2], "Public"), slice_of(PODS))
    assert len(one.shares()) == 2
    one.miss(revision(limit=1))
    pods = endpoint_slice(*map(endpoint, PODS), slice_name="new", revision_uid="second")
    one.see(revision(limit=1, uid="second"), pods)
    assert one.shares() == set()


@pytest.mark.parametrize("at_once", [100, 1], ids=["whole", "in parts"])
def test_an_answer_whose_effect_was_lost_counts_when_the_table_is_made_anew(at_once: int) -> None:
    one = Activator(ACTIVATORS[0])
    one.joined.worker.model.renewed_at_once = at_once
    one.see(slice_of(ACTIVATORS[:1], "Public"), slice_of(PODS[:2]))
    one.answer(PODS[0])
    one.pass_time(SHARE_PATIENCE_S)
    model = one.joined.worker.model.revisions[KEY]
    assert {pod.address: pod.limit for pod in model.pods.values()} == {f"{PODS[0]}:8012": -1, f"{PODS[1]}:8012": 0}
    one.joined.applied = lambda _effects: None
    one.joined.do(Probed(KEY, f"pod-{PODS[1]}"))
    one.joined.applied = one._applied
    one.joined.do(RevisionBroken(KEY, "its effects were lost"))
    one.turn()
    assert one.shares() == {f"{ip}:8012" for ip in PODS[:2]}
