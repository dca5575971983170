"""Container engines of the test's own: Podman and Docker, each with folders and a network of its own, an image without
a registry, and its API on a socket. Nothing of another engine of this machine is seen or touched.
"""

from __future__ import annotations

import abc
import contextlib
import http.client
import io
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

from tests.e2e.running import PATIENCE_S, eventually, state_of

IMAGE = "localhost/serving"
PORT = 8080

# A server that ends at SIGTERM, as process 1 does it only if it says so.
_SERVE = """#!/bin/sh
trap 'kill $server; exit 0' TERM
httpd -f -p "${PORT:-8080}" -h /www & server=$!
until wget -q -O /tmp/healthy "http://127.0.0.1:${PORT:-8080}/"; do sleep 0.05; done
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
_COMMANDS = ("sh", "httpd", "sleep", "echo", "cat", "tail", "test", "touch", "kill", "true", "false", "wget")
_LABEL = "activator.instance"  # of what an activator has made


def _lacking(*names: str) -> list[str]:
    lacks = [name for name in names if shutil.which(name) is None]
    busybox = shutil.which("busybox")
    if busybox and subprocess.run(["ldd", busybox], capture_output=True, check=False).returncode == 0:
        lacks.append("busybox without shared libraries (busybox-static)")
    return lacks


class RealEngine(abc.ABC):
    """In a folder with a short name: Podman takes no other."""

    TOOL: ClassVar[str]  # the command, which its API's users type as well
    REMOVE: ClassVar[tuple[str, ...]]  # the command that does not wait for SIGTERM
    PUBLISHES_ALONE: ClassVar[bool]  # published ports stay while the service is away
    HAS_ADDRESSES: ClassVar[bool] = True  # of containers, which this machine can reach
    HAS_CGROUPS: ClassVar[bool] = True  # for limits and for pauses

    def __init__(self) -> None:
        self._account: dict[str, Any] = {}  # that its programs run as; empty: that of the test
        self._folder = Path(tempfile.mkdtemp(prefix=f"{self.TOOL}-"))
        self.socket = self._folder / "engine.sock"
        self._service: subprocess.Popen[bytes] | None = None

    @classmethod
    @abc.abstractmethod
    def missing(cls) -> str:
        """What this machine lacks; empty: nothing."""

    @abc.abstractmethod
    def _tool(self) -> list[str]:
        """The command with its general options."""

    @abc.abstractmethod
    def _serve(self) -> list[str]:
        """What serves the API."""

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    @property
    def engine(self) -> str:
        """As in the activator's configuration."""
        return f"unix:{self.socket}"

    def run(self, *words: str, check: bool = True) -> str:
        """What a command of the engine writes."""
        done = subprocess.run(
            [*self._tool(), *words],
            **self._account,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0 or not check, (words, done.stderr)
        output: str = done.stdout
        return output.strip()

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
        self._service = self._daemon(*self._serve())
        eventually(self._answers, f"the API of {self.TOOL}")

    def kill(self) -> None:
        """End the service at once; containers go on."""
        assert self._service is not None
        self._kill(self._service)
        self._service = None
        self.socket.unlink(missing_ok=True)

    def containers(self, *labels: str) -> list[dict[str, Any]]:
        """All that have them, running or not, as the API lists them."""
        query = urlencode({"all": "true", "filters": json.dumps({"label": labels})})
        found: list[dict[str, Any]] = self._asked(f"/containers/json?{query}")
        return found

    def names_made(self) -> list[str]:
        """Of those that an activator has made."""
        return [one["Names"][0].removeprefix("/") for one in self.containers(_LABEL)]

    def state(self, name: str) -> str:
        return self.run("inspect", "--type", "container", "-f", "{{.State.Status}}", name)

    def remove(self, *names: str) -> None:
        """Whether they run or not."""
        if names:
            self.run(*self.REMOVE, *names)

    def close(self) -> None:
        """End everything of it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self, service: subprocess.Popen[bytes]) -> None:
        service.kill()
        service.wait()

    def _daemon(self, *words: str | Path) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                words,
                **self._account,
                cwd=self._folder,  # conmon leaves a file `oom` where it runs, when a container had too little memory
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=bool(self._account),
            )

    def _asked(self, target: str) -> Any:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PATIENCE_S)
            sock.connect(str(self.socket))
            connection = http.client.HTTPConnection("engine")
            connection.sock = sock
            connection.request("GET", target)
            with connection.getresponse() as answer:
                return json.loads(answer.read())

    def _answers(self) -> bool:
        try:
            return bool(self._asked("/version"))
        except (OSError, http.client.HTTPException):
            return False


class Podman(RealEngine):
    """With runc and netavark."""

    TOOL = "podman"
    REMOVE = ("rm", "-f", "-t", "0")
    PUBLISHES_ALONE = True

    def __init__(self) -> None:
        super().__init__()
        self._conf = self._folder / "containers.conf"
        self._conf.write_text(_CONTAINERS_CONF)

    @classmethod
    def missing(cls) -> str:
        if os.geteuid() != 0:
            return "root, for containers with a network"
        lacks = _lacking("podman", "runc", "busybox", "iptables")
        if not lacks and not any(Path(place).exists() for place in _NETAVARK):
            lacks = ["netavark"]
        return " and ".join(lacks)

    def close(self) -> None:
        if self._service is not None:
            self._kill(self._service)
        self.run(*self.REMOVE, "-a", check=False)
        for monitor in self._monitors():  # of commands whose container has ended before them
            with contextlib.suppress(ProcessLookupError):
                os.kill(monitor, signal.SIGKILL)
        super().close()

    def _monitors(self) -> list[int]:
        """What watches a container each, and outlives it by a moment."""
        return self._processes("cmdline", b"conmon")

    def _processes(self, file: str, word: bytes) -> list[int]:
        """Those that have `word` and the folder in this file of theirs."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and state_of(int(name)) != "Z":
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{name}/{file}").read_bytes()
                    if word in words and str(self._folder).encode() in words:
                        found.append(int(name))
        return found

    def _tool(self) -> list[str]:
        folder = self._folder
        return [
            *("podman", "--root", str(folder / "root"), "--runroot", str(folder / "run")),
            *("--tmpdir", str(folder / "tmp"), "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"),
        ]

    def _serve(self) -> list[str]:
        return [*self._tool(), "system", "service", "--time=0", f"unix://{self.socket}"]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "CONTAINERS_CONF": str(self._conf)}


