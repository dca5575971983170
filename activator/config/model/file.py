"""The configuration file as a whole."""

from typing import Annotated, Final, Literal

import msgspec

from activator.config.model.containers import Containers
from activator.config.model.groups import Group
from activator.config.model.keys import Cors, Key
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
from activator.config.model.models import Model
from activator.config.model.pods import Dns, Health, Push
from activator.config.model.revision import Revision
from activator.config.model.telemetry import Log, Metrics, Tracing

DEFAULT_LISTEN: Final = "127.0.0.1:8012"
WORKERS_MAX: Final = 256
AUTO: Final = "auto"
WorkerCount = Annotated[int, msgspec.Meta(ge=1, le=WORKERS_MAX)]


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The configuration file."""

    listen: Annotated[
        str | Listener | list[str | Listener],
        doc(
            "The address for clients, a mapping (for TLS and more), or a list of both ([listeners](listeners.md)). "
            "Port 0: any free port.",
            "127.0.0.1:8080",
            "unix:/run/activator.sock",
            ["127.0.0.1:8080", {"address": "0.0.0.0:8443", "certificate": "tls.crt", "key": "tls.key"}],
        ),
    ] = DEFAULT_LISTEN
    admin: Annotated[
        str | AdminListener,
        doc(
            "The admin port (health, metrics, debug pages), or a Unix socket. A mapping can set a token, required if "
            "other machines can connect. Empty: no admin port.",
            "127.0.0.1:8008",
            "unix:/run/activator/admin.sock",
            {"listen": "0.0.0.0:8008", "token": "file:/etc/activator/admin-token"},
        ),
    ] = DEFAULT_ADMIN
    workers: Annotated[
        WorkerCount | Literal["auto"],
        doc(
            "The number of worker processes; `auto`: one per processor that the activator may use. Limits of revisions "
            "apply to all workers together, `limits` to each ([workers](workers.md)).",
            4,
            AUTO,
        ),
    ] = 1
    trailing_fragmentation_threshold: Annotated[
        Share,
        doc(
            "The table of slots is trimmed when its share of empty slots is above this value. 0: whenever possible. "
            "1: never.",
            0.25,
        ),
    ] = 0.5
    access_log: Annotated[
        bool | str,
        doc(
            "The access log on standard output ([access log](access-log.md)): `false`, `json`, `common`, `knative`, "
            "or a template with field names in braces.",
            "json",
            "{method} {target} {status}",
        ),
    ] = False
    log: Annotated[Log, doc("The activator's own log ([log](logging.md)).")] = Log()
    metrics: Annotated[Metrics, doc("The metrics that are exported ([metrics](metrics.md)).")] = Metrics()
    tracing: Annotated[
        Tracing, doc("The requests that are traced, and the receiver of their spans ([traces](tracing.md)).")
    ] = Tracing()
    abort_on_half_close: Annotated[
        bool,
        doc(
            "If true, a client that closes its sending side (FIN) after the whole request cancels it; else it is "
            "[answered](data-path.md#a-client-that-ends-its-side).",
            True,
        ),
    ] = False
    trust_revision_headers: Annotated[
        bool,
        doc(
            "If true, the headers `Knative-Serving-Namespace` and `Knative-Serving-Revision` select the revision. Only "
            "for an activator that clients cannot reach directly.",
            True,
        ),
    ] = False
    forwarded: Annotated[Forwarded, doc("The header fields about the client of a request.")] = Forwarded()
    shutdown: Annotated[Shutdown, doc("The time limits of a shutdown.")] = Shutdown()
    push: Annotated[Push, doc("The endpoint where pods report their own state.")] = Push()
    members: Annotated[
        Members, doc("The replicas that enforce the limits of revisions together ([members](members.md)).")
    ] = Members()
    zone: Annotated[
        str,
        doc("The activator's own [zone](pods.md#zones): a text or `env:NAME`.", "env:NODE_ZONE"),
    ] = ""
    health: Annotated[Health, doc("Passive health checks of all revisions.")] = Health()
    dns: Annotated[Dns, doc("The resolver of names.")] = Dns()
    limits: Annotated[Limits, doc("Limits of each process.")] = Limits()
    revisions: Annotated[
        list[Revision], doc("The revisions. At least one, unless `kubernetes` or `containers.discover` is set.")
    ] = []
    models: Annotated[
        dict[str, str | Model],
        doc(
            "Model servers, by the name of the model; [models](models.md).",
            {"llama": "llama-server -m llama.gguf --port {port}"},
        ),
    ] = {}
    keys: Annotated[list[Key], doc("The users and their keys. With any, each request needs one; [keys](keys.md).")] = []
    keys_file: Annotated[
        str,
        doc("A file with more users, a list as in `keys`. It is read again when it changes.", "users.yaml"),
    ] = ""
    cors: Annotated[Cors, doc("Pages of other origins; [keys](keys.md#pages-of-other-origins).")] = Cors()
    state: Annotated[
        str,
        doc(
            "A file that keeps the use of [limits of keys](keys.md#limits) over restarts. Empty: it is forgotten.",
            "/var/lib/activator/state.db",
        ),
    ] = ""
    groups: Annotated[
        list[Group], doc("Groups of revisions that share resources of the machine ([groups](groups.md)).")
    ] = []
    containers: Annotated[Containers, doc("The container engine of this machine.")] = Containers()
    gpus: Annotated[
        list[int | str],
        doc(
            "The GPUs of this machine for `process.gpus` and `container.gpus`, by number or by name, as `nvidia-smi "
            "-L` or `rocm-smi` lists them.",
            [0, 1],
            ["GPU-8f4d2c1a"],
        ),
    ] = []
    kubernetes: Annotated[Kubernetes | None, doc("Revisions and pods from a cluster. Not set: from this file.")] = None

    @property
    def admin_address(self) -> str:
        return address_of_listener(self.admin)


# Keys that a reload cannot change.
FIXED_KEYS: Final = (
    "admin",
    "workers",
    "push",
    "members",
    "dns",
    "state",
    "kubernetes",
)
