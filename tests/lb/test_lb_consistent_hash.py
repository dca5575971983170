"""consistent-hash and the circle: whose a key is, what moves when pods come, go and fill; against full scans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.circle import PROBES, RoomCircle, point_of
from lb.hashing import hash_bytes, mix
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.testing import grant, release
from lb.tracker import READY, PodTracker
from tests.lb.lb_oracles import order_of

KEYS = [hash_bytes(b"client-%d" % number) for number in range(3_000)]


def table_of(addresses: list[str], limit: int = 1 << 20) -> TrackerTable:
    table = TrackerTable(create("consistent-hash", Rng(1)), 0)
    for address in addresses:
        assert table.add(address, address, limit, READY) is not None
    return table


def addresses(count: int, start: int = 0) -> list[str]:
    numbers = range(start, start + count)
    return [f"10.{number // 62_500}.{number // 250 % 250}.{number % 250}:8012" for number in numbers]


def homes(table: TrackerTable, keys: list[int] = KEYS) -> list[str]:
    found = []
    for key in keys:
        tracker = table.pick(key, 0.0)
        assert tracker is not None
        found.append(tracker.address)
    return found


def test_hashes_are_the_same_in_every_world() -> None:
    """Numbers written down once: another hash would move every key of every user."""
    assert [int(hash_bytes(text)) for text in (b"", b"a", b"10.0.0.1:8012", b"\xff" * 40)] == WRITTEN_HASHES
    assert [int(point_of(text)) for text in ("10.0.0.1:8012", "[::1]:80")] == WRITTEN_POINTS
    assert [int(mix(number)) for number in (0, 1, 0xFFFFFFFF)] == WRITTEN_MIXES
    assert homes(table_of(addresses(7)), [1, 2, 3]) == WRITTEN_HOMES


WRITTEN_HASHES = [169112704667792656, 2096966384096729060, 462854561837423059, 3371997827906454945]
WRITTEN_POINTS = [28250400502772, 88933176579263]
WRITTEN_MIXES = [0, 2261973619, 2578835075]
WRITTEN_HOMES = ["10.0.0.5:8012", "10.0.0.0:8012", "10.0.0.0:8012"]


@given(st.binary(max_size=80))
def test_a_hash_is_a_key(data: bytes) -> None:
    assert 0 < hash_bytes(data) < 1 << 62


def test_each_bit_of_a_hash_is_a_coin() -> None:
    """20,000 similar texts: each bit set in 10,000 ± 500, which is 7 standard deviations."""
    found = [int(hash_bytes(b"user-%d" % number)) for number in range(20_000)]
    for bit in range(62):
        assert abs(sum((one >> bit) & 1 for one in found) - 10_000) < 500
    assert len(set(found)) == 20_000


@pytest.mark.parametrize("count", [1, 2, 3, 10, 100])
def test_the_pod_is_the_first_in_the_keys_order(count: int) -> None:
    table = table_of(addresses(count))
    pods = table.slots[:count]
    for key in KEYS[:300]:
        assert table.pick(key, 0.0) is order_of(key, pods)[0]


@pytest.mark.parametrize("count", [2, 10, 60])
def test_a_pod_that_comes_takes_its_share_and_moves_nothing_else(count: int) -> None:
    """Its share is 1.25 / (n + 1) at most on average; what it does not take stays where it was."""
    everybody = addresses(count + 1)
    for newcomer in range(0, count + 1, max(count // 4, 1)):
        without = table_of([one for one in everybody if one != everybody[newcomer]])
        before = homes(without)
        without.add("new", everybody[newcomer], 1 << 20, READY)
        after = homes(without)
        moved = [(old, new) for old, new in zip(before, after) if old != new]
        assert all(new == everybody[newcomer] for _, new in moved)
        # The share has a hard bound only on average: PROBES / (PROBES - 1), and 6 standard deviations of the count.
        share = 2.0 / (count + 1)
        assert len(moved) <= share * len(KEYS) + 6 * (share * len(KEYS)) ** 0.5


def test_a_pod_that_goes_leaves_its_keys_and_no_others() -> None:
    table = table_of(addresses(50))
    before = homes(table)
    gone = table.slots[17].address
    table.drain(table.slots[17])
    after = homes(table)
    assert all(old == new for old, new in zip(before, after) if old != gone)
    heirs = {new for old, new in zip(before, after) if old == gone}
    assert len(heirs) > 10  # its keys are spread, not heaped on one neighbour
    table.add("back", gone, 1 << 20, READY)
    assert homes(table) == before


def test_a_full_pods_keys_spill_each_to_its_own_next_and_come_back() -> None:
    table = table_of(addresses(20), limit=2)
    key = KEYS[0]
    order = order_of(key, table.slots[:20])
    picked = [grant(table, key) for _ in range(40)]
    assert picked == [tracker for tracker in order for _ in range(2)]
    assert table.pick(key, 0.0) is None
    for place in (7, 3):
        release(table, order[place])
        assert table.pick(key, 0.0) is order[place]


def test_neither_the_order_of_arrival_nor_the_size_of_the_table_matters() -> None:
    forwards, backwards = table_of(addresses(300)), table_of(addresses(300)[::-1])
    big = TrackerTable(create("consistent-hash", Rng(9)), 20_000)
    for address in addresses(300):
        big.add(address, address, 5, READY)
    assert homes(forwards) == homes(backwards) == homes(big)


@pytest.mark.parametrize("count", [10, 1_000])
def test_shares_are_even(count: int) -> None:
    """No pod's share is far above PROBES / (PROBES - 1) of the mean. Fixed addresses and keys: nothing is by chance."""
    table = table_of(addresses(count))
    counted = dict.fromkeys(addresses(count), 0)
    draws = 40 * count if count > 100 else 20_000
    for address in homes(table, [hash_bytes(b"k%d" % number) for number in range(draws)]):
        counted[address] += 1
    mean = draws / count
    most = PROBES / (PROBES - 1) * mean
    assert max(counted.values()) < most * 1.15 + 6 * most**0.5
    assert len([one for one in counted.values() if one < mean / 4]) < count * 0.12 + 1


