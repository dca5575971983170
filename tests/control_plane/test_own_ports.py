"""Pods at ports of the program itself: no source may have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from activator.control_plane.own_ports import OwnPorts
from activator.messages import ObservedPod, PodGone, PodsListed, PodStatus, RevisionGone


def seen(identity: str, address: str) -> ObservedPod:
    return ObservedPod("default/a", "kubernetes", identity, address, PodStatus.READY)


@pytest.mark.parametrize(
    ("listens", "pod", "is_own"),
    [
        ("127.0.0.1:8008", "127.0.0.1:8008", True),
        ("127.0.0.1:8008", "127.0.0.1:8009", False),
        ("127.0.0.1:8008", "127.0.0.2:8008", False),
        ("127.0.0.1:8008", "0.0.0.0:8008", True),
        ("127.0.0.1:8008", "[::ffff:127.0.0.1]:8008", True),
        ("localhost:8008", "127.0.0.1:8008", True),
        ("127.0.0.1:8008", "10.1.2.3:8008", False),
        ("0.0.0.0:8008", "127.0.0.1:8008", True),
        ("0.0.0.0:8008", "127.9.9.9:8008", True),
        ("0.0.0.0:8008", "203.0.113.7:8008", False),
        ("[::]:8008", "127.0.0.1:8008", True),
        ("[::]:8008", "[::1]:8008", True),
        (":8008", "127.0.0.1:8008", True),
        ("[::1]:8008", "[0:0:0:0:0:0:0:1]:8008", True),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("unix:/run/a.sock", "unix:/run/a.sock", True),
        ("unix:/run/a.sock", "unix:/run/../run/a.sock", True),
        ("unix:/run/a.sock", "unix:/run/b.sock", False),
        ("127.0.0.1:8008", "unix:/run/b.sock", False),
        ("127.0.0.1:8008", "no address", False),
    ],
)
def test_what_is_ours(listens: str, pod: str, is_own: bool) -> None:
    assert OwnPorts(lambda: [listens]).is_own(pod) is is_own


def test_a_link_to_our_socket_is_ours(tmp_path: Path) -> None:
    os.symlink(tmp_path / "admin.sock", tmp_path / "pod.sock")
    assert OwnPorts(lambda: [f"unix:{tmp_path}/admin.sock"]).is_own(f"unix:{tmp_path}/pod.sock")


def test_changes_are_without_them(caplog: pytest.LogCaptureFixture) -> None:
    ports = OwnPorts(lambda: ["0.0.0.0:8012", "127.0.0.1:8008"])
    good, bad = seen("a", "127.0.0.1:80"), seen("b", "127.0.0.1:8008")
    assert ports.without_own(good) is good
    assert ports.without_own(bad) == PodGone("default/a", "kubernetes", "b")
    whole = PodsListed("default/a", "kubernetes", (good,))
    assert ports.without_own(whole) is whole
    assert ports.without_own(PodsListed("default/a", "kubernetes", (good, bad))) == whole
    gone = RevisionGone("default/a")
    assert ports.without_own(gone) is gone
    assert len(caplog.records) == 1, "once for each pod"
    assert "the pod b is ignored: 127.0.0.1:8008 is a port of the activator itself" in caplog.text


def test_listeners_may_change() -> None:
    listens = ["127.0.0.1:1"]
    ports = OwnPorts(lambda: listens)
    assert not ports.is_own("127.0.0.1:2")
    listens.append("127.0.0.1:2")
    assert ports.is_own("127.0.0.1:2") and ports.is_own("127.0.0.1:1")
    del listens[0]
    assert not ports.is_own("127.0.0.1:1")
