"""Programs of this machine that are started from zero."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Count, Duration, Port, Positive, Secret, Size, doc
from activator.config.model.scaling import TARGET_CONCURRENCY
from activator.config.model.sleep import Sleep
from activator.runtime.units import MIB

LIFETIME_SERVICE: Final = "service"
LIFETIME_REQUEST: Final = "request"
LIFETIMES: Final = (LIFETIME_SERVICE, LIFETIME_REQUEST)

PORTS_MAX: Final = 1_000  # of one range

_RANGE: Final = re.compile(r"([1-9][0-9]{0,4})\s*-\s*([1-9][0-9]{0,4})", re.ASCII)

Nice = Annotated[int, msgspec.Meta(ge=-20, le=19)]


def parse_ports(text: str) -> range | None:
    """`9000-9010`; None: it is not such a range."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    return range(first, last + 1) if 1 <= first <= last <= 65_535 and last - first < PORTS_MAX else None


class Readiness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a local process is probed."""

    http_get: Annotated[
        str, doc("A path that must be answered with 2xx or 3xx. Empty: the port must accept connections.", "/health")
    ] = ""
    grpc: Annotated[
        str | None,
        doc(
            "The service that gRPC's health service must call SERVING; empty: the server as a whole. Not set: it is "
            "not asked.",
            "",
        ),
    ] = None
    log: Annotated[
        str,
        doc(
            "A regular expression: the first line of the output that it is found in shows that the process is ready; "
            "no connection is made. Of a line the first 4096 bytes count. Many programs buffer their standard output "
            "when it is no terminal (Python: set `PYTHONUNBUFFERED`). Empty: the output is not looked at.",
            "listening on port [0-9]+",
        ),
    ] = ""
    command: Annotated[
        list[str],
        doc(
            "A command that shows by the exit code 0 that the process is ready; nothing else connects to the program "
            "before. It is run as the program is (directory, variables, user), with `{port}` replaced. It is asked "
            "again after `interval`; one that takes longer than 10 s is ended. Empty: none.",
            ["pg_isready", "-p", "{port}"],
        ),
    ] = []
    interval: Annotated[
        Duration, doc("The longest time between two probes while the process starts. The first steps are 2 ms.", "1s")
    ] = Duration(0.1)


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a local process is ended, once it has no request any more."""

    signal: Annotated[
        str,
        doc("The name of the signal that its processes get first.", "SIGINT"),
    ] = "SIGTERM"
    command: Annotated[
        list[str],
        doc(
            "A command that is run in the place of the signal, as the program is, with `{port}` replaced. If it fails, "
            "or takes longer than `grace`, the signal is sent after all. Empty: none.",
            ["nginx", "-s", "quit"],
        ),
    ] = []
    grace: Annotated[
        Duration,
        doc("The time that all its processes have to end then. What is left of them gets SIGKILL.", "20s"),
    ] = Duration(10.0)


class Logs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the output of a program goes. `activator logs NAME` shows the last lines in every case."""

    show: Annotated[
        bool,
        doc("Whether lines are written to the output of the activator, with the name of the process in front.", False),
    ] = True
    file: Annotated[
        str,
        doc(
            "A file that lines are appended to, with the time and the name of the process in front. A relative path "
            "begins at `directory`; `~`, `$VAR` and `${VAR}` are expanded. Empty: none.",
            "~/logs/model.log",
        ),
    ] = ""
    max_size: Annotated[
        Size, doc("The size at which the file is renamed to `FILE.1`, an older one to `FILE.2`, and so on.", "50MiB")
    ] = Size(10 * MIB)
    keep: Annotated[Positive, doc("The number of older files that are kept.", 9)] = 5


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all programs have that the activator starts and stops, processes and containers. Each copy is a pod."""

    readiness: Annotated[Readiness, doc("How a copy is probed before it gets requests.")] = Readiness()
    sleep: Annotated[
        Sleep | None,
        doc(
            "How a copy is put to sleep where it would be stopped, and woken where one would be started. Not set: "
            "it is stopped."
        ),
    ] = None
    gpus: Annotated[
        Count,
        doc(
            "The number of GPUs that each copy has to itself, out of `gpus` of the file. A process finds them in "
            "`CUDA_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES`; a container is given these alone, as the engine does "
            "it for NVIDIA's.",
            1,
        ),
    ] = 0
    preload: Annotated[
        bool,
        doc("Whether one copy is started with the activator, without a request. It ends when it is idle.", True),
    ] = False
    pinned: Annotated[
        bool,
        doc(
            "Whether a copy that has been loaded stays: it is not idle, and gives way to no other of its group.",
            True,
        ),
    ] = False
    logs: Annotated[Logs, doc("Where its output goes.")] = Logs()
    min_scale: Annotated[
        Count, doc("The number of copies that always run. 0: the program is stopped when it is idle.", 1)
    ] = 0
    max_scale: Annotated[
        Count,
        doc(
            "The highest number of copies. 0: one if `container_concurrency` is 0, else the number of processors; "
            "at least `min_scale`.",
            4,
        ),
    ] = 0
    target_concurrency: Annotated[
        Count,
        doc(
            "The number of requests per copy that the scaling aims at: wanted copies = requests in flight and "
            f"waiting / this number. 0: `container_concurrency`, or {TARGET_CONCURRENCY} if that is 0.",
            10,
        ),
    ] = 0
    idle: Annotated[Duration, doc("The time without a request after which the number falls to `min_scale`.", "5m")] = (
        Duration(60.0)
    )


