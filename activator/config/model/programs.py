"""Programs on this machine that are started on demand."""

import re
from typing import Annotated, Final

import msgspec

from activator.config.model.hooks import Hooks
from activator.config.model.kinds import Count, Duration, Port, Positive, Secret, Size, doc
from activator.config.model.scaling import TARGET_CONCURRENCY
from activator.config.model.sleep import Sleep
from activator.runtime.units import MIB

LIFETIME_SERVICE: Final = "service"
LIFETIME_REQUEST: Final = "request"
LIFETIMES: Final = (LIFETIME_SERVICE, LIFETIME_REQUEST)

PORTS_MAX: Final = 1_000  # in one range

_RANGE: Final = re.compile(r"([1-9][0-9]{0,4})\s*-\s*([1-9][0-9]{0,4})", re.ASCII)

Nice = Annotated[int, msgspec.Meta(ge=-20, le=19)]


def parse_ports(text: str) -> range | None:
    """Parse a range such as `9000-9010`; None if it is not one."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    return range(first, last + 1) if 1 <= first <= last <= 65_535 and last - first < PORTS_MAX else None


class Readiness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The readiness probe of a program."""

    http_get: Annotated[
        str, doc("A path that must be answered with 2xx or 3xx. Empty: the port must accept connections.", "/health")
    ] = ""
    grpc: Annotated[
        str | None,
        doc(
            "The service for which gRPC's health service must report SERVING; `''`: the server as a whole.",
            "",
        ),
    ] = None
    log: Annotated[
        str,
        doc(
            "A regular expression: the process is ready when a line of its output contains a match; no connection is "
            "made. Only the first 4096 bytes of a line count. Many programs buffer output that goes to no terminal "
            "(Python: set `PYTHONUNBUFFERED`).",
            "listening on port [0-9]+",
        ),
    ] = ""
    command: Annotated[
        list[str],
        doc(
            "A command whose exit code 0 shows that the process is ready; nothing else connects before. It runs as "
            "the program does (directory, variables, user), with `{port}` replaced, after each `interval`, for at most "
            "10 s.",
            ["pg_isready", "-p", "{port}"],
        ),
    ] = []
    interval: Annotated[
        Duration, doc("The longest time between two probes while the process starts. The first steps are 2 ms.", "1s")
    ] = Duration(0.1)


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a local process that has no request any more."""

    signal: Annotated[
        str,
        doc("The name of the signal that its processes get first.", "SIGINT"),
    ] = "SIGTERM"
    command: Annotated[
        list[str],
        doc(
            "A command that is run instead of the signal, as the program is, with `{port}` replaced. If it fails or "
            "exceeds `grace`, the signal is sent.",
            ["nginx", "-s", "quit"],
        ),
    ] = []
    grace: Annotated[
        Duration,
        doc("The time that all its processes have to end after that; then they get SIGKILL.", "20s"),
    ] = Duration(10.0)


class Logs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The output of a program. `activator logs NAME` shows the last lines in every case."""

    show: Annotated[
        bool,
        doc("If true, lines are written to the output of the activator, prefixed with the name of the process.", False),
    ] = True
    file: Annotated[
        str,
        doc(
            "A file to which lines are appended, prefixed with the time and the name of the process. `~`, `$VAR` and "
            "`${VAR}` are expanded; relative paths begin at `directory`.",
            "~/logs/model.log",
        ),
    ] = ""
    max_size: Annotated[
        Size, doc("The size at which the file is renamed to `FILE.1`, an older one to `FILE.2`, and so on.", "50MiB")
    ] = Size(10 * MIB)
    keep: Annotated[Positive, doc("The number of older files to keep.", 9)] = 5


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of every program that the activator starts, a process or a container. Each copy is a pod."""

    readiness: Annotated[Readiness, doc("How a copy is probed before it gets requests.")] = Readiness()
    sleep: Annotated[
        Sleep | None,
        doc("How a copy is put to sleep instead of stopped, and woken instead of started."),
    ] = None
    hooks: Annotated[Hooks, doc("Actions after the start of a copy, and before its stop.")] = Hooks()
    gpus: Annotated[
        Count,
        doc(
            "The number of GPUs reserved for each copy, out of `gpus` of the file. A process finds them in "
            "`CUDA_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES`; a container gets only these, which engines support for "
            "NVIDIA's.",
            1,
        ),
    ] = 0
    preload: Annotated[
        bool,
        doc("If true, one copy is started with the activator, without a request, and stopped when idle.", True),
    ] = False
    pinned: Annotated[
        bool,
        doc(
            "If true, a loaded copy is neither stopped when it is idle nor evicted from its group.",
            True,
        ),
    ] = False
    logs: Annotated[Logs, doc("The destinations of its output.")] = Logs()
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
            "The target number of requests per copy: wanted copies = requests in flight and waiting / this number. "
            f"0: `container_concurrency`, or {TARGET_CONCURRENCY} if that is 0.",
            10,
        ),
    ] = 0
    idle: Annotated[Duration, doc("The time without a request after which the number falls to `min_scale`.", "5m")] = (
        Duration(60.0)
    )


class Process(Program, frozen=True, forbid_unknown_fields=True):
    """A program on this machine. Each of its processes is a pod; the activator starts and stops them by load."""

    command: Annotated[
        list[str],
        doc(
            "The program and its arguments. `{port}` (and the variable `PORT`) is the port to listen on, `{socket}` "
            "(`SOCKET`) a Unix socket instead. There is no shell: nothing else is expanded. It has to stay in the "
            "foreground (nginx: `daemon off;`).",
            ["python3", "serve.py", "--port", "{port}"],
            ["uvicorn", "app:app", "--uds", "{socket}"],
        ),
    ]
    port: Annotated[
        Port | str | None,
        doc(
            "The port of a program whose port cannot be configured, for one copy. Or a range with a port for each "
            "copy. A port that another program uses is an error at the start; in a range it is skipped. Not set: any "
            "free port.",
            8080,
            "9000-9010",
        ),
    ] = None
    socket: Annotated[
        bool | str,
        doc(
            "If true, the process listens on a Unix socket in a folder that no other user can enter, named in the "
            "variable `SOCKET`; implied by `{socket}` in `command`. Or the path of a socket that cannot be configured, "
            "for one copy. `~`, `$VAR` and `${VAR}` are expanded; relative paths begin at `directory`.",
            True,
            "/run/app/app.sock",
        ),
    ] = False
    lifetime: Annotated[
        str,
        doc(
            "`service`: the program serves until it is stopped. `request`: it ends by itself after one "
            "request, as programs for inetd do; each request gets its own copy.",
            LIFETIME_REQUEST,
            words=LIFETIMES,
        ),
    ] = LIFETIME_SERVICE
    stop: Annotated[Stop, doc("How a process is ended.")] = Stop()
    environment: Annotated[
        dict[str, Secret],
        doc(
            "Variables, added to those of `env_file` and of the activator. Variables that configure the activator "
            "(`ACTIVATOR_…`) are not inherited.",
            {"MODEL": "small"},
        ),
    ] = {}
    env_file: Annotated[
        str,
        doc(
            "A file with more variables, one `KEY=VALUE` per line; read at each start. `~`, `$VAR` and `${VAR}` are "
            "expanded; relative paths begin at `directory`.",
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
            "The user of the program, a name or a number; after a colon the group, if not the user's own. The "
            "activator must be root. HOME, USER and LOGNAME are set. Empty: the activator's.",
            "www-data",
        ),
    ] = ""
    nice: Annotated[Nice, doc("The niceness of the program: 19 is the lowest priority; below 0 needs root.", 10)] = 0
    cpus: Annotated[
        str, doc("The processors on which the program may run, numbers and ranges. Empty: all.", "0-3,6")
    ] = ""
    memory: Annotated[
        Size,
        doc(
            "The memory of a copy with its descendants, if the activator has a cgroup of its own (version 2; a "
            "service with `Delegate=yes`): the kernel kills a copy above it. Otherwise that of each process "
            "(RLIMIT_DATA: heap and private mappings): allocations beyond it fail. 0: no limit.",
            "2GiB",
        ),
    ] = Size(0)

    @property
    def copies_max(self) -> int | None:
        """The largest possible number of copies, or None for any number."""
        if self.socket_path():
            return 1
        ports = self.ports()
        return None if ports is None else len(ports)

    def ports(self) -> range | None:
        """Return the ports that its copies may have; None: any free ones."""
        if self.port is None:
            return None
        return range(self.port, self.port + 1) if isinstance(self.port, int) else parse_ports(self.port)

    def wants_socket(self) -> bool:
        return bool(self.socket) or any("{socket}" in word for word in self.command)

    def socket_path(self) -> str:
        """Return the configured path; empty: a generated one for each copy, or no socket."""
        return self.socket if isinstance(self.socket, str) else ""
