"""Host to revision."""

from __future__ import annotations

import pytest

from activator.config.specs import RevisionSpec, RoutingSpec, reroute
from activator.data_plane.proxy.routing import Router, entry_of, routing_host
from activator.data_plane.throttle.revision import RevisionThrottler
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from tests.data_plane.proxy.proxy_fakes import request_head
from tests.data_plane.throttle.throttle_fakes import Heard
from tests.manual_clock import ManualClock


def throttler(key: str, *hosts: str) -> RevisionThrottler:
    clock = ManualClock()
    table = TrackerTable(create("random", Rng(1)))
    return RevisionThrottler(
        RevisionSpec(key=key, routing=RoutingSpec(hosts=hosts)), table, clock.now, clock.defer, Heard(), 1
    )


def test_a_port_of_its_own_leads_to_it_whatever_the_host() -> None:
    made = Router(True)
    made.set(throttler("ns/every", "*"))
    made.set(throttler("ns/a", "a.test"))
    ported = throttler("ns/ported")
    ported.reconfigure(reroute(ported.spec, ports=(20_001, 20_002)))
    made.set(ported)
    head = request_head(host="a.test")
    for port, key in ((20_001, "ns/ported"), (20_002, "ns/ported"), (20_003, None)):
        head.entry = entry_of(port)
        found = made.resolve(head)
        assert (None if found is None else found.key) == key
        rules = made.rules_of(routing_host(head))
        assert (rules is None) == (key is None), "no wildcard stands in for a port"
    made.drop("ns/ported")
    head.entry = entry_of(20_001)
    assert made.resolve(head) is None


def key_for(router: Router, host: str) -> str | None:
    found = router.resolve(request_head(host=host))
    return None if found is None else found.key


@pytest.fixture
def router() -> Router:
    made = Router(False)
    made.set(throttler("ns/exact", "a.test", "B.test"))
    made.set(throttler("ns/suffix", "*.test"))
    made.set(throttler("ns/deep", "*.deep.test"))
    return made


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("a.test", "ns/exact"),
        ("A.TEST", "ns/exact"),
        ("a.test:8080", "ns/exact"),
        ("a.test.", "ns/exact"),
        ("b.test", "ns/exact"),
        ("c.test", "ns/suffix"),
        ("x.deep.test", "ns/deep"),
        ("y.x.deep.test:1", "ns/deep"),
        ("test", None),
        ("[::1]", None),
        ("[::1]:80", None),
        ("other", None),
    ],
)
def test_exact_before_longest_suffix(router: Router, host: str, key: str | None) -> None:
    assert key_for(router, host) == key


def test_the_one_that_takes_everything_comes_last(router: Router) -> None:
    router.set(throttler("ns/all", "*"))
    assert key_for(router, "other") == "ns/all"
    assert key_for(router, "a.test") == "ns/exact"
    router.drop("ns/all")
    assert key_for(router, "other") is None


def test_setting_anew_forgets_the_old_hosts(router: Router) -> None:
    router.set(throttler("ns/exact", "new.test"))
    assert key_for(router, "a.test") == "ns/suffix"
    assert key_for(router, "new.test") == "ns/exact"


def test_dropping_takes_every_host(router: Router) -> None:
    router.drop("ns/suffix")
    router.drop("ns/unknown")
    assert key_for(router, "c.test") is None


@pytest.mark.parametrize(
    "named", ["x", "knative-serving-revision", "Knative-Serving-Namespace, knative-serving-revision"]
)
def test_revision_headers_count_only_where_they_are_trusted(named: str) -> None:
    """Also those that Connection names: what is for us alone is for us."""
    head = request_head(
        host="a.test", Connection=named, Knative_Serving_Namespace="ns", Knative_Serving_Revision="named"
    )
    for trusted, key in ((False, "ns/exact"), (True, "ns/named")):
        router = Router(trusted)
        router.set(throttler("ns/exact", "a.test"))
        router.set(throttler("ns/named"))
        found = router.resolve(head)
        assert found is not None
        assert found.key == key
