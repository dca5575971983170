"""The file as a whole."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from activator.config.model.containers import Containers
from activator.config.model.groups import Group
from activator.config.model.kinds import Share, doc
from activator.config.model.kubernetes import Kubernetes
from activator.config.model.listeners import (
    DEFAULT_ADMIN,
    AdminListener,
    Forwarded,
    Limits,
    Listener,
    Shutdown,
    address_of_listener,
)
from activator.config.model.members import Members
from activator.config.model.pods import Dns, Health, Push
from activator.config.model.revision import Revision
from activator.config.model.telemetry import Log, Metrics, Tracing

DEFAULT_LISTEN: Final = "127.0.0.1:8012"
WORKERS_MAX: Final = 256
AUTO: Final = "auto"
WorkerCount = Annotated[int, msgspec.Meta(ge=1, le=WORKERS_MAX)]


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    listen: Annotated[
        str | Listener | list[str | Listener],
        doc(
            "Where clients connect: an address, a mapping (for TLS and more), or a list of both; "
            "[listeners](listeners.md). Port 0: any free port.",
            "127.0.0.1:8080",
            "unix:/run/activator.sock",
            ["127.0.0.1:8080", {"address": "0.0.0.0:8443", "certificate": "tls.crt", "key": "tls.key"}],
        ),
    ] = DEFAULT_LISTEN
    admin: Annotated[
        str | AdminListener,
        doc(
            "The address of the admin port: health, metrics, debug pages; or a Unix socket, whose mode is 0600 unless "
            "it is a mapping that says otherwise. A mapping can name a token, which is needed where others than this "
            "machine can connect. Empty: none.",
            "127.0.0.1:8008",
            "unix:/run/activator/admin.sock",
            {"listen": "0.0.0.0:8008", "token": "file:/etc/activator/admin-token"},
        ),
    ] = DEFAULT_ADMIN
    workers: Annotated[
        WorkerCount | Literal["auto"],
        doc(
            f"The number of processes that serve, 1 to {WORKERS_MAX}, or `auto`: one for each processor that the "
            "program may use. Limits of revisions hold over all of them together; `limits` hold for each.",
            4,
            AUTO,
        ),
    ] = 1
    trailing_fragmentation_threshold: Annotated[
        Share,
        doc(
            "A table of slots is trimmed when its share of empty slots is above this value. 0: at every chance. "
            "1: never.",
            0.25,
        ),
    ] = 0.5
    access_log: Annotated[
        bool | str,
        doc(
            "The access log on standard output: `false`, `json`, `common`, `knative`, or a template with names of "
            "fields in braces.",
            "json",
            "{method} {target} {status}",
        ),
    ] = False
    log: Annotated[Log, doc("The log of the program itself.")] = Log()
    metrics: Annotated[Metrics, doc("Which metrics there are.")] = Metrics()
    tracing: Annotated[Tracing, doc("Which requests are traced, and where their spans are sent.")] = Tracing()
    abort_on_half_close: Annotated[
        bool,
        doc(
            "A client that ends its side of the connection (FIN) behind a whole request has gone: its request is "
            "dropped at once. False: it is answered; to find out whether it has gone, it is sent a 100 (Continue).",
            True,
        ),
    ] = False
    trust_revision_headers: Annotated[
        bool,
        doc(
            "Whether the request headers `Knative-Serving-Namespace` and `Knative-Serving-Revision` select the "
            "revision. Only for an activator that clients cannot reach directly.",
            True,
        ),
    ] = False
    forwarded: Annotated[Forwarded, doc("What pods are told about the client of a request.")] = Forwarded()
    shutdown: Annotated[Shutdown, doc("The times of a shutdown.")] = Shutdown()
    push: Annotated[Push, doc("The endpoint where pods report their own state.")] = Push()
    members: Annotated[Members, doc("The replicas that hold the limits of revisions together.")] = Members()
    health: Annotated[Health, doc("Passive health checks of all revisions.")] = Health()
    dns: Annotated[Dns, doc("Who is asked for names.")] = Dns()
    limits: Annotated[Limits, doc("Bounds of the process.")] = Limits()
    revisions: Annotated[
        list[Revision], doc("The revisions. At least one, unless `kubernetes` or `containers.discover` is set.")
    ] = []
    groups: Annotated[list[Group], doc("Groups of revisions that share what the machine has.")] = []
    containers: Annotated[Containers, doc("The container engine of this machine.")] = Containers()
    gpus: Annotated[
        list[int | str],
        doc(
            "The GPUs of this machine that `process.gpus` and `container.gpus` are taken from, by number or by name, "
            "as `nvidia-smi -L` or `rocm-smi` lists them.",
            [0, 1],
            ["GPU-8f4d2c1a"],
        ),
    ] = []
    kubernetes: Annotated[Kubernetes | None, doc("Revisions and pods from a cluster. Not set: from this file.")] = None

    @property
    def admin_address(self) -> str:
        return address_of_listener(self.admin)


# What a reload cannot change.
FIXED_KEYS: Final = (
    "admin",
    "workers",
    "push",
    "members",
    "dns",
    "kubernetes",
)
