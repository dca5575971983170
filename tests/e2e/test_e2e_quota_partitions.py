"""The quotas of users over replicas on machines of their own, between which the network fails in silence."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.counting_pods import CountingPods
from tests.e2e.load import limited
from tests.e2e.networks import CLIENTS, Networks, why_no_networks
from tests.e2e.running import Activator, eventually
from tests.e2e.test_e2e_members import START_S, Replicas
from tests.e2e.test_e2e_quotas import Seen, keys

PEER_PORT: Final = 7_100
PORT: Final = 8_100
PARTED_S: Final = 3.0
REQUESTS_IN_FLIGHT: Final = 20


@pytest.fixture
def networks() -> Iterator[Networks]:
    if why := why_no_networks():
        pytest.skip(why)
    made = Networks()
    yield made
    made.close()


class PartedReplicas(Replicas):
    """Each on a machine of its own, which can be cut off from the others, not from clients and pods."""

    def __init__(self, run: RunActivator, networks: Networks, folder: Path, count: int, *args: Any, **more: Any):
        super().__init__(run, folder, count, *args, **more)
        self.networks = networks
        self.hosts = [networks.address(f"m{index}") for index in range(count)]
        self.peers = [f"{host}:{PEER_PORT}" for host in self.hosts]
        self.served = [f"{host}:{PORT}" for host in self.hosts]

    def configuration(self, index: int, **members: Any) -> dict[str, Any]:
        return {
            **super().configuration(index, **members),
            "admin": {"listen": f"{self.hosts[index]}:0", "insecure": True},
        }

    def start(self, index: int) -> Activator:
        prefix = self.networks.prefix(f"m{index}")
        activator = self.running[index] = self._run(self.configuration(index), prefix=prefix, timeout_s=START_S)
        activator.may_log_errors = True
        return activator

    def part(self, index: int) -> None:
        """Cut one off for a time in which the others take over what it owned."""
        others = [host for number, host in enumerate(self.hosts) if number != index]
        other = next(number for number in self.running if number != index)
        self.networks.cut(f"m{index}", others)
        eventually(lambda: self.view(other)["unproven"], "its silence is noticed")
        eventually(lambda: not self.view(index)["grants"], "it has no majority")
        time.sleep(PARTED_S)
        self.networks.mend(f"m{index}", others)
        self.wait_together()


@pytest.mark.deep
@pytest.mark.parametrize(("count", "limit", "turns", "refused"), [(3, 160, 3, 500), (5, 50_000, 12, 950_000)])
def test_a_limit_of_requests_holds_while_replicas_are_cut_off_and_killed(
    networks: Networks, run_activator: RunActivator, tmp_path: Path, count: int, limit: int, turns: int, refused: int
) -> None:
    clients, slack = 12, limit // 16
    with CountingPods(2, 0.002, CLIENTS) as pods:
        replicas = PartedReplicas(
            *(run_activator, networks, tmp_path, count, [limited(pods.addresses, REQUESTS_IN_FLIGHT)]),
            keys=keys(requests=f"{limit}/day"),
        )
        replicas.start_all()
        chance = random.Random(count)
        seen = Seen(replicas.addresses, clients)

        def disturb() -> None:
            for at in range(1, turns + 1):
                seen.reaches(200, at * (limit // 32 // turns + 1))
                index = chance.choice(list(replicas.running))
                if at % 3 == 0:
                    replicas.kill(index)
                    replicas.start(index)
                    replicas.wait_together()
                else:
                    replicas.part(index)
            seen.reaches(429, refused)

        began_s = time.monotonic()
        seen.run(disturb)
        most = limit + int((time.monotonic() - began_s) * limit / 86_400)  # so many become free again meanwhile
        print(f"{pods.began_total} of {most}, {seen.statuses}, cut {seen.cut}, {seen.refusals}")
        assert limit - turns * (slack + clients) <= pods.began_total <= most, (pods.began_total, seen.statuses)
