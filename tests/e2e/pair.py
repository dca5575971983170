"""A pod that does what its script says, and an activator in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.e2e.conftest import RunActivator
from tests.e2e.pods import Script, ScriptedPod
from tests.e2e.running import Activator, configured


class Pair(NamedTuple):
    """The two."""

    pod: ScriptedPod
    activator: Activator


@contextmanager
def paired(script: Script, run_activator: RunActivator) -> Iterator[Pair]:
    """Ready for requests; the activator ends as its own fixture says."""
    with ScriptedPod(script) as pod:
        activator = run_activator(configured([{"name": "a", "hosts": ["*"], "pods": [pod.address]}]))
        activator.wait_ready_pods("a")
        yield Pair(pod, activator)
