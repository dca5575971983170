"""A control plane of one's own on loopback, of real programs: etcd, kube-apiserver, kube-controller-manager.

They are found on PATH. Authorization is RBAC; the account of the kubeconfig is an administrator. There is no scheduler
and no kubelet: pods are bound and run by whoever simulates nodes (simulated_nodes.py).

`python -m tests.kube.control_plane FOLDER` keeps one running until it is interrupted.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")
START_TIMEOUT_S = 120.0  # of a server that starts on a slow and busy machine
STOP_TIMEOUT_S = 20.0
LOOPBACK = "127.0.0.1"

# What looks after nodes is left out: simulated ones have no heartbeat that must not be missed.
CONTROLLERS = (
    "deployment-controller,replicaset-controller,statefulset-controller,job-controller,endpointslice-controller,"
    "namespace-controller,garbage-collector-controller,serviceaccount-controller,resourcequota-controller"
)


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


class ControlPlane:
    """`folder` keeps its state and its logs; `port` 0: any that is free."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        self.kubeconfig = str(folder / "kubeconfig")
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        etcd, peer, api = _free_ports(3)
        self._etcd, self._peer, self._port = etcd, peer, port or api
        self._token = secrets.token_hex(16)

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self._port}"

    def start(self) -> None:
        """Returns when the API is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_files()
        self._run("etcd", *self._etcd_flags())
        self.start_api()

    def start_api(self) -> None:
        """The controllers are started anew with it: they would take up to a minute to find out that it is back."""
        self._run("kube-apiserver", *self._api_flags())
        self._wait_ready()
        self._write_kubeconfig()
        self._end("kube-controller-manager", signal.SIGKILL)
        self._run("kube-controller-manager", *self._manager_flags())

    def kill_api(self) -> None:
        """As with a machine that loses its power; `start_api` brings it back, with what etcd has."""
        self._end("kube-apiserver", signal.SIGKILL)

    def close(self) -> None:
        for name in reversed(list(self.running)):  # at once: what they would keep in order is thrown away
            self._end(name, signal.SIGKILL)

    # --- its programs ---

    def _etcd_flags(self) -> list[str]:
        client, peer = f"http://{LOOPBACK}:{self._etcd}", f"http://{LOOPBACK}:{self._peer}"
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # of a cluster that nobody keeps
            "--log-level=error",
        ]

    def _api_flags(self) -> list[str]:
        keys = self.folder / "accounts.key"
        return [
            f"--etcd-servers=http://{LOOPBACK}:{self._etcd}",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={self._port}",
            f"--cert-dir={self.folder / 'certificates'}",  # it makes its own
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={keys}",
            f"--service-account-key-file={keys}",
            "--service-cluster-ip-range=198.51.100.0/24",
            "--endpoint-reconciler-type=none",
            "--profiling=false",
        ]

    def _manager_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={CONTROLLERS}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--service-account-private-key-file={self.folder / 'accounts.key'}",
            "--kube-api-qps=500",  # a test is not to wait for a limit of calls
            "--kube-api-burst=1000",
            "--concurrent-deployment-syncs=20",
            "--concurrent-replicaset-syncs=20",
            "--concurrent-service-endpoint-syncs=20",
            "--concurrent-gc-syncs=20",
        ]

    def _run(self, name: str, *flags: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen([name, *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self.running.pop(name, None)
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_ready(self) -> None:
        context = ssl._create_unverified_context()
        asked = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {self._token}"})
        give_up_s = time.monotonic() + START_TIMEOUT_S
        while True:
            for name, process in self.running.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended; see {self.folder / name}.log")
            try:
                with urllib.request.urlopen(asked, timeout=5.0, context=context):
                    return
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > give_up_s:
                    raise RuntimeError(f"the API is not ready after {START_TIMEOUT_S:g} s: {error}") from error
            time.sleep(0.1)

    # --- its files ---

    def _write_files(self) -> None:
        tokens = self.folder / "tokens.csv"
        if tokens.exists():
            self._token = tokens.read_text().partition(",")[0]
            return
        tokens.write_text(f"{self._token},admin,1,system:masters\n")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (self.folder / "accounts.key").write_bytes(pem)

    def _write_kubeconfig(self) -> None:
        authority = str(self.folder / "certificates" / "apiserver.crt")
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": authority}}],
            "users": [{"name": "admin", "user": {"token": self._token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }
        Path(self.kubeconfig).write_text(yaml.safe_dump(document))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def main(folder: str) -> int:
    plane = ControlPlane(Path(folder))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # its programs end with it
    try:
        plane.start()
        print(f"KUBECONFIG={plane.kubeconfig}", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        plane.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
