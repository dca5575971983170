"""The reasons for which the new process of an upgrade gives up before it has begun."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from activator.app.handover.messages import PROTOCOL, Link, Offer, Refused
from activator.app.handover.taking import Inheritance, Takeover
from activator.config.model.file import Config
from activator.config.model.kubernetes import Kubernetes
from activator.config.model.members import Members
from activator.config.model.pods import Push
from activator.config.tree import HANDOVER
from activator.control_plane.sources.process.reaping import Reaping
from activator.runtime.errors import StartError
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


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (Config(members=Members(listen="127.0.0.1:1")), "`members` is set: restart the replicas"),
        (Config(kubernetes=Kubernetes()), "in a cluster, replicas are replaced by its own means"),
        (Config(push=Push(listen="127.0.0.1:1")), "`push` is set: restart the activator"),
    ],
    ids=["members", "cluster", "push"],
)
def test_a_configuration_that_could_not_be_handed_over_is_not_taken_over(config: Config, problem: str) -> None:
    async def scenario() -> None:
        own_end, other_end = pair()
        link = Link(own_end)
        link.send(OFFER)
        takeover = Takeover(Inheritance(other_end, Reaping(None, "mark"), None, 0))
        with pytest.raises(StartError, match=problem):
            await takeover.begin(config, None)  # type: ignore[arg-type]
        takeover.refuse(problem)
        assert await link.receive(PATIENCE_S) == (Refused(problem), [])
        link.close()

    asyncio.run(scenario())
