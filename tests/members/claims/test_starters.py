"""Members that start at once: unique dense indexes in each of the ways; stability; failures of every call."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from activator.kubernetes.errors import KubeError
from activator.kubernetes.resources import LEASES
from activator.members.claims.errors import ClaimFailedError, MembershipForbiddenError
from activator.members.claims.names import UID_ANNOTATION
from activator.members.claims.starter import CLAIM_FAILURES_MAX, RELEASE_ATTEMPTS_MAX, Starter
from activator.members.claims.table import Choice
from bench.claims.apply_by_member import ApplyByMemberStarter
from bench.claims.ways import DEFAULT_WAY, WAYS
from tests.kubernetes.fake_api_server import Fault
from tests.kubernetes.fake_cluster import on_a_loop, until
from tests.kubernetes.fake_objects import RefusalError
from tests.members.claims.claim_world import (
    GROUP,
    ON_EACH_SERVER,
    ClaimWorld,
    MakeWorld,
    claim_all,
    claim_world,
    is_dense,
)

# Beside the one that the product has: those that `python -m bench membership` compares with it.
EACH_WAY = pytest.mark.parametrize(
    "kind",
    [pytest.param(way, marks=() if name == DEFAULT_WAY else pytest.mark.deep, id=name) for name, way in WAYS.items()],
)
EACH_CHOICE = pytest.mark.parametrize("choice", Choice)


@pytest.mark.parametrize(("count", "choice"), [(18, Choice.LOWEST), (18, Choice.RANDOM), (100, Choice.RANDOM)])
@ON_EACH_SERVER
@on_a_loop
async def test_leases_of_many_that_start_at_once(
    tmp_path: Path, make_world: MakeWorld, count: int, choice: Choice
) -> None:
    async with make_world(tmp_path) as world:
        starters = world.starters(count, WAYS[DEFAULT_WAY], choice)
        indexes = await claim_all(starters)
        assert is_dense(indexes)
        assert set(await world.names(LEASES)) == {f"{GROUP}-{index}" for index in range(count)}
        for index, one in list(zip(indexes, starters))[::17]:
            lease = await world.thing(LEASES, f"{GROUP}-{index}")
            assert lease["metadata"]["annotations"][UID_ANNOTATION] == one.holder.uid
        assert all(one.duplicates == 0 for one in starters)


@EACH_WAY
@EACH_CHOICE
@on_a_loop
async def test_each_way_gives_unique_dense_indexes(tmp_path: Path, kind: type[Starter], choice: Choice) -> None:
    async with claim_world(tmp_path) as world:
        starters = world.starters(9, kind, choice)
        assert is_dense(await claim_all(starters))
        assert sum(one.calls.total() for one in starters) == sum(verb != "watch" for verb in world.server.verbs())


@EACH_WAY
@on_a_loop
async def test_who_is_there_does_not_move_and_who_comes_fills_the_holes(tmp_path: Path, kind: type[Starter]) -> None:
    async with claim_world(tmp_path) as world:
        first = [world.starter(number, kind) for number in range(4)]
        indexes = [await one.claim() for one in first]
        assert indexes == [0, 1, 2, 3]
        await first[1].release()
        writes = world.server.writes
        assert [await first[number].claim() for number in (0, 2, 3)] == [0, 2, 3]
        assert world.server.writes == writes
        assert await world.starter(9, kind).claim() == 1
        assert await world.starter(10, kind).claim() == 4


@EACH_WAY
@on_a_loop
async def test_a_container_that_restarts_in_its_pod_keeps_the_index(tmp_path: Path, kind: type[Starter]) -> None:
    async with claim_world(tmp_path) as world:
        starters = world.starters(3, kind)
        indexes = await claim_all(starters)
        await starters[indexes.index(0)].release()
        for choice in Choice:
            again = [world.starter(number, kind, choice) for number in range(3) if indexes[number] != 0]
            assert await claim_all(again) == [index for index in indexes if index != 0]


@EACH_WAY
@on_a_loop
async def test_release_leaves_nothing_and_is_done_once(tmp_path: Path, kind: type[Starter]) -> None:
    async with claim_world(tmp_path) as world:
        starter, other = world.starters(2, kind)
        await starter.release()  # nothing is there
        await claim_all([starter, other])
        await starter.release()
        await starter.release()
        assert await world.starter(5, kind).claim() in {0, 1}
        assert await other.claim() in {0, 1}


# --- failures -------------------------------------------------------------------------------------------------------

FAULTS: list[Fault | RefusalError] = [
    *Fault,
    RefusalError(500, "InternalError", "etcdserver: request timed out"),
    RefusalError(409, "Conflict", "Operation cannot be fulfilled"),
    RefusalError(429, "TooManyRequests", "slow down", retry_after_s=1),
    RefusalError(503, "ServiceUnavailable", "not ready"),
]


@EACH_WAY
@pytest.mark.parametrize("fault", FAULTS, ids=str)
@on_a_loop
async def test_a_call_that_fails_at_any_place(tmp_path: Path, kind: type[Starter], fault: Fault | RefusalError) -> None:
    """Each verb once, of one of three members that start at once: the indexes are dense all the same."""
    async with claim_world(tmp_path) as world:
        world.call_timeout_s = 0.3
        for verb in ("list", "get", "create", "update", "patch"):
            if isinstance(fault, Fault):
                world.server.faults.append((verb, fault))
            else:
                world.server.refusals.append((verb, fault))
        starters = world.starters(3, kind)
        indexes = await claim_all(starters)
        assert is_dense(indexes)
        assert [await one.claim() for one in starters] == indexes


@EACH_WAY
@pytest.mark.parametrize("fault", Fault)
@on_a_loop
async def test_a_release_whose_call_fails(tmp_path: Path, kind: type[Starter], fault: Fault) -> None:
    async with claim_world(tmp_path) as world:
        world.call_timeout_s = 0.3
        starter = world.starter(0, kind)
        await starter.claim()
        for verb in ("list", "get", "delete", "update", "patch"):
            world.server.faults.append((verb, fault))
        await starter.release()
        world.server.faults.clear()
        assert await world.starter(1, kind).claim() == 0


@EACH_WAY
@on_a_loop
async def test_an_api_that_is_away_ends_the_claim_within_bounds(tmp_path: Path, kind: type[Starter]) -> None:
    async with claim_world(tmp_path) as world:
        starter = world.starter(0, kind)
        world.server.refused = lambda verb, path: RefusalError(500, "InternalError", "away")
        with pytest.raises(ClaimFailedError, match=f"{CLAIM_FAILURES_MAX} calls in a row failed"):
            await starter.claim()
        assert starter.calls.total() == CLAIM_FAILURES_MAX
        with pytest.raises(ClaimFailedError, match=f"{RELEASE_ATTEMPTS_MAX} calls"):
            await starter.release()


@EACH_WAY
@pytest.mark.parametrize("verb", ["*", "write"])
@on_a_loop
async def test_without_the_right_the_claim_ends_at_once(tmp_path: Path, kind: type[Starter], verb: str) -> None:
    async with claim_world(tmp_path) as world:
        starter = world.starter(0, kind)
        refusal = RefusalError(403, "Forbidden", 'leases is forbidden: User "x" cannot list resource')
        world.server.refused = lambda asked, path: (
            refusal if verb == "*" or asked in {"create", "update", "patch"} else None
        )
        with pytest.raises(MembershipForbiddenError, match=r"rights: docs/membership\.md"):
            await starter.claim()
        assert starter.calls.total() <= 2


@EACH_WAY
@EACH_CHOICE
@on_a_loop
async def test_members_that_die_at_any_point_of_claiming(tmp_path: Path, kind: type[Starter], choice: Choice) -> None:
    """Of twelve that start at once each third one is killed, each some requests later than the one before.

    What the dead had claimed stays theirs, and everybody else has an index of its own.
    """
    async with claim_world(tmp_path) as world:
        starters = world.starters(12, kind, choice)
        tasks = [asyncio.create_task(starter.claim()) for starter in starters]
        for number in range(0, 12, 3):
            await until(partial(is_over, world, tasks, 4 * number + 1))
            tasks[number].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        living = [result for result in results if isinstance(result, int)]
        assert len(living) >= 8 and len(set(living)) == len(living)
        indexes = await claim_all([world.starter(number, kind, choice) for number in range(12)])  # the dead are back
        assert len(set(indexes)) == 12
        assert choice is Choice.RANDOM or is_dense(indexes)  # who died above a hole has kept its index
        if kind is not ApplyByMemberStarter:  # a row of the dead may have the index of a living one, and both move
            assert [index for index, was in zip(indexes, results) if isinstance(was, int)] == living


def is_over(world: ClaimWorld, tasks: list[asyncio.Task[int]], requests: int) -> bool:
    """So many requests have come, or no more will."""
    return len(world.server.requests) >= requests or all(task.done() for task in tasks)


def test_what_fails_in_the_library_never_travels_further() -> None:
    assert not issubclass(ClaimFailedError, KubeError)  # callers tell them apart: one was retried already
