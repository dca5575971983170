"""Clients and pods that do everything wrong at once: nobody gets what is another's, and nothing is left behind.

The seed stands in the test's name; what a seed does is drawn in order, though not when the kernel lets it happen.
"""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
import warnings
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.e2e.chaos_clients import Crowd
from tests.e2e.chaos_pods import ChaosPod
from tests.e2e.conftest import RunActivator
from tests.e2e.running import Activator, configured, eventually

SIDE_BY_SIDE = 24
LIMIT = 2
PODS = 3  # of each revision


class Chaos:
    """Pods in the clear and over TLS, an activator in front of them, and a crowd."""

    def __init__(self, seed: int, folder: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("localhost", "127.0.0.1")
        self._files = {name: str(folder / name) for name in ("tls.crt", "tls.key", "ca.crt")}
        issued.cert_chain_pems[0].write_to_path(self._files["tls.crt"])
        issued.private_key_pem.write_to_path(self._files["tls.key"])
        authority.cert_pem.write_to_path(self._files["ca.crt"])
        self._trust = ssl.create_default_context()
        authority.configure_trust(self._trust)
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        issued.configure_cert(serving)
        seen: dict[str, int] = {}
        self._plain = [ChaosPod(seed + place, LIMIT, seen) for place in range(PODS)]
        self._secured = [ChaosPod(seed + PODS + place, LIMIT, seen, serving) for place in range(PODS)]
        self._seed = seed

    @property
    def pods(self) -> list[ChaosPod]:
        return [*self._plain, *self._secured]

    async def open(self) -> dict[str, Any]:
        """The configuration of an activator for them."""
        common: dict[str, Any] = {"container_concurrency": LIMIT, "upgrades": ["chaos"]}
        plain = [await pod.open() for pod in self._plain]
        secured = [await pod.open() for pod in self._secured]
        tls = {"ca": self._files["ca.crt"], "server_name": "localhost"}
        listener = {"address": "127.0.0.1:0", "certificate": self._files["tls.crt"], "key": self._files["tls.key"]}
        return configured(
            [
                {"name": "a", "hosts": ["a.test"], "pods": plain, **common},
                {"name": "b", "hosts": ["b.test"], "pods": secured, "tls": tls, **common},
            ],
            listen=["127.0.0.1:0", listener],
        )

    async def rage(self, activator: Activator, visits: int) -> Crowd:
        addresses = activator.logged(r" serving on (.*)")[0].split(", ")
        crowd = Crowd(self._seed, addresses, self._trust)
        left = visits

        async def come() -> None:
            nonlocal left
            while left > 0 and not crowd.problems:
                left -= 1
                await crowd.visit()

        await asyncio.gather(*(come() for _ in range(SIDE_BY_SIDE)))
        return crowd


def descriptors(activator: Activator) -> int:
    return len(os.listdir(f"/proc/{activator.process.pid}/fd"))


def gauge(activator: Activator, name: str) -> list[float]:
    lines = activator.ask("/metrics")[2].decode().splitlines()
    found = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + " ", name + "{"))]
    assert found, name
    return found


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("seed", "visits"), [(1, 500), *(pytest.param(seed, 3_000, marks=pytest.mark.deep) for seed in range(2, 12))]
)
def test_nobody_gets_what_is_anothers(seed: int, visits: int, run_activator: RunActivator, tmp_path: Path) -> None:
    chaos = Chaos(seed, tmp_path)

    async def story() -> None:
        configuration = await chaos.open()
        activator = await asyncio.to_thread(run_activator, configuration)
        for name in ("a", "b"):
            await asyncio.to_thread(activator.wait_ready_pods, name, PODS)
        before = await asyncio.to_thread(descriptors, activator)
        try:
            crowd = await chaos.rage(activator, visits)
            problems = crowd.problems + [one for pod in chaos.pods for one in pod.violations]
            assert not problems, f"{len(problems)} problems:\n" + "\n".join(problems[:20])
            await asyncio.to_thread(settle, activator, before)
        finally:
            for pod in chaos.pods:
                await pod.close()
        assert crowd.whole > visits // 4 and crowd.switched > visits // 50, (crowd.whole, crowd.switched)

    try:
        asyncio.run(story())
    finally:
        # asyncio's TLS, which the pods are made of, forgets transports that are reset in their handshake (a probe's).
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def settle(activator: Activator, descriptors_before: int) -> None:
    """Everything that was taken has been given back."""
    activator.wait_idle()
    metrics = activator.ask("/metrics")[2].decode().splitlines()
    defects = ("activator_state_illegal_transitions_total{", "activator_state_mismatches_total{")
    assert [line for line in metrics if line.startswith(defects)] == []
    for name in ("activator_held_bytes", "activator_held_requests", "activator_client_connections"):
        eventually(lambda name=name: not any(gauge(activator, name)), name)  # type: ignore[misc]
    eventually(lambda: descriptors(activator) <= descriptors_before, "descriptors are left open")
