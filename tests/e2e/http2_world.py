"""An activator in front of one pod for each protocol, all of which answer the same (http2_pods.py).

Which pod a request goes to is told by its host: `localhost` is the pod that speaks h2c, `h2.test` the one that speaks
HTTP/2 over TLS, and every other host the one that speaks HTTP/1.1. `one.NAME` is the same pod as NAME with a limit of
one request at a time.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

from tests.e2e.conftest import RunActivator
from tests.e2e.http2_client import Http2Client
from tests.e2e.http2_pods import Http2Pod, mirror1
from tests.e2e.http_client import Client
from tests.e2e.pods import ScriptedPod
from tests.e2e.running import Activator, configured
from tests.http2.clients import Address
from tests.http2.hostile import Target
from tests.http2.raw_client import trusting

HOSTS = {"h1": "127.0.0.1", "h2c": "localhost", "h2": "h2.test"}


@dataclass
class World:
    activator: Activator
    pod1: ScriptedPod
    pod2: Http2Pod
    pod_tls: Http2Pod
    ca: Path
    tls_port: int

    @property
    def port(self) -> int:
        return self.activator.port

    def trusting(self) -> ssl.SSLContext:
        return trusting(self.ca)

    def http2(self, *, tls: bool = False, keeps: bool = True, timeout_s: float = 20.0) -> Http2Client:
        port = self.tls_port if tls else self.port
        context = self.trusting() if tls else None
        return Http2Client(f"127.0.0.1:{port}", tls=context, keeps=keeps, timeout_s=timeout_s)

    def http1(self) -> Client:
        return Client(self.activator.address)

    def target(self, pod: str = "h1", *, tls: bool = False) -> Target:
        """For the tables; the authority says which pod."""
        port = self.tls_port if tls else self.port
        context = self.trusting() if tls else None
        pid = self.activator.process.pid
        if pod == "h2":  # a name that nobody resolves
            return Target(HOSTS["h1"], port, authority=HOSTS[pod], tls=context, pid=pid)
        return Target(HOSTS[pod], port, tls=context, pid=pid)

    def place(self, pod: str = "h1", *, tls: bool = False) -> Address:
        """For the clients that are not ours."""
        return Address(HOSTS[pod], self.tls_port, self.ca) if tls else Address(HOSTS[pod], self.port)

    def pod(self, name: str) -> ScriptedPod | Http2Pod:
        pods: dict[str, ScriptedPod | Http2Pod] = {"h1": self.pod1, "h2c": self.pod2, "h2": self.pod_tls}
        return pods[name]


def revisions(name: str, host: str, pod: ScriptedPod | Http2Pod, **more: Any) -> list[dict[str, Any]]:
    protocol = {} if name == "h1" else {"protocol": name}
    one = {"name": name, "hosts": [host], "pods": [pod.address], **protocol, **more}
    limited = {**one, "name": f"one-{name}", "hosts": [f"one.{name}.test"], "container_concurrency": 1}
    return [one, limited]


@contextlib.contextmanager
def world(folder: Path, run_activator: RunActivator, **more: Any) -> Iterator[World]:
    authority = trustme.CA()
    ours = authority.issue_cert("localhost", "127.0.0.1", "h2.test")
    theirs = authority.issue_cert("pod.test")
    ca, certificate, key = folder / "ca.pem", folder / "tls.crt", folder / "tls.key"
    authority.cert_pem.write_to_path(str(ca))
    ours.private_key_pem.write_to_path(str(key))
    certificate.write_bytes(b"".join(blob.bytes() for blob in ours.cert_chain_pems))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.configure_cert(context)
    context.set_alpn_protocols(["h2"])
    with ScriptedPod(mirror1) as pod1, Http2Pod() as pod2, Http2Pod(tls=context) as pod_tls:
        all_of_them = [
            *revisions("h1", "*", pod1),
            *revisions("h2c", "localhost", pod2),
            *revisions("h2", "h2.test", pod_tls, tls={"ca": str(ca), "server_name": "pod.test"}),
        ]
        secure = {"address": "127.0.0.1:0", "certificate": str(certificate), "key": str(key)}
        activator = run_activator(configured(all_of_them, **{"listen": ["127.0.0.1:0", secure], **more}))
        for name in ("h1", "h2c", "h2"):
            activator.wait_ready_pods(name)
            activator.wait_ready_pods(f"one-{name}")
        second = activator.wait_log(r" serving on (\S+ \S+)").split(", ")[1]
        yield World(activator, pod1, pod2, pod_tls, ca, int(second.split("/")[0].rpartition(":")[2]))
