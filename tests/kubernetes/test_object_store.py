"""What is said of objects whose events were lost, without a server."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.kubernetes.object_store import ObjectStore
from activator.kubernetes.objects import ConfigMap, Metadata, Version, VersionOnly
from tests.kubernetes.kube_samples import Recorder, by_key


def a_map(version: int, uid: str = "first", **data: str) -> ConfigMap:
    metadata = {"namespace": "default", "name": "a", "uid": uid, "resourceVersion": str(version)}
    return msgspec.convert({"metadata": metadata, "data": data}, ConfigMap)


@pytest.mark.parametrize(
    ("listed", "is_missed"),
    [
        (a_map(5, x="1"), False),
        (a_map(7, x="1"), True),  # it has been something else meanwhile, or might have been
        (a_map(7, x="2"), True),
        (a_map(7, uid="second", x="1"), False),  # another one: all of that is told
    ],
)
def test_a_list_after_a_break_tells_of_what_events_were_lost(listed: ConfigMap, is_missed: bool) -> None:
    recorder = Recorder()
    store = ObjectStore("maps", recorder)
    store.replace(by_key(a_map(5, x="1")))
    store.replace(by_key(listed))
    assert recorder.missed_names == (["a"] if is_missed else [])


def test_events_that_come_are_not_lost() -> None:
    recorder = Recorder()
    store = ObjectStore("maps", recorder)
    store.replace(by_key(a_map(5, x="1")))
    store.added_or_modified(a_map(7, x="1"))
    store.added_or_modified(a_map(9, x="2"))
    store.replace(by_key(a_map(9, x="2")))
    assert recorder.missed_names == []


def test_a_handler_that_raises_is_counted_and_the_list_is_told_to_its_end() -> None:
    class Failing(Recorder):
        def resync(self, new: object) -> None:
            raise RuntimeError("injected")

    recorder = Failing()
    store = ObjectStore("maps", recorder)
    store.replace(by_key(a_map(5)))
    store.replace(by_key(a_map(6)))
    assert store.handler_errors_total == 1 and recorder.told[-1] == ("=", 1)


states = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.integers(1, 12), st.sampled_from("uv")), max_size=6
)  # names, each with its version and its UID
events = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 12), st.booleans()), max_size=6)


@given(states, events, states, st.integers(6, 12), st.sampled_from(["", "v-"]))
def test_a_list_of_versions_names_what_the_whole_list_repairs(
    known: dict[str, tuple[int, str]],
    meanwhile: list[tuple[str, int, bool]],
    listed: dict[str, tuple[int, str]],
    version: int,
    prefix: str,
) -> None:
    """Neither more, as in a cluster where much changes while it is listed, nor less; versions are numbers or not."""

    def thing(name: str, number: int, uid: str) -> ConfigMap:
        return ConfigMap(metadata=Metadata(name=name, uid=uid, resource_version=f"{prefix}{number}"))

    store = ObjectStore("maps", Recorder())
    store.replace(by_key(*(thing(name, *state) for name, state in known.items())))
    store.begin_comparison()
    for name, number, is_there in meanwhile:
        one = thing(name, number, "u")
        if is_there:
            store.added_or_modified(one)
        else:
            store.deleted(one.metadata)
    whole = by_key(*(thing(name, *state) for name, state in listed.items()))
    versions = {
        key: VersionOnly(metadata=Version(one.metadata.name, "", one.metadata.uid, one.metadata.resource_version))
        for key, one in whole.items()
    }
    differing = store.differing(versions, f"{prefix}{version}")
    assert len(set(differing)) == len(differing)
    assert store.repair(whole, f"{prefix}{version}", None).total() == len(differing)
