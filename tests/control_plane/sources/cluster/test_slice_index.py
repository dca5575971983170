"""Slices that are read one by one, as they change, say of the pods what all of them say when they are read together."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from activator.control_plane.sources.cluster.backends import Backend, of_slices
from activator.control_plane.sources.cluster.slice_index import SliceIndex
from activator.control_plane.sources.knative.service_backends import ServiceBackends
from activator.kubernetes.objects import EndpointSlice
from tests.control_plane.sources.knative.knative_fakes import endpoint, endpoint_slice, endpoints

NAMES = ["a", "b", "c"]

flags = st.sampled_from([True, False, None])
names = st.sampled_from(NAMES)
# Of each endpoint: the pod (0: it names none), its address, whether it is ready, whether it terminates, and its zone. A
# pod may be in several slices, and several times in one; an address may be that of several pods.
zones = st.sampled_from([None, "", "a", "b"])
contents = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4), flags, flags, zones), max_size=5)
Content = list[tuple[int, int, bool | None, bool | None, str | None]]


def slice_of(name: str, content: Content, family: str, port: str) -> EndpointSlice:
    ip = "fd00::{}" if family == "IPv6" else "10.0.0.{}"
    made = [
        endpoint(ip.format(host), ready, going, uid=f"pod-{pod}" if pod else "", zone=zone)
        for pod, host, ready, going, zone in content
    ]
    return endpoint_slice(*made, slice_name=name, family=family, ports={port: 8012})


slices_made = st.builds(
    slice_of,
    names,
    contents,
    st.sampled_from(["IPv4", "IPv4", "IPv4", "IPv6", "FQDN"]),
    st.sampled_from(["http", "http", "http", "http2"]),
)


@given(st.lists(st.lists(slices_made | names, min_size=1, max_size=3), min_size=3, max_size=12))
def test_what_changed_is_what_reading_all_of_them_gives(looks: list[list[EndpointSlice | str]]) -> None:
    """A name: that slice is gone."""
    index = SliceIndex("http")
    slices: dict[str, EndpointSlice] = {}
    known: dict[str, Backend] = {}
    for events in looks:
        changed: dict[str, EndpointSlice | None] = {}
        for one in events:
            if isinstance(one, str):
                slices.pop(one, None)
                changed[one] = None
            else:
                slices[one.metadata.name] = changed[one.metadata.name] = one
        before = dict(known)
        news = index.read(changed)
        for identity, backend in news.items():
            assert known.get(identity) != backend, "it is as it was"
            if backend is None:
                del known[identity]
            else:
                known[identity] = backend
        whole = of_slices(slices.values(), "http")
        assert known == index.pods == {one.identity: one for one in whole}
        assert len(index) == len(slices)
        here = [identity for identity, backend in news.items() if backend is not None]
        assert here == [one.identity for one in whole if before.get(one.identity) != one], "in the same order"
        gone = len(before.keys() - known.keys())
        assert list(news.values())[:gone] == [None] * gone, "and those that are gone before them"


def test_slices_come_and_go_before_the_same_endpoints() -> None:
    side = ServiceBackends()
    side.put_endpoints(endpoints("10.0.0.1"))
    before = dict(side.read_all("http", frozenset()))
    assert list(before) == ["pod-10.0.0.1"]
    for _ in range(2):
        side.put_slice(slice_of("a", [(2, 2, True, False, None)], "IPv4", "http"))
        assert list(side.read(frozenset()).items()) == [
            ("pod-10.0.0.1", None),
            ("pod-2", Backend("pod-2", "10.0.0.2:8012", True, False)),
        ]
        side.put_endpoints(endpoints("10.0.0.1"))
        assert side.read(frozenset()) == {}, "they do not count"
        side.drop_slice("a")
        assert list(side.read(frozenset()).items()) == [("pod-2", None), *before.items()]


def test_the_zone_is_that_of_the_endpoint_and_a_slice_that_has_none_takes_nothing_away() -> None:
    index = SliceIndex("http")
    no_zones = [(2, 2, True, False, "x" * 64), (3, 3, True, False, "[red]")]
    one = slice_of("a", [(1, 1, True, False, None), *no_zones], "IPv4", "http")
    other = slice_of("b", [(1, 1, True, False, "zone-b")], "IPv4", "http")
    found = index.read({"a": one, "b": other})
    assert {name: backend.zone for name, backend in found.items() if backend} == {
        "pod-1": "zone-b",
        "pod-2": "",
        "pod-3": "",
    }
    moved = slice_of("b", [(1, 1, True, False, "zone-c")], "IPv4", "http")
    assert index.read({"b": moved}) == {"pod-1": Backend("pod-1", "10.0.0.1:8012", True, False, "zone-c")}
