"""One object that all write: the case of many writers with a manager each, and the removal of rows under them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from activator.kubernetes.resources import CONFIG_MAPS
from activator.members.claims.errors import ClaimFailedError, ForeignObjectError
from activator.members.claims.table import Choice
from bench.claims.apply_by_index import ApplyByIndexStarter
from bench.claims.apply_by_member import ApplyByMemberStarter
from bench.claims.json_patch import JsonPatchStarter
from bench.claims.shared import MANAGER_LENGTH_MAX, REMOVE_ATTEMPTS_MAX, SHARED_LABEL, SharedStarter, manager_of
from bench.claims.update import UpdateStarter
from tests.kubernetes.fake_cluster import on_a_loop
from tests.kubernetes.fake_objects import RefusalError
from tests.members.claims.claim_world import (
    ON_EACH_SERVER,
    ClaimWorld,
    Json,
    MakeWorld,
    claim_all,
    claim_world,
    is_dense,
)

pytestmark = pytest.mark.deep  # of ways that no product has

SHARED: list[type[SharedStarter]] = [UpdateStarter, ApplyByMemberStarter, ApplyByIndexStarter, JsonPatchStarter]
EACH_SHARED = pytest.mark.parametrize("kind", SHARED)
CLIQUE = 18  # writers of one object


async def rows(world: ClaimWorld, name: str = "activator-members") -> list[Json]:
    data = (await world.thing(CONFIG_MAPS, name))["data"]
    return [json.loads(text) for key, text in data.items() if key != "format"]


def shared(world: ClaimWorld, number: int, kind: type[SharedStarter], group: str, name: str) -> SharedStarter:
    starter = world.starter(number, kind, Choice.RANDOM, group, object_name=name)
    assert isinstance(starter, SharedStarter)
    return starter


async def removed_at_last(starter: SharedStarter, uids: set[str]) -> int:
    while True:
        try:
            return await starter.remove_gone(uids)
        except ClaimFailedError:
            await asyncio.sleep(0.5)


@ON_EACH_SERVER
@on_a_loop
async def test_eighteen_writers_that_apply_their_own_row_while_rows_are_removed(
    tmp_path: Path, make_world: MakeWorld
) -> None:
    """The clique has members that are gone, and shares the object with another clique. Three members clean up while all
    eighteen write: their update meets newer versions, is read anew with a pause, and ends within its bound. On a busy
    server that bound is reached while the others still write; whoever cleans up tries again then."""
    async with make_world(tmp_path) as world:
        gone = [shared(world, number, ApplyByMemberStarter, "clique-1", "cliques") for number in range(100, 106)]
        other = [shared(world, number, ApplyByMemberStarter, "clique-2", "cliques") for number in range(200, 203)]
        await claim_all([*gone, *other])
        their_rows = [row for row in await rows(world, "cliques") if row["group"] == "clique-2"]
        uids = {one.holder.uid for one in [*gone, *other]}  # more than may be removed: the others' are not ours
        starters = [shared(world, number, ApplyByMemberStarter, "clique-1", "cliques") for number in range(CLIQUE)]
        claims = [asyncio.create_task(one.claim()) for one in starters]
        removed = await asyncio.gather(*(removed_at_last(starter, uids) for starter in starters[:3]))
        indexes = await asyncio.gather(*claims)
        assert sum(removed) == len(gone)
        left = await rows(world, "cliques")
        assert {row["uid"]: row["index"] for row in left if row["group"] == "clique-1"} == {
            one.holder.uid: index for one, index in zip(starters, indexes)
        }
        assert len(set(indexes)) == CLIQUE
        assert [row for row in left if row["group"] == "clique-2"] == their_rows
        thing = await world.thing(CONFIG_MAPS, "cliques")
        managers = Counter(
            entry["manager"]
            for entry in thing["metadata"]["managedFields"]
            if any(name != "f:format" for name in entry["fieldsV1"].get("f:data", {}))
        )
        assert managers == {manager_of(one.holder.name): 1 for one in [*starters, *other]}


@on_a_loop
async def test_only_rows_keyed_by_member_are_ever_double(tmp_path: Path) -> None:
    """All eighteen look before anybody writes: the API refuses nothing, so the members find out by reading back."""
    found = {}
    for kind in SHARED:
        async with claim_world(tmp_path) as world:
            starters = [world.starter(number, kind) for number in range(CLIQUE)]
            assert is_dense(await claim_all(starters))
            found[kind] = sum(one.duplicates for one in starters)
            conflicts = sum(one.conflicts for one in starters)
            assert conflicts >= found[kind]
    assert {kind for kind, duplicates in found.items() if duplicates} == {ApplyByMemberStarter}


@EACH_SHARED
@on_a_loop
async def test_rows_of_the_gone_are_removed_and_their_indexes_filled(tmp_path: Path, kind: type[SharedStarter]) -> None:
    async with claim_world(tmp_path) as world:
        starters = world.starters(4, kind)
        indexes = await claim_all(starters)
        keeper = starters[indexes.index(0)]
        assert isinstance(keeper, SharedStarter)
        assert await keeper.remove_gone({"uid-never-there"}) == 0
        gone = {one.holder.uid for one, index in zip(starters, indexes) if index in {1, 2}}
        assert await keeper.remove_gone(gone) == 2
        starters = [world.starter(number, kind) for number in (10, 11)]
        assert sorted(await claim_all(starters)) == [1, 2]
        assert is_dense([row["index"] for row in await rows(world)])


@EACH_SHARED
@on_a_loop
async def test_a_removal_under_writers_that_never_rest_ends_within_its_bound(
    tmp_path: Path, kind: type[SharedStarter]
) -> None:
    async with claim_world(tmp_path) as world:
        starter = world.starter(0, kind)
        assert isinstance(starter, SharedStarter)
        await starter.claim()
        world.server.refused = lambda verb, path: (
            RefusalError(409, "Conflict", "the object has been modified") if verb == "update" else None
        )
        with pytest.raises(ClaimFailedError, match=f"each of {REMOVE_ATTEMPTS_MAX} attempts"):
            await starter.remove_gone({starter.holder.uid})
        assert starter.calls["update"] >= REMOVE_ATTEMPTS_MAX == starter.calls["get"] - 1
        assert len(await rows(world)) == 1


@EACH_SHARED
@ON_EACH_SERVER
@on_a_loop
async def test_two_groups_in_one_object(tmp_path: Path, make_world: MakeWorld, kind: type[SharedStarter]) -> None:
    async with make_world(tmp_path) as world:
        one = [shared(world, number, kind, "a", "both") for number in range(4)]
        other = [shared(world, number, kind, "b", "both") for number in range(10, 14)]
        indexes = await claim_all([*one, *other])
        assert is_dense(indexes[:4]) and is_dense(indexes[4:])
        await one[0].release()
        assert Counter(row["group"] for row in await rows(world, "both")) == {"a": 3, "b": 4}


@EACH_SHARED
@on_a_loop
async def test_a_foreign_object_is_left_alone(tmp_path: Path, kind: type[SharedStarter]) -> None:
    async with claim_world(tmp_path) as world:
        foreign = {"metadata": {"name": "activator-members"}, "data": {"x": "1"}}
        world.server.create("configmaps", foreign)
        with pytest.raises(ForeignObjectError, match="belongs to others"):
            await world.starter(0, kind).claim()
        world.server.update("configmaps", "activator-members", {"metadata": {"labels": {SHARED_LABEL: "true"}}})
        with pytest.raises(ForeignObjectError, match="x is not a row"):
            await world.starter(0, kind).claim()
        assert world.server.collection("configmaps").objects["default", "activator-members"]["data"] == {"x": "1"}


def test_managers_are_within_the_bound_of_the_api_and_differ() -> None:
    names = ["pod", "p" * 118, "p" * 119, "p" * 200 + "a", "p" * 200 + "b"]
    managers = [manager_of(name) for name in names]
    assert len(set(managers)) == len(names) and max(map(len, managers)) <= MANAGER_LENGTH_MAX
