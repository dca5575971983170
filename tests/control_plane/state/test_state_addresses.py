"""One pod for each address: whoever came last has it, and what is in flight at the others counts for its limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from activator.control_plane.state.address_index import AddressIndex
from activator.control_plane.state.health import PUSH_PROVISIONAL_S
from activator.messages import (
    PUSH,
    Change,
    ObservedPod,
    PlacePod,
    PodGone,
    PodsListed,
    PodStatus,
    Probed,
    RevisionBroken,
    RevisionSet,
    SlotDrained,
    StartProbe,
    Sweep,
)
from lb.tracker import DRAINING, EMPTY, PENDING, READY
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, Pool, seen
from tests.data_plane.throttle.throttle_fakes import Request

HERE, THERE = "10.0.9.1:80", "10.0.9.2:80"
PODS = ("a", "b", "c", "d")
LIMIT = SPEC.container_concurrency


def at(identity: str, address: str = HERE, status: PodStatus = PodStatus.READY, **more: object) -> ObservedPod:
    return seen(identity, status, address=address, **more)


def holders(joined: Joined) -> dict[str, str]:
    """The pod that has each address, by the table; never two."""
    table = joined.throttler().table
    table.check_invariants()
    found: dict[str, str] = {}
    for tracker in table.slots[: table.length]:
        if tracker.state not in {EMPTY, DRAINING}:
            assert tracker.address not in found, "two pods have one address"
            found[tracker.address] = tracker.identity
    return found


def in_flight(joined: Joined, address: str = HERE) -> int:
    table = joined.throttler().table
    return sum(int(tracker.in_flight) for tracker in table.slots[: table.length] if tracker.address == address)


def audited(joined: Joined) -> dict[str, int]:
    joined.tables._restructured.add(KEY)
    joined.auditor.check(joined.throttler())
    joined.do()
    return joined.worker.mismatch_totals


class World(Joined):
    """Beside the worker a plain list of who came to an address when, and of what is said of each."""

    def __init__(self) -> None:
        super().__init__()
        self.came: dict[str, list[str]] = {HERE: [], THERE: []}
        self.said: dict[str, tuple[str, dict[str, PodStatus]]] = {}
        self.requests: list[Request] = []
        self.do(RevisionSet(SPEC))

    def says(self, source: str, pod: str, address: str, status: PodStatus) -> ObservedPod:
        where, claims = self.said.get(pod, ("", {}))
        if where != address:
            self.leaves(pod)
            self.came[address].append(pod)
            claims = {}
        self.said[pod] = (address, {**claims, source: status})
        return at(pod, address, status, source=source)

    def takes_back(self, source: str, pod: str) -> PodGone:
        where, claims = self.said.get(pod, ("", {}))
        claims = {one: status for one, status in claims.items() if one != source}
        if claims:
            self.said[pod] = (where, claims)
        else:
            self.leaves(pod)
        return PodGone(KEY, source, pod)

    def leaves(self, pod: str) -> None:
        where, _ = self.said.pop(pod, ("", {}))
        if where:
            self.came[where].remove(pod)

    def expected(self) -> dict[str, str]:
        """The last that came to it and is not about to go."""
        staying = {
            address: [pod for pod in pods if PodStatus.DRAINING not in self.said[pod][1].values()]
            for address, pods in self.came.items()
        }
        return {address: pods[-1] for address, pods in staying.items() if pods}

    def settle(self) -> None:
        while drained := [event for event in self.heard.events if event[0] == "drained"]:
            self.heard.events.clear()
            self.do(*(SlotDrained(KEY, int(slot), int(generation)) for _, slot, generation in drained))
        for order in self.probes:
            if isinstance(order, StartProbe):
                self.worker.submit(Probed(KEY, order.identity, order.address))
        self.probes.clear()
        self.do()


STEPS = st.tuples(
    st.sampled_from(["says", "says", "says", "takes back", "lists", "asks", "asks", "ends", "breaks"]),
    st.sampled_from(["list", "watch"]),
    st.sampled_from(PODS),
    st.sampled_from([HERE, HERE, THERE]),
    st.sampled_from(list(PodStatus)),
    st.integers(0, 99),
)


@given(st.lists(STEPS, max_size=40))
def test_in_any_order_an_address_has_one_pod_the_last_that_came_and_never_more_than_its_limit(
    steps: list[tuple[str, str, str, str, PodStatus, int]],
) -> None:
    world = World()
    for what, source, pod, address, status, number in steps:
        if what == "says":
            world.do(world.says(source, pod, address, status))
        elif what == "takes back":
            world.do(world.takes_back(source, pod))
        elif what == "lists":  # several at once, in this order; the others of the source are gone
            listed = PODS[number % 4 :] + PODS[: number % 4]
            listed = listed[: 1 + number % 3]
            told = tuple(world.says(source, one, address, status) for one in listed)
            for other in PODS:
                if other not in listed and source in world.said.get(other, ("", {}))[1]:
                    world.takes_back(source, other)
            world.do(PodsListed(KEY, source, told))
        elif what == "asks":
            world.requests.append(world.ask())
        elif what == "breaks":
            world.do(RevisionBroken(KEY, "told so"))
            world.clock.pass_time(100.0)
            world.do()
        else:
            held = [one for one in world.requests if one.lease is not None]
            if held:
                held[number % len(held)].release()
        world.settle()
        assert holders(world) == world.expected()
        for one in (HERE, THERE):
            assert in_flight(world, one) <= LIMIT
        assert not world.throttler().is_stalled()
        assert audited(world) == {}
        assert world.worker.illegal_totals == {}


def both(joined: Joined) -> list[Request]:
    """A list has the address, and the pod there reports itself under another name while it has a request."""
    joined.do(RevisionSet(SPEC), at(HERE, source="static"))
    requests = [joined.ask()]
    joined.do(at("uid-1", source=PUSH))
    return requests


def test_a_listed_address_whose_pod_reports_itself_under_another_name_is_one_pod() -> None:
    joined = Joined()
    requests = both(joined)
    assert joined.slots() == {HERE: "draining", "uid-1": "ready"}
    requests.extend(joined.ask() for _ in range(3))
    assert (in_flight(joined), [one.ends for one in requests]) == (LIMIT, [["granted"]] * 2 + [[]] * 2)
    requests[0].release()
    assert (in_flight(joined), requests[2].ends, requests[3].ends) == (LIMIT, ["granted"], [])
    for _ in range(3):  # what its source says again changes nothing
        joined.do(at(HERE, source="static"), PodsListed(KEY, "static", (at(HERE, source="static"),)))
    assert holders(joined) == {HERE: "uid-1"}
    requests[1].release()
    assert requests[3].ends == ["granted"]
    assert audited(joined) == {}


def test_the_older_has_its_address_again_when_the_newer_is_gone_and_is_asked_first() -> None:
    joined = Joined()
    requests = both(joined)
    requests.append(joined.ask())
    for _ in range(2):
        joined.clock.pass_time(PUSH_PROVISIONAL_S / 2)
        joined.do(at("uid-1", source=PUSH), Sweep(KEY))
    assert joined.slots() == {HERE: "pending", "uid-1": "draining"}
    assert joined.probes == [StartProbe(KEY, HERE, HERE)]
    joined.do(Probed(KEY, HERE, HERE))
    third = joined.ask()
    assert (in_flight(joined), third.ends) == (LIMIT, []), "one in the slot that it came back to, one in the newer's"
    requests[1].release()
    assert third.ends == ["granted"]
    assert audited(joined) == {}


@pytest.mark.parametrize("end", ["gone", "draining", "moved"])
def test_however_the_newer_leaves_the_older_comes_back(end: str) -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), at("old"), at("new"))
    assert holders(joined) == {HERE: "new"}
    changes: dict[str, Change] = {
        "gone": PodGone(KEY, "list", "new"),
        "draining": at("new", status=PodStatus.DRAINING),
        "moved": at("new", THERE),
    }
    joined.do(changes[end])
    joined.do(Probed(KEY, "old"))
    assert holders(joined)[HERE] == "old"
    assert joined.slots()["old"] == "ready"
    if end == "draining":
        joined.do(at("new"))
        assert holders(joined) == {HERE: "new"}, "it flaps: it came last all the same"


def test_a_view_from_before_the_address_was_given_on_takes_nothing_away_that_drains() -> None:
    """The new pod reports itself first; then a list that lags behind has the former one, which terminates."""
    joined = Joined()
    joined.do(RevisionSet(SPEC), at("new", source=PUSH))
    joined.do(PodsListed(KEY, "list", (at("old", status=PodStatus.DRAINING),)))
    assert holders(joined) == {HERE: "new"}
    joined.do(PodsListed(KEY, "list", (at("new"),)))
    assert (holders(joined), joined.slots()) == ({HERE: "new"}, {"new": "ready"})


def test_a_quarantine_ends_with_no_change_of_names() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), at("old"))
    joined.do(joined.refused("old", True))
    joined.do(at("new"), PodGone(KEY, "list", "new"))
    assert joined.slots() == {"old": "quarantined"}


def test_names_of_one_list_that_have_one_address_are_one_pod_the_last() -> None:
    joined = Joined()
    pods = (at("a"), at("b"), at("c", THERE), at("d"))
    for _ in range(3):
        joined.do(RevisionSet(SPEC), PodsListed(KEY, "list", pods))
        assert holders(joined) == {HERE: "d", THERE: "c"}
    assert joined.hooks.drained == [], "those that are ousted at once have had no slot"
    joined.do(PodsListed(KEY, "list", pods[:3]))
    joined.do(Probed(KEY, "b"))
    assert holders(joined) == {HERE: "b", THERE: "c"}


def test_two_revisions_may_have_one_address_each_with_its_own_limit() -> None:
    joined = Joined()
    other = "ns/other"
    joined.do(RevisionSet(SPEC), RevisionSet(replace(SPEC, key=other)), at("a"), at("b", key=other))
    assert joined.slots() == {"a": "ready"} and joined.slots(other) == {"b": "ready"}
    requests = [joined.ask(key) for key in (KEY, other) for _ in range(LIMIT)]
    assert [one.ends for one in requests] == [["granted"]] * 2 * LIMIT


def test_connections_of_the_older_are_watched_where_it_has_requests() -> None:
    joined = Joined()
    requests = both(joined)
    assert requests[0].lease is not None
    pool = requests[0].lease.tracker.attachment
    assert isinstance(pool, Pool) and pool.closed and pool.watched == 1
    joined.do(at("uid-2", source=PUSH))
    assert pool.watched == 2
    requests[0].release()
    joined.do(at("uid-3", source=PUSH))
    assert pool.watched == 2, "nothing is left to lose"


def test_the_data_plane_drains_an_older_pod_by_itself() -> None:
    """Whatever it is sent."""
    joined = Joined()
    joined.do(RevisionSet(SPEC))
    joined.tables.apply([PlacePod(KEY, name, HERE, READY, LIMIT, 1, 1) for name in ("a", "b", "a")])
    assert holders(joined) == {HERE: "a"}
    joined.tables.apply([PlacePod(KEY, "b", HERE, PENDING, LIMIT, 1, 1)])
    assert holders(joined) == {HERE: "b"}
    assert (joined.hooks.failures, joined.tables.distrusted) == ([], {})


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(PODS), st.sampled_from([HERE, THERE])), max_size=40))
def test_the_index_is_a_list_for_each_address(steps: list[tuple[bool, str, str]]) -> None:
    index = AddressIndex()
    plain: dict[str, list[str]] = {HERE: [], THERE: []}
    for arrives, pod, address in steps:
        if arrives:
            index.add(pod, address)
            if pod not in plain[address]:
                plain[address].append(pod)
        else:
            index.remove(pod, address)
            if pod in plain[address]:
                plain[address].remove(pod)
        assert {one: list(index.at(one)) for one in plain} == plain
        assert {one: index.is_free(one) for one in plain} == {one: len(pods) == 0 for one, pods in plain.items()}
        assert {one: index.is_shared(one) for one in plain} == {one: len(pods) > 1 for one, pods in plain.items()}