class RootlessPodman(Podman):
    """Of an account that is not root's: the first one of this machine that may have accounts of its own."""

    HAS_ADDRESSES = False
    HAS_CGROUPS = Path("/sys/fs/cgroup/cgroup.controllers").exists()  # version 2, which may be given to accounts

    def __init__(self) -> None:
        super().__init__()
        account = _rootless_account()
        assert account is not None
        self._account = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        for place in (self._folder, self._conf):
            os.chown(place, account.pw_uid, account.pw_gid)

    @classmethod
    def missing(cls) -> str:
        lacks = super().missing() or " and ".join(_lacking("newuidmap", "slirp4netns"))
        if not lacks and _rootless_account() is None:
            lacks = "an account in /etc/subuid and /etc/subgid (useradd makes one)"
        if not lacks and not os.stat("/dev/net/tun").st_mode & stat.S_IWOTH:
            lacks = "/dev/net/tun for everybody (chmod 666)"
        return lacks

    def _monitors(self) -> list[int]:
        """Also what keeps the namespace of the account: all of its programs have its folder in their environment."""
        return self._processes("environ", b"")

    def _kill(self, service: subprocess.Popen[bytes]) -> None:
        """What serves is a child of it, with accounts of its own."""
        os.killpg(service.pid, signal.SIGKILL)
        service.wait()

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), "HOME": str(self._folder), "XDG_RUNTIME_DIR": str(self._folder)}


def _rootless_account() -> pwd.struct_passwd | None:
    names = [
        {line.partition(":")[0] for line in Path(place).read_text().splitlines()} if Path(place).exists() else set()
        for place in ("/etc/subuid", "/etc/subgid")
    ]
    return next((one for one in pwd.getpwall() if one.pw_name in names[0] & names[1]), None)


class Docker(RealEngine):
    """On a bridge of its own, without rules of iptables: published ports are Docker's own proxies."""

    TOOL = "docker"
    REMOVE = ("rm", "-f")
    PUBLISHES_ALONE = False  # its proxies end with it

    def __init__(self) -> None:
        super().__init__()
        self._bridge = f"dkt{os.getpid()}"  # 15 characters at most
        self._ip("link", "add", self._bridge, "type", "bridge")
        self._ip("address", "add", f"10.213.{os.getpid() % 256}.1/24", "dev", self._bridge)
        self._ip("link", "set", self._bridge, "up")
        # Not dockerd's own, which ends with it.
        folder = self._folder / "containerd"
        self._containerd_socket = folder / "containerd.sock"
        places = ("--root", folder / "root", "--state", folder / "state", "--address", self._containerd_socket)
        folder.mkdir()
        self._containerd = self._daemon("containerd", "--config", os.devnull, *places)

    @classmethod
    def missing(cls) -> str:
        if os.geteuid() != 0:
            return "root, for containers with a network"
        programs = ("dockerd", "docker", "docker-proxy", "containerd", "runc", "busybox", "ip", "umount")
        return " and ".join(_lacking(*programs))

    def start(self) -> None:
        eventually(self._containerd_socket.exists, "the socket of containerd")
        super().start()

    def kill(self) -> None:
        super().kill()
        (self._folder / "pid").unlink(missing_ok=True)

    def close(self) -> None:
        try:
            if self._service is not None:
                self.remove(*(one["Id"] for one in self.containers()))
                self._service.terminate()  # so that it takes back its mounts
                self._service.wait(PATIENCE_S)
        finally:
            for one in (self._service, self._containerd):
                if one is not None:
                    one.kill()
                    one.wait()
            self._ip("link", "delete", self._bridge)
            self._unmount()
            super().close()

    def _unmount(self) -> None:
        """What a daemon that was killed has left."""
        places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for place in reversed(places):
            if place.startswith(f"{self._folder}/"):
                subprocess.run(["umount", "--lazy", place], check=True, capture_output=True, timeout=PATIENCE_S)

    def _tool(self) -> list[str]:
        return ["docker", "--config", str(self._folder / "client"), "--host", f"unix://{self.socket}"]

    def _serve(self) -> list[str]:
        folder = self._folder
        return [
            *("dockerd", "--config-file", "", "--host", f"unix://{self.socket}", "--pidfile", str(folder / "pid")),
            *("--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "--storage-driver", "vfs"),
            *("--containerd", str(self._containerd_socket), "--bridge", self._bridge, "--ip-forward=false"),
            *("--iptables=false", "--ip6tables=false", "--ip-masq=false", "--live-restore"),
            *("--default-ulimit", "nofile=1024:1024"),
        ]

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=PATIENCE_S)
