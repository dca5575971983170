"""Which pods are whose: the cases of Knative's own tests, and what holds for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.control_plane.sources.knative.backends import of_endpoints, of_slices, ready_ips
from activator.control_plane.sources.knative.sharing import (
    SHARE_PATIENCE_S,
    UNKNOWN,
    SharedPods,
    assign_slice,
    infer_index,
    pick_indices,
    share_of,
)
from activator.runtime.clock import NEVER
from tests.control_plane.sources.knative.knative_fakes import endpoint, endpoint_slice, endpoints


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


def test_a_pod_that_does_not_answer_counts_until_others_have_for_a_while() -> None:
    shared = SharedPods()
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


@pytest.mark.parametrize(
    ("backends", "limit", "activators", "expected"),
    [(1, 10, 0, 10), (100, 10, 0, 1000), (10, 10, 5, 20), (10, 10, 200, 1), (0, 10, 200, 0), (10, 0, 1, 0)],
)
def test_a_share_of_the_service_as_a_whole(backends: int, limit: int, activators: int, expected: int) -> None:
    assert share_of(backends, limit, activators) == expected