def test_a_request_without_a_key_goes_to_the_less_loaded_of_two() -> None:
    table = table_of(addresses(2))
    table.reserve(table.slots[0])
    assert {table.pick(0, 0.0) for _ in range(50)} == {table.slots[1]}


def test_two_pods_with_one_point() -> None:
    """As of two addresses with one hash: both are found, the lower slot first."""
    circle = RoomCircle()
    circle.resize(4)
    pods = [PodTracker(slot, 1) for slot in range(2)]
    for pod in reversed(pods):
        pod.address = "10.0.0.1:80"
        circle.insert(pod)
    assert circle.members() == pods
    for pod in pods:
        assert circle.nearest(5) is pod
        circle.remove(pod)
    assert circle.nearest(5) is None


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=120),
    st.lists(st.integers(1, (1 << 62) - 1), min_size=1, max_size=4),
    st.sampled_from((1, 64, 4_096)),
)
def test_the_circle_finds_what_a_scan_finds(steps: list[tuple[bool, int]], keys: list[int], slots: int) -> None:
    """With few positions pods share them, with many most are empty."""
    circle = RoomCircle()
    circle.resize(slots)
    pods = [PodTracker(slot, 0) for slot in range(61)]
    for tracker, address in zip(pods, addresses(61)):
        tracker.address = address
    inside: set[int] = set()
    for comes, slot in steps:
        if comes and slot not in inside:
            circle.insert(pods[slot])
            inside.add(slot)
        elif not comes and slot in inside:
            circle.remove(pods[slot])
            inside.remove(slot)
        for key in keys:
            found = circle.nearest(key)
            expected = order_of(key, [pods[one] for one in inside])
            assert found is (expected[0] if expected else None)
    assert {int(tracker.slot) for tracker in circle.members() or []} == inside
    circle.resize(2 * slots + 70)
    assert {int(tracker.slot) for tracker in circle.members() or []} == inside
