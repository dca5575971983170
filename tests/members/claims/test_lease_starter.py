"""Leases: what stands in them, what is never touched, names at their bounds, and answers that are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from activator.members.claims.errors import ClaimFailedError, ForeignObjectError, GroupNameError
from activator.members.claims.leases import LeaseStarter
from activator.members.claims.names import (
    GROUP_ANNOTATION,
    GROUP_LABEL,
    LABEL_LENGTH_MAX,
    NAME_LENGTH_MAX,
    SEATS_MAX,
    GroupNames,
)
from activator.members.claims.seats import Holder, lease_of
from activator.members.claims.table import Choice
from bench.claims.ways import DEFAULT_WAY, WAYS
from tests.kubernetes.fake_api_server import Fault
from tests.kubernetes.fake_cluster import on_a_loop
from tests.members.claims.claim_world import GROUP, claim_all, claim_world, holder, is_dense, until_indexes


@on_a_loop
async def test_what_a_lease_says(tmp_path: Path) -> None:
    async with claim_world(tmp_path) as world:
        await world.starter(7, origin="default/activator").claim()
        lease = world.leases["activator-0"]
        assert lease["spec"] == {"holderIdentity": "pod-7"}  # no time in it: nothing that could expire
        assert lease["metadata"]["labels"] == {"activator.dev/group": "activator"}
        assert lease["metadata"]["annotations"] == {
            "activator.dev/group-name": "activator",
            "activator.dev/uid": "uid-7",
            "activator.dev/address": "10.0.0.7:8020",
            "activator.dev/origin": "default/activator",
        }


@pytest.mark.parametrize("choice", Choice)
@on_a_loop
async def test_a_member_that_starts_alone_takes_two_calls(tmp_path: Path, choice: Choice) -> None:
    """Whichever the choice: the lowest free index is tried first."""
    async with claim_world(tmp_path) as world:
        for number in range(3):
            starter = world.starter(number, choice=choice)
            assert await starter.claim() == number
            assert starter.calls == {"list": 1, "create": 1} and (starter.rounds, starter.conflicts) == (1, 0)


@pytest.mark.parametrize("labels", [{}, {GROUP_LABEL: "another"}])
@on_a_loop
async def test_a_foreign_object_of_the_same_name_is_an_error_and_stays(tmp_path: Path, labels: dict[str, str]) -> None:
    async with claim_world(tmp_path) as world:
        foreign = {"metadata": {"name": "activator-0", "labels": labels}, "spec": {"holderIdentity": "somebody"}}
        made = world.server.create("leases", foreign)
        with pytest.raises(ForeignObjectError, match="default/activator-0 is no index of the group activator"):
            await world.starter(0).claim()
        assert world.leases == {"activator-0": made}
        assert "delete" not in world.server.verbs()


@on_a_loop
async def test_an_object_with_our_label_that_says_nothing_of_its_holder(tmp_path: Path) -> None:
    async with claim_world(tmp_path) as world:
        thing = lease_of(GroupNames(GROUP), 0, Holder("pod", "", ""), "")
        world.server.create("leases", thing)
        with pytest.raises(ForeignObjectError):
            await world.starter(0).claim()
        assert list(world.leases) == ["activator-0"]


@on_a_loop
async def test_two_groups_whose_names_begin_alike(tmp_path: Path) -> None:
    """`a-1` is index 1 of `a`; `a-1-0` is index 0 of `a-1`; and the label says which is whose."""
    async with claim_world(tmp_path) as world:
        one = [world.starter(number, group="a") for number in range(3)]
        other = [world.starter(number, group="a-1") for number in range(10, 13)]
        indexes = await claim_all([*one, *other])
        assert is_dense(indexes[:3]) and is_dense(indexes[3:])
        assert set(world.leases) == {"a-0", "a-1", "a-2", "a-1-0", "a-1-1", "a-1-2"}
    names = GroupNames("a")
    assert [names.index(name) for name in ("a-1", "a-1-0", "a-01", "a-", "a-x", "b-1", "a-10")] == [
        1, None, None, None, None, None, 10,
    ]  # fmt: skip


@pytest.mark.parametrize("length", [1, 58, 63, 64, 200, 248, 249, 250, 253])
@on_a_loop
async def test_group_names_up_to_their_bound(tmp_path: Path, length: int) -> None:
    """The fake refuses labels and names that are too long, as the API does."""
    group = ("ab-" * 100)[: length - 1] + "z"
    names = GroupNames(group)
    assert len(names.label) <= LABEL_LENGTH_MAX and len(names.lease(SEATS_MAX - 1)) <= NAME_LENGTH_MAX
    assert names.index(names.lease(SEATS_MAX - 1)) == SEATS_MAX - 1
    async with claim_world(tmp_path) as world:
        assert is_dense(await claim_all([world.starter(number, group=group) for number in range(3)]))
        (name, *_) = world.leases
        assert world.leases[name]["metadata"]["annotations"][GROUP_ANNOTATION] == group


@on_a_loop
async def test_long_groups_with_one_label_are_told_apart(tmp_path: Path) -> None:
    """Even if two digests were the same: the annotation has the whole name."""
    async with claim_world(tmp_path) as world:
        thing = lease_of(GroupNames(GROUP), 4, holder(4), "")
        thing["metadata"]["annotations"][GROUP_ANNOTATION] = "another"
        world.server.create("leases", thing)
        assert await world.starter(0).claim() == 0
        watcher = await world.roster(0)
        await world.starter(1).claim()
        await until_indexes(watcher, [0, 1])


@pytest.mark.parametrize("group", ["", "A", "a_b", "-a", "a-", "a..b", "a/b", "x" * 254, "a b"])
def test_what_is_no_name_of_a_group(group: str) -> None:
    with pytest.raises(GroupNameError, match="DNS subdomain"):
        GroupNames(group)


@on_a_loop
async def test_a_pod_with_another_address_replaces_its_lease(tmp_path: Path) -> None:
    """Its sandbox was made anew: the same UID, another IP."""
    async with claim_world(tmp_path) as world:
        await claim_all(world.starters(2))
        (index,) = [int(name[-1]) for name, uid in world.uids.items() if uid == "uid-1"]
        moved = Holder("pod-1", "uid-1", "10.9.9.9:8020")
        assert await world.starter(1, holder=moved).claim() == index
        annotations = world.leases[f"activator-{index}"]["metadata"]["annotations"]
        assert annotations["activator.dev/address"] == "10.9.9.9:8020" and len(world.leases) == 2


@on_a_loop
async def test_a_new_pod_of_an_old_name_is_another_holder(tmp_path: Path) -> None:
    async with claim_world(tmp_path) as world:
        await world.starter(0).claim()
        assert await world.starter(0, holder=Holder("pod-0", "uid-new", "10.0.0.9:8020")).claim() == 1


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.NO_ANSWER])
@on_a_loop
async def test_an_answer_that_is_lost_costs_no_second_lease(tmp_path: Path, fault: Fault) -> None:
    async with claim_world(tmp_path) as world:
        world.call_timeout_s = 0.2
        world.server.faults = [("create", fault)]
        assert await world.starter(0).claim() == 0
        assert list(world.leases) == ["activator-0"]


@on_a_loop
async def test_a_create_that_comes_late_is_removed_by_its_owner(tmp_path: Path) -> None:
    """It was given up and done after all, when its owner had claimed another index."""
    async with claim_world(tmp_path) as world:
        starter = world.starter(0)
        await starter.claim()
        world.server.create("leases", lease_of(GroupNames(GROUP), 3, holder(0), ""))
        watcher = await world.roster(1)
        await until_indexes(watcher, [0])  # of one holder the lowest counts
        assert await starter.claim() == 0
        assert list(world.leases) == ["activator-0"]


@on_a_loop
async def test_a_full_group(tmp_path: Path) -> None:
    async with claim_world(tmp_path) as world:
        for number in range(SEATS_MAX):
            world.server.create("leases", lease_of(GroupNames(GROUP), number, holder(number), ""))
        with pytest.raises(ClaimFailedError, match="all 1000 indexes"):
            await world.starter(SEATS_MAX + 1).claim()


@on_a_loop
async def test_holes_that_the_dead_left_hold_nobody_up(tmp_path: Path) -> None:
    """Somebody who was there before is above the holes, and does not move to fill them."""
    async with claim_world(tmp_path) as world:
        world.server.create("leases", lease_of(GroupNames(GROUP), 5, holder(50), ""))
        indexes = await claim_all([world.starter(number, choice=Choice.RANDOM) for number in range(3)])
        assert is_dense(indexes)
        assert world.uids["activator-5"] == "uid-50"


def test_the_kind_of_the_default_way() -> None:
    assert WAYS[DEFAULT_WAY] is LeaseStarter
