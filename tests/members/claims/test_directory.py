"""The list that the members share: what it tells, what it keeps while the API is away, and who may delete what."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path

import pytest

from activator.kubernetes.errors import KubeError
from activator.kubernetes.listing import Pause
from activator.kubernetes.resources import LEASES
from activator.members.claims.errors import MembershipForbiddenError
from activator.members.claims.names import GroupNames
from activator.members.claims.seats import Holder, lease_of
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
    holder,
    until_indexes,
)


@ON_EACH_SERVER
@on_a_loop
async def test_who_comes_and_goes(tmp_path: Path, make_world: MakeWorld) -> None:
    async with make_world(tmp_path) as world:
        watcher = await world.roster(0)
        await until(lambda: watcher.told == [()])
        for number in range(3):
            await world.starter(number).claim()
        await until_indexes(watcher, [0, 1, 2])
        assert watcher.roster.synced and watcher.names == ["pod-0", "pod-1", "pod-2"]
        seat = watcher.told[-1][1]
        lease = await world.thing(LEASES, "activator-1")
        assert seat.holder == holder(1) and seat.lease_uid == lease["metadata"]["uid"]
        await world.starter(1).release()
        await until_indexes(watcher, [0, 2])
        await world.starter(8).claim()
        await until_indexes(watcher, [0, 1, 2])
        assert watcher.names == ["pod-0", "pod-8", "pod-2"] and watcher.losses == 0
        assert all(before != after for before, after in zip(watcher.told, watcher.told[1:]))


@on_a_loop
async def test_a_list_is_told_at_once(tmp_path: Path) -> None:
    """Not seat by seat: nobody acts on a part of the group."""
    async with claim_world(tmp_path) as world:
        await claim_all(world.starters(12))
        watcher = await world.roster(3)
        await until(lambda: watcher.told)
        assert watcher.indexes == list(range(12)) and len(watcher.told) == 1


@on_a_loop
async def test_nothing_is_written_in_the_steady_state(tmp_path: Path) -> None:
    """An hour on the clock of the members, with comparisons and with watches that end and begin anew."""
    async with claim_world(tmp_path) as world:
        await claim_all(world.starters(4))
        watchers = [await world.roster(number, pause=world_pause(world)) for number in range(4)]
        for watcher in watchers:
            await until_indexes(watcher, [0, 1, 2, 3])
        writes, verbs = world.server.writes, Counter(world.server.verbs())
        assert writes >= 4
        until_s = world.clock.now() + 3600.0
        await until(lambda: world.clock.now() >= until_s)
        asked = Counter(world.server.verbs()) - verbs
        assert world.server.writes == writes and asked.keys() == {"list", "watch"}
        assert all(len(watcher.told) == 1 for watcher in watchers)


@on_a_loop
async def test_an_api_that_is_away_changes_nothing(tmp_path: Path) -> None:
    """Ten minutes, in which its clock goes on; then somebody has gone."""
    async with claim_world(tmp_path) as world:
        for starter in world.starters(3):
            await starter.claim()
        watcher = await world.roster(0, pause=world_pause(world))
        await until_indexes(watcher, [0, 1, 2])
        until_s = world.clock.now() + 600.0
        await world.server.stop()
        await until(lambda: world.clock.now() >= until_s)
        assert len(watcher.told) == 1 and len(watcher.roster.seats) == 3 and watcher.losses == 0
        assert watcher.roster.age_s(world.clock.now()) >= 500.0
        world.server.delete("leases", "activator-2")
        world.server.compact("leases")
        await world.server.start()
        await until_indexes(watcher, [0, 1])
        assert watcher.losses == 0


def world_pause(world: ClaimWorld) -> Pause:
    """Time passes only by what is waited for."""

    async def pause(seconds: float) -> None:
        world.clock.pass_time(seconds)
        await asyncio.sleep(0.001)

    return pause


@on_a_loop
async def test_the_own_lease_is_gone(tmp_path: Path) -> None:
    async with claim_world(tmp_path) as world:
        watcher = await world.roster(0)  # before the claim: that it is not there yet is no loss
        starter = world.starter(0)
        await starter.claim()
        await until_indexes(watcher, [0])
        assert watcher.losses == 0
        world.server.delete("leases", "activator-0")
        await until(lambda: watcher.losses == 1)
        assert watcher.told[-1] == ()
        await world.starter(1).claim()
        assert await starter.claim() == 1
        await until_indexes(watcher, [0, 1])
        assert watcher.losses == 1


@on_a_loop
async def test_a_version_alone_is_no_change(tmp_path: Path) -> None:
    async with claim_world(tmp_path) as world:
        await world.starter(0).claim()
        watcher = await world.roster(0)
        await until_indexes(watcher, [0])
        old = watcher.roster.seats[0]
        world.server.update("leases", "activator-0", {"metadata": {"annotations": {"somebody": "was here"}}})
        await until(lambda: watcher.roster.seats[0].resource_version != old.resource_version)
        assert len(watcher.told) == 1
        assert await watcher.roster.evict(old)  # the same holder in the same Lease
        assert world.leases == {}


# --- rights ---------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_without_the_right_to_list(tmp_path: Path) -> None:
    async with claim_world(tmp_path) as world:
        world.server.refused = lambda verb, path: RefusalError(403, "Forbidden", "leases is forbidden")
        with pytest.raises(MembershipForbiddenError, match="no right to list"):
            await world.roster(0)


@on_a_loop
async def test_a_right_that_is_withdrawn_later_changes_nothing(tmp_path: Path) -> None:
    async with claim_world(tmp_path) as world:
        await claim_all(world.starters(2))
        watcher = await world.roster(0, pause=world_pause(world))
        await until_indexes(watcher, [0, 1])
        world.server.refused = lambda verb, path: RefusalError(403, "Forbidden", "leases is forbidden")
        for running in list(world.server.watchers):
            running.ended = True
            running.wake.set()
        asked = len(world.server.requests)
        await until(lambda: len(world.server.requests) > asked + 2)
        assert len(watcher.told) == 1
        with pytest.raises(MembershipForbiddenError, match="no right to delete"):
            await watcher.roster.evict(watcher.roster.seats[1])
        with pytest.raises(MembershipForbiddenError, match="no right to get"):
            await watcher.roster.pod_is_gone(watcher.roster.seats[1])


@on_a_loop
async def test_an_api_that_is_away_at_the_start(tmp_path: Path) -> None:
    async with claim_world(tmp_path) as world:
        world.server.refused = lambda verb, path: RefusalError(503, "ServiceUnavailable", "away")
        with pytest.raises(KubeError):
            await world.roster(0)


# --- eviction -------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_two_evict_the_same(tmp_path: Path) -> None:
    async with claim_world(tmp_path) as world:
        await claim_all(world.starters(3))
        watchers = [await world.roster(number) for number in range(3)]
        for watcher in watchers:
            await until_indexes(watcher, [0, 1, 2])
        seat = watchers[0].roster.seats[2]
        assert await asyncio.gather(*(watcher.roster.evict(seat) for watcher in watchers)) == [True, True, True]
        assert sum(watcher.roster.evictions_total for watcher in watchers) == 1
        for watcher in watchers:
            await until_indexes(watcher, [0, 1])


@on_a_loop
async def test_an_eviction_that_comes_after_the_name_is_taken_again(tmp_path: Path) -> None:
    """One has evicted, a new member has claimed; the other's eviction does not touch the new Lease."""
    async with claim_world(tmp_path) as world:
        await claim_all(world.starters(2))
        one, late = await world.roster(0), await world.roster(1)
        await until_indexes(late, [0, 1])
        await until_indexes(one, [0, 1])
        seat = one.roster.seats[1]
        assert await one.roster.evict(seat)
        newcomer = world.starter(7)
        assert await newcomer.claim() == 1
        assert await late.roster.evict(seat)  # that holder has it no more
        assert late.roster.evictions_total == 0
        assert world.uids["activator-1"] == "uid-7"