class Process(Program, frozen=True, forbid_unknown_fields=True):
    """A program on this machine. Each process of it is a pod; the activator starts and stops them by load."""

    command: Annotated[
        list[str],
        doc(
            "The program and its arguments. `{port}` is replaced by the port that the process must listen on; the "
            "environment variable `PORT` has the same value. `{socket}` and `SOCKET` likewise, if it listens on a Unix "
            "socket. No shell reads it: nothing else is expanded. The program has to stay in the foreground (nginx: "
            "`daemon off;`).",
            ["python3", "serve.py", "--port", "{port}"],
            ["uvicorn", "app:app", "--uds", "{socket}"],
        ),
    ]
    port: Annotated[
        Port | str | None,
        doc(
            "The port that the program listens on, if it cannot be told any: there is one copy then. Or a range, of "
            "which each copy has a port. A port that another program uses is an error at the start; of a range it is "
            "passed over. Not set: a free port for each process.",
            8080,
            "9000-9010",
        ),
    ] = None
    socket: Annotated[
        bool | str,
        doc(
            "Whether the process listens on a Unix socket in the place of a port, in a folder that no other user can "
            "enter. It is so if `command` has `{socket}`; set it for a program that reads the variable `SOCKET`. Or "
            "the path of the socket, if the program cannot be told any: there is one copy then. `~`, `$VAR` and "
            "`${VAR}` are expanded; a relative path begins at `directory`.",
            True,
            "/run/app/app.sock",
        ),
    ] = False
    lifetime: Annotated[
        str,
        doc(
            "`service`: the program serves until it is stopped. `request`: it ends by itself after one request, as "
            "tools behind inetd do; each copy then gets one request, and another one is started for the next.",
            LIFETIME_REQUEST,
            words=LIFETIMES,
        ),
    ] = LIFETIME_SERVICE
    stop: Annotated[Stop, doc("How a process is ended.")] = Stop()
    environment: Annotated[
        dict[str, Secret],
        doc(
            "Environment variables of the program, added to those of `env_file` and of the activator. Variables that "
            "configure the activator (`ACTIVATOR_…`) are not passed on.",
            {"MODEL": "small"},
        ),
    ] = {}
    env_file: Annotated[
        str,
        doc(
            "A file with more variables, `KEY=VALUE` in each line; it is read at each start of a process. A relative "
            "path begins at `directory`. `~`, `$VAR` and `${VAR}` are expanded, as in `directory`. Empty: none.",
            ".env",
        ),
    ] = ""
    directory: Annotated[
        str,
        doc(
            "The working directory of the program. `~`, `$VAR` and `${VAR}` are expanded. Empty: that of the "
            "activator.",
            "~/models/$MODEL",
        ),
    ] = ""
    user: Annotated[
        str,
        doc(
            "The user that the program runs as: a name or a number, and behind a colon the group, if it is another one "
            "than the user's own. The activator must be root. HOME, USER and LOGNAME are set. Empty: the user of the "
            "activator.",
            "www-data",
        ),
    ] = ""
    nice: Annotated[Nice, doc("The niceness of the program: 19 gives way to all others; below 0 needs root.", 10)] = 0
    cpus: Annotated[
        str, doc("The processors that the program may run on, numbers and ranges. Empty: all.", "0-3,6")
    ] = ""
    memory: Annotated[
        Size,
        doc(
            "The memory that a copy of the program may use, with its descendants: by a cgroup, where the activator has "
            "one for itself (a service with `Delegate=yes`) that can limit memory (version 2). The kernel ends a copy "
            "that needs more. Elsewhere the memory that each of its processes may ask for (RLIMIT_DATA: heap and "
            "private mappings): what one asks for beyond that is refused. 0: no limit.",
            "2GiB",
        ),
    ] = Size(0)

    @property
    def copies_max(self) -> int | None:
        """There can be so many copies of it; None: any number."""
        if self.socket_path():
            return 1
        ports = self.ports()
        return None if ports is None else len(ports)

    def ports(self) -> range | None:
        """Those that its copies may have; None: any that are free."""
        if self.port is None:
            return None
        return range(self.port, self.port + 1) if isinstance(self.port, int) else parse_ports(self.port)

    def wants_socket(self) -> bool:
        return bool(self.socket) or any("{socket}" in word for word in self.command)

    def socket_path(self) -> str:
        """As the file has it; empty: a socket of its own for each copy, or none."""
        return self.socket if isinstance(self.socket, str) else ""
