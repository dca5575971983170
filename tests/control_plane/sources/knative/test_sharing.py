"""Which pods are whose: the cases of Knative's own tests, and what holds for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.control_plane.sources.cluster.backends import Backend, of_endpoints, of_slices
from activator.control_plane.sources.knative.shared_pods import SharedPods
from activator.control_plane.sources.knative.sharing import (
    SHARE_PATIENCE_S,
    UNKNOWN,
    PublicAddresses,
    assign_slice,
    infer_index,
    pick_indices,
    share_of,
)
from activator.runtime.clock import NEVER
from tests.control_plane.sources.knative.knative_fakes import endpoint, endpoint_slice, endpoints
from tests.control_plane.sources.knative.whole_reading import WholeSharedPods, ready_ips


@pytest.mark.parametrize(
    ("pods", "index", "activators", "expected"),
    [(2, 2, 3, (0, 1, 0)), (10, 1, 3, (3, 6, 1)), (150, 4, 5, (120, 150, 0))],
)
def test_pick_indices(pods: int, index: int, activators: int, expected: tuple[int, int, int]) -> None:
    assert pick_indices(pods, index, activators) == expected


def pods(count: int) -> list[str]:
    return [f"ip{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("count", "index", "activators", "expected"),
    [
        (6, 0, 4, ["ip0", "ip4"]),
        (6, 1, 4, ["ip1", "ip5"]),
        (6, 2, 4, ["ip2"]),
        (3, 0, 2, ["ip0", "ip2"]),
        (3, 1, 2, ["ip1"]),
        (0, 0, 4, []),
        (1, 3, 4, ["ip0"]),
        (4, UNKNOWN, 2, ["ip0", "ip1", "ip2", "ip3"]),
        (4, 0, 1, ["ip0", "ip1", "ip2", "ip3"]),
        (2, 2, 3, ["ip0"]),
    ],
)
def test_assign_slice(count: int, index: int, activators: int, expected: list[str]) -> None:
    assert assign_slice(pods(count), index, activators) == expected


def test_five_pods_for_two() -> None:
    assert [len(assign_slice(pods(5), index, 2)) for index in (0, 1)] == [3, 2]


@given(count=st.integers(2, 200), activators=st.integers(2, 30))
def test_every_pod_has_an_activator_and_no_two_where_there_are_enough_pods(count: int, activators: int) -> None:
    taken = [assign_slice(pods(count), index, activators) for index in range(activators)]
    together = [pod for mine in taken for pod in mine]
    assert set(together) == set(pods(count))
    if activators <= count:
        assert len(together) == count
        assert max(map(len, taken)) - min(map(len, taken)) <= 1
    else:
        assert all(len(mine) == 1 for mine in taken)


def test_addresses_are_sorted_as_strings() -> None:
    assert assign_slice(["10.0.0.9:8012", "10.0.0.10:8012"], 0, 2) == ["10.0.0.10:8012"]


@pytest.mark.parametrize(
    ("ips", "own", "expected"),
    [
        ([], "10.0.0.1", (UNKNOWN, 0)),
        (["10.0.0.2"], "10.0.0.1", (UNKNOWN, 1)),
        (["10.0.0.3", "10.0.0.1", "10.0.0.2"], "10.0.0.2", (1, 3)),
        (["10.0.0.1", "10.0.0.1", "10.0.0.2"], "10.0.0.2", (1, 2)),
        (["2001:db8::2", "2001:db8::1"], "2001:db8::2", (1, 2)),
        (["2001:db8::10", "2001:db8::1"], "2001:db8::1", (0, 2)),
        (["2001:db8:0:0::2", "2001:db8::1"], "2001:db8::2", (0, 2)),
    ],
)
def test_infer_index(ips: list[str], own: str, expected: tuple[int, int]) -> None:
    assert infer_index(ips, own) == expected


# What Go's sort of the same strings gives: of activators their IP addresses (sets.List in throttler.go,
# handlePubEpsUpdate), of pods what net.JoinHostPort makes of address and port (endpointsToDests in helpers.go).
ACTIVATORS = ["10.0.0.1", "10.0.0.10", "10.0.0.2", "2001:db8::1", "2001:db8::10", "2001:db8::2"]
PODS = [
    "10.0.0.10:8012",
    "10.0.0.1:8012",
    "10.0.0.2:8012",
    "[2001:db8::10]:8012",
    "[2001:db8::1]:8012",
    "[2001:db8::2]:8012",
]


@given(st.permutations(ACTIVATORS), st.permutations(PODS))
def test_beside_activators_in_go_the_order_is_theirs(activators: list[str], pods: list[str]) -> None:
    for number, (own, pod) in enumerate(zip(ACTIVATORS, PODS)):
        index, count = infer_index(activators, own)
        assert (index, count) == (number, 6)
        assert assign_slice(pods, index, count) == [pod]


def test_endpoints_of_both_families_and_forms_are_the_addresses_that_go_compares() -> None:
    ips = ("10.0.0.2", "10.0.0.10", "10.0.0.1")
    whole = of_endpoints([endpoints(*ips, not_ready=("10.0.0.3",))], "http")
    four, six = endpoint_slice(*map(endpoint, ips)), endpoint_slice(endpoint("2001:db8::1"), family="IPv6")
    assert ready_ips(whole) == set(ips)
    assert ready_ips(of_slices([four, six], "http")) == {*ips, "2001:db8::1"}
    assert "[2001:db8::1]:8012" in {one.address for one in of_slices([four, six], "http")}


# --- which pods are shared out ---


def addresses(*names: str) -> dict[str, str]:
    return {name: f"{name}:8012" for name in names}


class Shared(SharedPods):
    """One activator: what is shared out is ours."""

    def of(self, listed: dict[str, str], proven: set[str], now_s: float) -> list[str]:
        gone = dict.fromkeys([identity for identity in self._listed if identity not in listed])
        self.update({**gone, **listed}, proven, now_s, 0, 1)
        return [address for address in listed.values() if self.is_ours(address)]


@pytest.mark.parametrize("shared", [Shared(), WholeSharedPods()], ids=["kept", "whole"])
def test_a_pod_that_does_not_answer_counts_until_others_have_for_a_while(shared: Shared | WholeSharedPods) -> None:
    pods = addresses("a", "b", "c")
    assert shared.of(pods, set(), 0.0) == list(pods.values())
    assert shared.of(pods, set(), 1000.0) == list(pods.values()) and shared.due_s == NEVER, "nobody is better off"
    assert shared.of(pods, {"a"}, 1000.0) == list(pods.values())
    assert (shared.due_s, shared.leaves_out) == (1000.0 + SHARE_PATIENCE_S, False)
    pods = addresses("a", "b", "c", "d")
    assert len(shared.of(pods, {"a", "c"}, 1001.0)) == 4
    assert shared.of(pods, {"a", "c"}, 1000.0 + SHARE_PATIENCE_S) == ["a:8012", "c:8012", "d:8012"]
    assert (shared.due_s, shared.leaves_out) == (1001.0 + SHARE_PATIENCE_S, True), "d has come later"
    assert shared.of(pods, {"a", "c"}, 1001.0 + SHARE_PATIENCE_S) == ["a:8012", "c:8012"]
    assert shared.of(pods, {"a", "b", "c"}, 1010.0) == ["a:8012", "b:8012", "c:8012"], "it answers"
    assert shared.of(pods, {"b"}, 1011.0) == ["a:8012", "b:8012", "c:8012"], "they did a moment ago"
    assert len(shared.of(pods, set(), 1020.0)) == 4, "nobody answers: all are as good as before"
    assert len(shared.of(pods, {"c"}, 1021.0)) == 4
    assert shared.of(pods, {"c"}, 1021.0 + SHARE_PATIENCE_S) == ["c:8012"], "and not as good for longer than before"


looks = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 11), st.integers(0, 9), max_size=12),  # pods, and their addresses
        st.sets(st.integers(0, 11)),  # those that have answered
        st.sampled_from([0.0, 1.0, SHARE_PATIENCE_S]),  # passes
        st.booleans(),  # all are looked at
    ),
    min_size=5,
    max_size=20,
)


@given(place=st.sampled_from([(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3), (3, 4)]), looks=looks)
def test_a_share_that_is_kept_is_that_of_all_pods(
    place: tuple[int, int], looks: list[tuple[dict[int, int], set[int], float, bool]]
) -> None:
    kept, whole = SharedPods(), WholeSharedPods()
    index, activators = place
    before: dict[str, str] = {}
    ours_before: set[str] = set()
    proven_before: set[str] = set()
    now_s = 0.0
    for pods, answering, passed_s, all_of_them in looks:
        now_s += passed_s
        listed = {f"p{pod}": f"10.0.0.{address}:8012" for pod, address in pods.items()}
        proven = {f"p{pod}" for pod in answering}
        touched = {one for one in {*before, *listed} if before.get(one) != listed.get(one)} | (proven ^ proven_before)
        doubtful = {*listed.values(), *before.values()}
        if all_of_them:
            kept.update_all(listed, proven, now_s, index, activators)
        else:
            doubtful = kept.update({one: listed.get(one) for one in touched}, proven, now_s, index, activators)
        expected = set(assign_slice(list(set(whole.of(listed, proven, now_s))), index, activators))
        ours = {address for address in [f"10.0.0.{number}:8012" for number in range(10)] if kept.is_ours(address)}
        assert ours == expected
        assert (kept.due_s, kept.leaves_out) == (whole.due_s, whole.leaves_out)
        assert ours ^ ours_before <= doubtful
        before, ours_before, proven_before = listed, ours, proven


def test_pods_that_come_and_go_while_none_answers_leave_nothing_behind() -> None:
    shared = SharedPods()
    for number in range(10_000):
        shared.update({f"p{number}": "10.0.0.1:80", f"p{number - 1}": None}, set(), float(number), 0, 1)
    assert len(shared._patience) < 200


def test_a_block_moves_by_the_pods_that_change_hands() -> None:
    """One more of 3,000 pods, for the second of three activators: nobody else is looked at."""
    shared = SharedPods()
    listed = {f"p{number}": f"10.0.{number // 250}.{number % 250}:80" for number in range(3_000)}
    shared.update_all(listed, set(), 0.0, 1, 3)
    for number in range(3):
        assert len(shared.update({f"new{number}": f"10.0.0.0:{number}"}, set(), 0.0, 1, 3)) < 10
    assert len(shared.update({"p1500": None}, set(), 0.0, 1, 3)) < 10


ips = st.sampled_from(["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8:0::1", "2001:db8::2"])


told = st.none() | st.tuples(ips, st.booleans(), st.booleans())


@given(own=ips, events=st.lists(st.tuples(st.integers(0, 4), told), max_size=20))
def test_the_place_that_is_kept_is_that_among_all_endpoints(
    own: str, events: list[tuple[int, tuple[str, bool, bool] | None]]
) -> None:
    kept = PublicAddresses(own)
    known: dict[str, Backend] = {}
    for number, told in events:
        identity = f"e{number}"
        if told is None:
            known.pop(identity, None)
        else:
            ip, ready, terminating = told
            known[identity] = Backend(identity, f"[{ip}]:80" if ":" in ip else f"{ip}:80", ready, terminating)
        kept.read({identity: known.get(identity)})
        assert kept.place() == infer_index(ready_ips(list(known.values())), own)


@pytest.mark.parametrize(
    ("backends", "limit", "activators", "expected"),
    [(1, 10, 0, 10), (100, 10, 0, 1000), (10, 10, 5, 20), (10, 10, 200, 1), (0, 10, 200, 0), (10, 0, 1, 0)],
)
def test_a_share_of_the_service_as_a_whole(backends: int, limit: int, activators: int, expected: int) -> None:
    assert share_of(backends, limit, activators) == expected