@on_a_loop
async def test_a_lease_that_was_rewritten_for_another_holder_stays(tmp_path: Path) -> None:
    """The same object, but somebody has put another holder into it."""
    async with claim_world(tmp_path) as world:
        await world.starter(0).claim()
        watcher = await world.roster(1)
        await until_indexes(watcher, [0])
        seat = watcher.roster.seats[0]
        world.server.update("leases", "activator-0", {"metadata": {"annotations": {"activator.dev/uid": "uid-x"}}})
        assert await watcher.roster.evict(seat) is False
        assert world.uids == {"activator-0": "uid-x"}


@pytest.mark.parametrize("fault", Fault)
@on_a_loop
async def test_an_eviction_whose_call_fails(tmp_path: Path, fault: Fault) -> None:
    async with claim_world(tmp_path) as world:
        await world.starter(0).claim()
        patient = await world.roster(1)
        world.call_timeout_s = 2.0  # of those that do not wait long for silence
        hasty = await world.roster(2)
        await until_indexes(patient, [0])
        seat = patient.roster.seats[0]
        world.server.faults = [("delete", fault), ("delete", fault)]  # the HTTP client repeats one that is cut
        assert await hasty.roster.evict(seat) is False
        world.server.faults.clear()
        assert await patient.roster.evict(seat) is True
        assert world.leases == {}


