"""Replicas of the activator in a cluster without Knative: each with its own pod object, token and folder.

They find each other by Leases, with the rights of the chart's two roles and no others. Each write that reaches the API
is known by its bearer, so a test can say who wrote what, and when.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from activator.runtime.rendezvous import owner_of
from tests.e2e.running import Activator, eventually
from tests.e2e.story_cluster import StoryCluster
from tests.e2e.test_e2e_members import free_ports
from tests.kubernetes.fake_nodes import FAILURE_ANNOTATION, Failure


class ActivationReplicas:
    """Of one cluster."""

    def __init__(self, cluster: StoryCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.key = folder / "members.key"
        self.key.write_text("a key of the group that is long enough\n")
        self.running: dict[str, Activator] = {}
        self._started: list[Activator] = []
        cluster.give_member_rights()

    # --- their life ---

    def place(self, name: str) -> tuple[str, list[str]]:
        """The address of a replica, and a command that runs another one where that address is."""
        return "127.0.0.1", []

    def start(self, name: str, **more: Any) -> Activator:
        (port,) = free_ports(1)
        host, prefix = self.place(name)
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        metadata = {"name": name, "annotations": {FAILURE_ANNOTATION: Failure.UNSCHEDULABLE.value}}
        spec = {"containers": [{"name": "activator", "image": "activator"}]}
        thing = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        made = self.cluster.create("pods", thing, self.cluster.system)
        members = {"listen": f"{host}:{port}", "key_file": str(self.key), **more.pop("members", {})}
        here = {"listen": f"{host}:0", "admin": f"{host}:0", "members": members, **more}
        here["kubernetes"] = self.cluster.kubernetes()
        (folder / "activator.yaml").write_text(json.dumps(here))
        variables = {
            "KUBECONFIG": self.cluster.config(folder, name),
            "POD_NAME": name,
            "POD_UID": made["metadata"]["uid"],
            "POD_IP": host,
            "POD_NAMESPACE": self.cluster.system,
        }
        found = Activator(["-c", str(folder / "activator.yaml")], folder, prefix, **variables)
        found.may_log_errors = True
        self._started.append(found)
        found.wait_serving()
        self.running[name] = found
        return found

    def start_all(self, count: int, **more: Any) -> list[Activator]:
        started = [self.start(f"activator-{index}", **more) for index in range(count)]
        self.wait_together()
        return started

    def view(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.running[name].ask("/debug/members")[2])
        return found

    def wait_together(self) -> None:
        """All are ready, in one view, and write what they own."""

        def together() -> bool:
            views = [self.view(name) for name in self.running]
            fits = all(len(view["writers"]) == len(views) and view["writes"] for view in views)
            ready = all(one.ask("/readyz")[0] == 200 for one in self.running.values())
            return fits and ready and len({view["epoch"] for view in views}) == 1

        eventually(together, "the replicas are together")

    def wait_group(self) -> None:
        """All are in one view, in which nobody is unproven."""

        def grouped() -> bool:
            views = [self.view(name) for name in self.running]
            fits = all(len(view["members"]) == len(views) and view["grants"] and not view["unproven"] for view in views)
            return fits and len({view["epoch"] for view in views}) == 1

        eventually(grouped, "the replicas are a group")

    def kill(self, name: str) -> None:
        """The process; its pod is there still, as with a container that dies."""
        gone = self.running.pop(name)
        gone.signal(signal.SIGKILL)
        gone.process.wait(10.0)

    def close(self) -> None:
        for activator in self._started:
            if activator.process.poll() is None:
                activator.signal(signal.SIGCONT)
            activator.close()

    # --- who owns and writes what ---

    def owner(self, name: str = "hello") -> str:
        """The replica that writes for the Activation of this name."""
        uid = self.cluster.get("activations", name)["metadata"]["uid"]
        seats = {self.view(one)["seat"]: one for one in self.running}
        return seats[owner_of(uid, seats)]

    def others(self, name: str = "hello") -> list[str]:
        owner = self.owner(name)
        return [one for one in self.running if one != owner]

    def writes(self, part: str) -> list[tuple[float, str, str, str]]:
        """(when, who, verb, path) of the writes of replicas to paths that have this part."""
        return [one for one in self.cluster.written() if f"/{part}" in one[3] and "/leases" not in one[3]]

    def writers(self, name: str) -> list[str]:
        """Who wrote for this object, one after the other."""
        found: list[str] = []
        for _, who, _, _ in self.writes(name):
            if not found or found[-1] != who:
                found.append(who)
        return found
