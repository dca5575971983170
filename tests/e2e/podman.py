"""A container engine of the test's own: Podman with folders of its own, an image without a registry, and its API on a
socket. Nothing of another engine of this machine is seen or touched.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.e2e.running import eventually, state_of

IMAGE = "localhost/serving"
PORT = 8080

# A server that ends at SIGTERM, as process 1 does it only if it says so.
_SERVE = """#!/bin/sh
trap 'kill $server; exit 0' TERM
httpd -f -p "${PORT:-8080}" -h /www & server=$!
echo "listening on port ${PORT:-8080}"
wait $server
"""
_CONTAINERS_CONF = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
events_logger = "file"
"""
_NETAVARK = ("/usr/lib/podman/netavark", "/usr/libexec/podman/netavark")
_COMMANDS = ("sh", "httpd", "sleep", "echo", "cat", "test", "touch", "kill", "true", "false")


def missing() -> str:
    """What this machine lacks; empty: nothing."""
    if os.geteuid() != 0:
        return "root, for containers with a network"
    programs = [name for name in ("podman", "runc", "busybox", "iptables") if shutil.which(name) is None]
    if (
        not programs
        and subprocess.run(["ldd", str(shutil.which("busybox"))], capture_output=True, check=False).returncode == 0
    ):
        programs = ["busybox without shared libraries (busybox-static)"]
    if not programs and not any(Path(place).exists() for place in _NETAVARK):
        programs = ["netavark"]
    return " and ".join(programs)


class Podman:
    """In a folder with a short name: Podman takes no other."""

    def __init__(self) -> None:
        folder = self._folder = Path(tempfile.mkdtemp(prefix="podman-"))
        self._conf = folder / "containers.conf"
        self._conf.write_text(_CONTAINERS_CONF)
        self.socket = folder / "podman.sock"
        self._service: subprocess.Popen[bytes] | None = None

    @property
    def engine(self) -> str:
        """As in the activator's configuration."""
        return f"unix:{self.socket}"

    def run(self, *words: str, check: bool = True) -> str:
        """What a command of Podman writes."""
        done = subprocess.run(
            [*self._command(), *words], env=self._environment(), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0 or not check, (words, done.stderr)
        return done.stdout.strip()

    def import_image(self, name: str = IMAGE, *changes: str) -> None:
        """An image with busybox's server."""
        path = self._folder / "image.tar"
        with tarfile.open(path, "w") as tar:
            tar.add(str(shutil.which("busybox")), "bin/busybox")
            for command in _COMMANDS:
                link = tarfile.TarInfo(f"bin/{command}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
            for file, text, mode in (
                ("bin/serve", _SERVE, 0o755),
                ("www/index.html", "hello\n", 0o644),
                ("etc/passwd", "root:x:0:0:root:/:/bin/sh\n", 0o644),
                ("tmp/empty", "", 0o644),
            ):
                entry = tarfile.TarInfo(file)
                entry.size, entry.mode = len(text), mode
                tar.addfile(entry, io.BytesIO(text.encode()))
        words = [word for change in ('CMD ["/bin/serve"]', f"EXPOSE {PORT}", *changes) for word in ("-c", change)]
        self.run("import", *words, str(path), name)

    def start(self) -> None:
        """Serve the API."""
        self._service = subprocess.Popen(
            [*self._command(), "system", "service", "--time=0", f"unix://{self.socket}"],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(self._answers, "the API of podman")

    def kill(self) -> None:
        """End the service at once; containers go on."""
        assert self._service is not None
        self._service.kill()
        self._service.wait()
        self._service = None
        self.socket.unlink(missing_ok=True)

    def signal(self, number: int) -> None:
        assert self._service is not None
        self._service.send_signal(number)

    def containers(self, *filters: str) -> list[dict[str, Any]]:
        """All that there are, running or not."""
        words = [word for one in filters for word in ("--filter", one)]
        found: list[dict[str, Any]] = json.loads(self.run("ps", "-a", "--format", "json", *words) or "[]")
        return found

    def made(self) -> list[dict[str, Any]]:
        """Those that an activator has made."""
        return self.containers("label=activator.instance")

    def state(self, name: str) -> str:
        return self.run("inspect", "--type", "container", "-f", "{{.State.Status}}", name)

    def close(self) -> None:
        """End everything of it."""
        if self._service is not None:
            with contextlib.suppress(ProcessLookupError):
                self._service.send_signal(signal.SIGCONT)
            self._service.kill()
            self._service.wait()
        self.run("rm", "-f", "-a", "-t", "0", check=False)
        for monitor in self._monitors():  # of commands whose container has ended before them
            with contextlib.suppress(ProcessLookupError):
                os.kill(monitor, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _monitors(self) -> list[int]:
        """What watches a container each, and outlives it by a moment."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and state_of(int(name)) != "Z":
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{name}/cmdline").read_bytes()
                    if b"conmon" in words and str(self._folder).encode() in words:
                        found.append(int(name))
        return found

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as sock:
            try:
                sock.connect(str(self.socket))
            except OSError:
                return False
        return True

    def _command(self) -> list[str]:
        folder = self._folder
        return [
            *("podman", "--root", str(folder / "root"), "--runroot", str(folder / "run")),
            *("--tmpdir", str(folder / "tmp"), "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"),
        ]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "CONTAINERS_CONF": str(self._conf)}
