"""The clients of the endurance test end, and what they could not do is a result."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import tests.soak.__main__ as soak
from tests.e2e.handover_clients import Background
from tests.e2e.test_e2e_members import free_ports
from tests.soak.clients import Crowd, Target
from tests.soak.ledger import Ledger
from tests.soak.world import World

STREAM_S = (0.1, 0.2)


def nobody(name: str) -> frozenset[int]:
    return frozenset()


def target(port: int, folder: Path) -> Target:
    return Target("activator", f"127.0.0.1:{port}", "app", folder / "record-app")


def test_an_interrupt_between_the_phases_leaves_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(nobody)
    (port,) = free_ports(1)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with Background() as background:
        crowd = Crowd(ledger, background, 1, STREAM_S)
        crowd.http2(target(port, tmp_path), 1, 0.01)
        machine = SimpleNamespace(try_upgrade=lambda: SimpleNamespace(code=0))
        world = SimpleNamespace(machine=machine, ledger=ledger, crowd=lambda number: crowd)
        monkeypatch.setattr(soak.time, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            soak._samples(cast("World", world), 1, 20.0)
        monkeypatch.undo()
    assert not [one for one in threading.enumerate() if one.name.startswith("http2-")]
