"""Which pods are whose: the cases of Knative's own tests, and what holds for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.control_plane.sources.knative.sharing import UNKNOWN, assign_slice, infer_index, pick_indices, share_of


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
    ("addresses", "own", "expected"),
    [
        ([], "10.0.0.1", UNKNOWN),
        (["10.0.0.2:8012"], "10.0.0.1", UNKNOWN),
        (["10.0.0.3:8012", "10.0.0.1:8012", "10.0.0.2:8012"], "10.0.0.2", 1),
        (["[2001:db8::2]:8012", "[2001:db8::1]:8012"], "2001:db8::2", 1),
        (["10.0.0.10:8012", "10.0.0.1:8012"], "10.0.0.1", 1),
    ],
)
def test_infer_index(addresses: list[str], own: str, expected: int) -> None:
    assert infer_index(addresses, own) == expected


@pytest.mark.parametrize(
    ("backends", "limit", "activators", "expected"),
    [(1, 10, 0, 10), (100, 10, 0, 1000), (10, 10, 5, 20), (10, 10, 200, 1), (0, 10, 200, 0), (10, 0, 1, 0)],
)
def test_a_share_of_the_service_as_a_whole(backends: int, limit: int, activators: int, expected: int) -> None:
    assert share_of(backends, limit, activators) == expected
