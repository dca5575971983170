"""The reconciler with a technique switched off: more calls, the same result."""

from __future__ import annotations

from bench.scale_techniques import FreshReads, MeasuredReconciler, Techniques
from tests.control_plane.reconcile.reconcile_world import desired_of, event, world
from tests.kubernetes.fake_cluster import on_a_loop


@on_a_loop
async def test_techniques_switched_off_write_the_same() -> None:
    wanted = None
    for techniques in (
        Techniques(),
        Techniques(False, True, True),
        Techniques(True, False, True),
        Techniques(True, True, False),
    ):
        async with world(kind=MeasuredReconciler, techniques=techniques) as here:
            thing = here.make("a")
            for _ in range(2):
                here.reconciler.want(desired_of(thing, 1, events=(event(),)))
                await here.settle()
            found = (here.one("services", "a-pods")["spec"], here.one("deployments", "a")["spec"]["replicas"])
            wanted = wanted or found
            assert found == wanted
            calls = here.api.taken()
            assert (calls["patch", "activations/status"] > 1) == (not techniques.skip_unchanged)


@on_a_loop
async def test_what_is_of_others_is_not_deleted_where_comparisons_are_off_either() -> None:
    async with world(kind=MeasuredReconciler, techniques=Techniques(skip_unchanged=False)) as here:
        thing = here.make("a")
        metadata = {"name": "a-pods", "labels": {"activator.dev/activation": "a"}}
        here.server.create("services", {"metadata": metadata, "spec": {"ports": [{"port": 1}]}})
        here.reconciler.want(desired_of(thing, 1, service=None, observed=here.observed("a")))
        await here.settle()
        assert here.has("services", "a-pods") and here.api.taken()["delete", "services"] == 0


@on_a_loop
async def test_without_memoised_reads_each_asks_for_itself() -> None:
    async with world() as here:
        reads = FreshReads(here.api, desired_of(here.make("a")))
        for _ in range(3):
            assert await reads.activation() is not None
            assert await reads.services() == ()
        assert here.api.taken() == {("get", "activations"): 3, ("list", "services"): 3}
