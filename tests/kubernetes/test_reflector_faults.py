"""What goes wrong between a reflector and the API, over real sockets; pauses only note themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import pytest

from activator.kubernetes.backoff import KUBE_BACKOFF_INITIAL_S, KUBE_BACKOFF_MAX_S
from activator.kubernetes.objects import ConfigMap, EndpointSlice, Key, KubeObject
from activator.kubernetes.reflector import (
    KUBE_GO_ON_MAX_S,
    KUBE_INACTIVITY_S,
    KUBE_STEADY_S,
    Reflector,
)
from activator.kubernetes.resources import CONFIG_MAPS, ENDPOINT_SLICES, SECRETS, Selection
from tests.kubernetes.fake_cluster import (
    Cluster,
    fake_cluster,
    on_a_loop,
    running,
    until,
    watching,
)
from tests.kubernetes.fake_objects import RefusalError
from tests.kubernetes.kube_samples import Recorder, config_map, endpoint_slice

MAPS = Selection(CONFIG_MAPS)
SLICES = Selection(ENDPOINT_SLICES, labels="networking.internal.knative.dev/serviceType=Private")


def count_is(counts: Mapping[str, int], name: str, number: int) -> bool:
    return counts.get(name) == number


def is_at_watch(cluster: Cluster, reflector: Reflector[ConfigMap], number: int) -> bool:
    return reflector.watches_total == number and bool(cluster.server.watchers)


def hold(cluster: Cluster) -> None:
    """Let the running watch become one that has held."""
    cluster.clock.pass_time(KUBE_STEADY_S)


@on_a_loop
async def test_a_watch_cut_in_the_middle_of_an_event_goes_on_where_it_was(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        cluster.server.create("configmaps", config_map("a", x="1"))
        async with watching(cluster, MAPS) as (reflector, handler):
            version = reflector.version
            cluster.server.cut_next_line = True
            cluster.server.update("configmaps", "a", {"data": {"x": "2"}})
            await until(lambda: ("~", "a") in handler.told)
            assert reflector.errors_total == {"cut": 1}
            assert reflector.lists_total == 1
            assert cluster.server.requests[-1][2]["resourceVersion"] == version
            assert reflector.store["default", "a"].data == {"x": "2"}
            assert handler.take() == [("+", "a"), ("=", 1), ("~", "a")]


@on_a_loop
async def test_a_silent_watch_is_ended_and_nothing_is_lost(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster, watching(cluster, MAPS) as (reflector, handler):
        cluster.server.silent = True
        cluster.server.create("configmaps", config_map("a"))
        cluster.clock.pass_time(KUBE_INACTIVITY_S - 0.1)
        reflector.abort_if_stalled()
        assert reflector.errors_total == {}
        cluster.server.silent = False
        cluster.clock.pass_time(0.2)
        assert reflector.age_s(cluster.clock.now()) > KUBE_INACTIVITY_S
        reflector.abort_if_stalled()
        await until(lambda: ("+", "a") in handler.told)
        assert reflector.errors_total == {"stalled": 1}
        assert (reflector.lists_total, reflector.watches_total) == (1, 2)
        assert reflector.age_s(cluster.clock.now()) == 0


@on_a_loop
async def test_bookmarks_keep_a_quiet_watch_alive(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster, watching(cluster, MAPS) as (reflector, _):
        for number in range(1, 5):
            cluster.clock.pass_time(KUBE_INACTIVITY_S * 0.7)
            cluster.server.bookmark()
            await until(partial(count_is, reflector.events_total, "BOOKMARK", number))
            reflector.abort_if_stalled()
        assert reflector.errors_total == {} and reflector.watches_total == 1


@on_a_loop
async def test_a_watch_goes_on_from_a_bookmark_though_its_last_event_is_forgotten(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster, watching(cluster, MAPS) as (reflector, handler):
        cluster.server.create("endpointslices", endpoint_slice("other", [1]))  # time passes elsewhere
        cluster.server.bookmark()
        await until(lambda: reflector.version == str(cluster.server.objects.version))
        cluster.server.compact("configmaps")
        cluster.server.cut_next_line = True
        cluster.server.create("configmaps", config_map("a"))
        await until(lambda: ("+", "a") in handler.told)
        assert reflector.lists_total == 1


@pytest.mark.parametrize("by_status", [False, True])
@on_a_loop
async def test_a_storm_of_410_is_met_by_ever_rarer_lists(tmp_path: Path, by_status: bool) -> None:
    async with fake_cluster(tmp_path) as cluster:
        cluster.server.gone_by_status = by_status
        cluster.server.gone_watches = 10
        async with watching(cluster, MAPS) as (reflector, handler):
            await until(lambda: cluster.server.watchers and cluster.server.gone_watches == 0)
            assert reflector.errors_total == {"410": 10}
            assert reflector.lists_total == 11
            pauses = cluster.pauses.asked
            ceilings = [min(KUBE_BACKOFF_INITIAL_S * 2**n, KUBE_BACKOFF_MAX_S) for n in range(10)]
            assert all(ceiling / 2 <= pause <= ceiling for pause, ceiling in zip(pauses, ceilings, strict=True))
            assert len(set(pauses)) == 10  # jittered
            assert handler.take() == [("=", 0)] * 11


@on_a_loop
async def test_what_was_missed_is_told_after_a_410(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        for name in ("stays", "changes", "goes", "is-replaced"):
            cluster.server.create("configmaps", config_map(name, x="1"))
        async with watching(cluster, MAPS) as (reflector, handler):
            handler.take()
            cluster.server.dropped = lambda event: True
            cluster.server.update("configmaps", "changes", {"data": {"x": "2"}})
            cluster.server.delete("configmaps", "goes")
            cluster.server.delete("configmaps", "is-replaced")
            cluster.server.create("configmaps", config_map("is-replaced", x="1"))
            cluster.server.create("configmaps", config_map("comes"))
            cluster.server.dropped = lambda event: False
            cluster.server.compact("configmaps")
            hold(cluster)
            cluster.server.cut_next_line = True
            cluster.server.create("configmaps", config_map("breaks-it"))
            cluster.server.compact("configmaps")
            await until(lambda: reflector.lists_total == 2 and cluster.server.watchers)
            assert handler.take() == [
                ("-", "goes"),
                ("+", "breaks-it"),
                ("~", "changes"),
                ("+", "comes"),
                ("-", "is-replaced"),
                ("+", "is-replaced"),
                ("=", 5),
            ]


@pytest.mark.parametrize("verb", ["list", "watch"])
@on_a_loop
async def test_retry_after_is_kept(tmp_path: Path, verb: str) -> None:
    async with fake_cluster(tmp_path) as cluster:
        busy = RefusalError(429, "TooManyRequests", "please try again later", retry_after_s=7)
        cluster.server.refusals = [(verb, busy), (verb, busy)]
        async with watching(cluster, MAPS) as (reflector, _):
            assert reflector.errors_total == {"429": 2}
            assert all(7 <= pause <= 7 * 1.25 for pause in cluster.pauses.asked)
            assert len(cluster.pauses.asked) == 2
            assert reflector.lists_total == 1  # a version that was refused by 429 is still good


@on_a_loop
async def test_the_server_is_gone_for_minutes_and_comes_back(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        cluster.server.create("configmaps", config_map("a"))
        cluster.server.create("configmaps", config_map("b"))
        async with watching(cluster, MAPS) as (reflector, handler):
            handler.take()
            left_s = cluster.clock.now()
            await cluster.server.stop()
            await until(lambda: cluster.clock.now() > left_s + 300)
            assert sorted(reflector.store) == [("default", "a"), ("default", "b")]
            assert reflector.age_s(cluster.clock.now()) >= 300 and reflector.synced
            assert handler.take() == []
            assert max(cluster.pauses.asked) <= KUBE_BACKOFF_MAX_S
            cluster.server.delete("configmaps", "a")
            await cluster.server.start()
            await until(lambda: ("-", "a") in handler.told)
            assert handler.take() == [("-", "a")]  # by the watch: nothing was forgotten meanwhile
            assert reflector.lists_total == 1
            assert set(reflector.errors_total) <= {"cut", "unreachable"}


@on_a_loop
async def test_nothing_is_synced_before_the_first_list_has_come(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        cluster.server.refused = lambda verb, path: RefusalError(503, "ServiceUnavailable", "starting")
        handler = Recorder()
        reflector = cluster.reflector(MAPS, handler)
        async with running(reflector):
            await until(lambda: reflector.errors_total["5xx"] >= 3)
            assert not reflector.synced and handler.told == []
            cluster.server.refused = lambda verb, path: None
            await until(lambda: reflector.synced)
            assert handler.take() == [("=", 0)]


@on_a_loop
async def test_one_streams_failure_does_not_touch_another(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        forbidden = RefusalError(403, "Forbidden", "secrets is forbidden")
        cluster.server.refused = lambda verb, path: forbidden if path.endswith("/secrets") else None
        handler = Recorder()
        secrets = cluster.reflector(Selection(SECRETS), Recorder())
        maps = cluster.reflector(MAPS, handler)
        async with running(secrets), running(maps):
            await until(lambda: secrets.errors_total["403"] >= 3 and cluster.server.watchers)
            cluster.server.create("configmaps", config_map("a"))
            await until(lambda: ("+", "a") in handler.told)
            assert maps.errors_total == {} and not secrets.synced and secrets.last_error.startswith("403: 403 ")


@on_a_loop
async def test_an_object_deleted_and_made_anew_is_another(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        cluster.server.create("endpointslices", endpoint_slice("h", [1]))
        async with watching(cluster, SLICES) as (_, handler):
            first = handler.last["default", "h"].metadata.uid
            cluster.server.delete("endpointslices", "h")
            cluster.server.create("endpointslices", endpoint_slice("h", [1]))
            await until(lambda: len(handler.told) == 4)
            assert handler.take() == [("+", "h"), ("=", 1), ("-", "h"), ("+", "h")]
            assert handler.last["default", "h"].metadata.uid != first


@on_a_loop
async def test_labels_that_change_take_an_object_out_of_the_selection_and_into_it(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        cluster.server.create("endpointslices", endpoint_slice("h", [1]))
        async with watching(cluster, SLICES) as (reflector, handler):
            label = "networking.internal.knative.dev/serviceType"
            cluster.server.update("endpointslices", "h", {"metadata": {"labels": {label: "Public"}}})
            await until(lambda: ("-", "h") in handler.told)
            assert reflector.store == {}
            cluster.server.update("endpointslices", "h", {"metadata": {"labels": {label: "Private"}}})
            await until(lambda: len(handler.told) == 4)
            assert handler.take() == [("+", "h"), ("=", 1), ("-", "h"), ("+", "h")]


@on_a_loop
async def test_a_thousand_endpoints_in_slices_of_a_hundred_dual_stack_two_services(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        for number in range(10):
            numbers = range(number * 100, number * 100 + 100)
            for family in (4, 6):
                name = f"hello-{family}-{number}"
                cluster.server.create("endpointslices", endpoint_slice(name, numbers, family=family))
        cluster.server.create("endpointslices", endpoint_slice("other", [5000], service="other-00001-private"))
        async with watching(cluster, SLICES, page_objects=4) as (reflector, handler):
            assert reflector.lists_total == 1 and cluster.server.verbs().count("list") == 6
            assert addresses(reflector.store.values(), "IPv4", "hello-00001") == 1000
            assert addresses(reflector.store.values(), "IPv6", "hello-00001") == 1000
            assert addresses(reflector.store.values(), "IPv4", "other-00001") == 1
            cluster.server.delete("endpointslices", "hello-4-3")
            cluster.server.update("endpointslices", "hello-6-3", {"endpoints": None})
            await until(lambda: ("~", "hello-6-3") in handler.told)
            assert addresses(reflector.store.values(), "IPv4", "hello-00001") == 900
            assert addresses(reflector.store.values(), "IPv6", "hello-00001") == 900


def addresses(slices: Iterable[EndpointSlice], family: str, revision: str) -> int:
    found: set[str] = set()
    for one in slices:
        if one.address_type == family and one.metadata.labels["serving.knative.dev/revision"] == revision:
            found.update(address for endpoint in one.endpoints or () for address in endpoint.addresses)
    return len(found)


@on_a_loop
async def test_an_event_beyond_the_bound_is_got_past_by_a_list(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path, line_bytes_max=10_000) as cluster:
        cluster.server.create("configmaps", config_map("a"))
        async with watching(cluster, MAPS) as (reflector, handler):
            cluster.server.update("configmaps", "a", {"data": {"x": "y" * 20_000}})
            await until(lambda: reflector.lists_total == 2 and cluster.server.watchers)
            cluster.server.create("configmaps", config_map("b"))
            await until(lambda: ("+", "b") in handler.told)
            assert reflector.errors_total == {"line_too_long": 1}
            assert len(reflector.store["default", "a"].data["x"]) == 20_000


@on_a_loop
async def test_a_list_whose_continuation_has_expired_begins_again(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        for number in range(4):
            cluster.server.create("configmaps", config_map(f"m{number}"))
        cluster.server.create("configmaps", config_map("last"))

        def refused(verb: str, path: str) -> RefusalError | None:
            if verb == "list" and cluster.server.verbs().count("list") == 2:
                cluster.server.update("configmaps", "m0", {"data": {"x": "new"}})
                cluster.server.compact("configmaps")
            return None

        cluster.server.refused = refused
        async with watching(cluster, MAPS, page_objects=2) as (reflector, handler):
            assert reflector.errors_total == {"410": 1}
            assert handler.take()[-1] == ("=", 5)
            assert reflector.store["default", "m0"].data == {"x": "new"}


@on_a_loop
async def test_an_object_that_cannot_be_read_costs_itself_only(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        cluster.server.create("configmaps", {"metadata": {"name": "bad"}, "data": {"x": 5}})
        cluster.server.create("configmaps", config_map("good"))
        async with watching(cluster, MAPS) as (reflector, handler):
            assert handler.take() == [("+", "good"), ("=", 1)]
            assert reflector.decoding.failures_total == 1 and "bad" in reflector.decoding.last_failure
            cluster.server.update("configmaps", "good", {"data": {"x": [1]}})
            cluster.server.create("configmaps", config_map("also-good"))
            await until(lambda: ("+", "also-good") in handler.told)
            assert reflector.decoding.failures_total == 2
            assert reflector.store["default", "good"].data == {}  # as it was last understood
            assert reflector.errors_total == {}
            cluster.server.delete("configmaps", "good")
            await until(lambda: ("-", "good") in handler.told)


@on_a_loop
async def test_a_handler_that_raises_is_counted_and_told_the_next(tmp_path: Path) -> None:
    class Fragile(Recorder):
        def changed(self, old: KubeObject | None, new: KubeObject) -> None:
            super().changed(old, new)
            if isinstance(new, ConfigMap) and "poison" in new.data:
                raise RuntimeError("poisoned")

    async with fake_cluster(tmp_path) as cluster:
        cluster.server.create("configmaps", config_map("a", poison="1"))
        async with watching(cluster, MAPS, Fragile()) as (reflector, handler):
            cluster.server.create("configmaps", config_map("b", poison="1"))
            cluster.server.create("configmaps", config_map("c"))
            await until(lambda: ("+", "c") in handler.told)
            assert reflector.contents.handler_errors_total == 2
            assert (reflector.lists_total, reflector.watches_total, dict(reflector.errors_total)) == (1, 1, {})
            assert sorted(name for _, name in reflector.store) == ["a", "b", "c"]


@on_a_loop
async def test_a_watch_that_the_server_does_not_end_is_ended(tmp_path: Path) -> None:
    async with (
        fake_cluster(tmp_path) as cluster,
        watching(cluster, MAPS, watch_s=30.0, inactivity_s=1e9) as (reflector, _),
    ):
        asked_s = int(cluster.server.requests[-1][2]["timeoutSeconds"])
        assert 30 <= asked_s <= 60
        cluster.clock.pass_time(asked_s + 14)
        reflector.abort_if_stalled()
        assert reflector.watching
        cluster.clock.pass_time(2)
        reflector.abort_if_stalled()
        await until(lambda: reflector.watches_total == 2)
        assert reflector.errors_total == {"stalled": 1} and reflector.lists_total == 1


@on_a_loop
async def test_watches_that_end_at_once_are_not_begun_in_a_expedite(tmp_path: Path) -> None:
    """A clean end is no error, but after less than KUBE_STEADY_S it is no success either."""
    by_default = 0.0  # timeoutSeconds=0: the server's default
    async with fake_cluster(tmp_path) as cluster, watching(cluster, MAPS, watch_s=by_default) as (reflector, _):
        for watches in range(2, 6):
            server_ends_watches(cluster)
            await until(partial(is_at_watch, cluster, reflector, watches))
        pauses = cluster.pauses.asked
        assert len(pauses) == 4 and pauses[3] > 2 * pauses[0] > 0
        hold(cluster)
        server_ends_watches(cluster)
        await until(lambda: reflector.watches_total == 6)
        assert len(pauses) == 4  # after one that has held, at once
        assert reflector.errors_total == {}


@on_a_loop
async def test_a_watch_that_brings_something_each_time_before_it_breaks_goes_on_soon(tmp_path: Path) -> None:
    """Broken once a second, it would soon be waited for half a minute, and hear nothing of what happens meanwhile."""
    async with fake_cluster(tmp_path) as cluster, watching(cluster, MAPS) as (reflector, _):
        cluster.server.create("configmaps", config_map("a", x="0"))
        for number in range(1, 9):
            await until(lambda: bool(cluster.server.watchers) and reflector.watching)
            cluster.server.update("configmaps", "a", {"data": {"x": f"{number} heard"}})
            await until(partial(count_is, reflector.events_total, "MODIFIED", number))
            cluster.server.cut_next_line = True
            cluster.server.bookmark()
            await until(partial(is_at_watch, cluster, reflector, number + 1))
        pauses = cluster.pauses.asked
        assert len(pauses) == 8 and max(pauses) <= KUBE_GO_ON_MAX_S and pauses[0] > 0
        assert reflector.errors_total == {"cut": 8} and reflector.lists_total == 1


def server_ends_watches(cluster: Cluster) -> None:
    for watcher in cluster.server.watchers:
        watcher.ended = True
        watcher.wake.set()


@on_a_loop
async def test_a_relist_on_demand(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster, watching(cluster, MAPS) as (reflector, handler):
        cluster.server.dropped = lambda event: True
        cluster.server.create("configmaps", config_map("a"))
        reflector.relist("the test says so")
        await until(lambda: ("+", "a") in handler.told)
        assert reflector.lists_total == 2 and reflector.errors_total == {"relist": 1}


@pytest.mark.parametrize("verb", ["list", "watch"])
@on_a_loop
async def test_a_relist_that_is_wanted_while_the_call_is_under_way(tmp_path: Path, verb: str) -> None:
    """The answer may be from before whatever made it wanted."""
    async with fake_cluster(tmp_path) as cluster:
        reflector = cluster.reflector(MAPS, Recorder())
        wanted: list[str] = []

        def meanwhile(asked: str, path: str) -> None:
            if asked == verb and not wanted:
                wanted.append(asked)
                reflector.relist("the test says so")

        cluster.server.refused = meanwhile
        async with running(reflector):
            await until(lambda: reflector.lists_total == 2 and reflector.watching)
            assert reflector.version


class Greedy(Recorder):
    """Wants another list whenever one has come, eight times."""

    def __init__(self) -> None:
        super().__init__()
        self.wants: Callable[[str], None] = lambda why: None

    def listed(self, objects: Mapping[Key, KubeObject]) -> None:
        super().listed(objects)
        if len(self.told) < 8:
            self.wants("more")


@on_a_loop
async def test_a_handler_that_wants_lists_without_end_gets_them_ever_more_rarely(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        handler = Greedy()
        reflector = cluster.reflector(MAPS, handler)
        handler.wants = reflector.relist
        async with running(reflector):
            await until(lambda: cluster.server.watchers)
            assert reflector.lists_total == 8 and reflector.errors_total == {"relist": 7}
            assert cluster.pauses.asked[6] > 4 * cluster.pauses.asked[2]


@on_a_loop
async def test_garbage_in_a_watch_leads_to_a_list(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster, watching(cluster, MAPS) as (reflector, _):
        watcher = cluster.server.watchers[0]
        watcher.lines.append(b'{"type": "ADDED", "object": \n')
        watcher.wake.set()
        await until(lambda: reflector.lists_total == 2 and cluster.server.watchers)
        assert reflector.errors_total == {"unreadable": 1}


@on_a_loop
async def test_a_kind_that_the_cluster_does_not_have_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for status, count in ((404, 1), (403, 2)):
        caplog.clear()
        async with fake_cluster(tmp_path) as cluster:
            missing = RefusalError(status, "", "404 page not found")
            cluster.server.refused = lambda verb, path, missing=missing: missing  # type: ignore[misc]
            async with running(cluster.reflector(Selection(CONFIG_MAPS), Recorder())):
                await until(lambda: len(cluster.pauses.asked) >= 12)
            said = [one for one in caplog.records if "configmaps" in one.getMessage()]
            assert len(said) == count
