"""The reasons for which the new process of an upgrade gives up before it has begun."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from activator.app.handover.messages import PROTOCOL, Link, Offer, Refused
from activator.config.tree import HANDOVER
from activator.runtime.wire import pair
from tests.sources import ROOT

OFFER = Offer(PROTOCOL, "1", (), 0)
PATIENCE_S = 30.0


def test_a_file_that_is_refused_is_reported_to_the_former_process(tmp_path: Path) -> None:
    """One line for each mistake, as the process prints them."""
    file = tmp_path / "activator.yaml"
    file.write_text("listens: 127.0.0.1:1\nadmins: 127.0.0.1:2\n")

    own_end, other_end = pair()
    descriptor = other_end.fileno()
    process = subprocess.Popen(
        [sys.executable, "-m", "activator.cli", "run", "-c", str(file)],
        env={**os.environ, "PYTHONPATH": str(ROOT), HANDOVER: f"{descriptor}:-1:-1:0:mark"},
        pass_fds=[descriptor],
        stderr=subprocess.PIPE,
        text=True,
    )
    other_end.close()

    async def scenario() -> list[str]:
        link = Link(own_end)
        link.send(OFFER)
        message, _ = await link.receive(PATIENCE_S)
        link.close()
        assert isinstance(message, Refused)
        return message.problem.split("\n")

    reasons = asyncio.run(scenario())
    printed = process.communicate()[1].splitlines()
    assert len(reasons) == 3 and all(reason.startswith(f"{file}:") for reason in reasons), reasons
    assert [line for line in printed if str(file) in line] == [f"activator: {reason}" for reason in reasons]