@on_a_loop
async def test_whether_the_pod_is_gone(tmp_path: Path) -> None:
    async with claim_world(tmp_path) as world:
        pod = world.server.create("pods", {"metadata": {"name": "pod-0"}})
        there = Holder("pod-0", pod["metadata"]["uid"], "10.0.0.1:8020")
        for index, who in enumerate((there, holder(0), holder(1))):
            world.server.create("leases", lease_of(GroupNames(GROUP), index, who, ""))
        watcher = await world.roster(9)
        await until_indexes(watcher, [0, 1, 2])
        roster = watcher.roster
        asked = [await roster.pod_is_gone(seat) for seat in roster.seats]
        assert asked == [False, True, True]  # there; another of its name; none of its name
        for refusal in (
            RefusalError(500, "InternalError", "broken"),
            RefusalError(404, "", "404 page not found"),  # a proxy's: the API itself gives a reason
            RefusalError(429, "TooManyRequests", "slow down"),
        ):
            world.server.refusals = [("get", refusal)]
            assert await roster.pod_is_gone(roster.seats[2]) is None
        world.server.faults = [("get", Fault.LOST_ANSWER), ("get", Fault.LOST_ANSWER)]
        assert await roster.pod_is_gone(roster.seats[2]) is None


# --- misuse ---------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_two_installations_in_one_group_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with claim_world(tmp_path) as world:
        with caplog.at_level(logging.WARNING, logger="activator.members"):
            watcher = await world.roster(0, origin="default/blue")
            await world.starter(0, origin="default/blue").claim()
            for number in (1, 2):
                await world.starter(number, origin="default/green").claim()
            await until_indexes(watcher, [0, 1, 2])  # they share indexes, so all of them count
        assert watcher.roster.origins == {"default/green"}
        told = [record.getMessage() for record in caplog.records if "two installations" in record.getMessage()]
        assert len(told) == 1 and "'default/green'" in told[0]


@on_a_loop
async def test_a_namespace_is_a_world_of_its_own(tmp_path: Path) -> None:
    async with claim_world(tmp_path) as world:
        elsewhere = lease_of(GroupNames(GROUP), 0, holder(5), "")
        world.server.create("leases", elsewhere, "other")
        watcher = await world.roster(0)
        assert await world.starter(0).claim() == 0
        await until_indexes(watcher, [0])
        assert watcher.names == ["pod-0"]
