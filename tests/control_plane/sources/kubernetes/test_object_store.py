"""What is said of objects whose events were lost, without a server."""

from __future__ import annotations

import msgspec
import pytest

from activator.control_plane.sources.kubernetes.object_store import ObjectStore
from activator.control_plane.sources.kubernetes.objects import ConfigMap
from tests.control_plane.sources.kubernetes.kube_samples import Recorder, by_key


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
        def missed(self, new: object) -> None:
            raise RuntimeError("injected")

    recorder = Failing()
    store = ObjectStore("maps", recorder)
    store.replace(by_key(a_map(5)))
    store.replace(by_key(a_map(6)))
    assert store.handler_errors_total == 1 and recorder.told[-1] == ("=", 1)
