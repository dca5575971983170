"""Fixed pods: addresses, connections, probes and health checks."""

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Duration, Positive, Secret, Share, Weight, doc
from activator.config.model.listeners import TLS_VERSIONS

HEALTH_INTERVAL_S: Final = 2.0  # between two active health checks of a pod
HEALTH_RISE: Final = 2
HEALTH_FALL: Final = 3
PROBE_TCP: Final = "tcp"
PROBE_HTTP: Final = "http"
PROBE_QUEUE_PROXY: Final = "queue-proxy"
POD_PROTOCOLS: Final = ("auto", "h1", "h2c", "h2")
PROXY_VERSIONS: Final = ("v1", "v2")
PROBE_GRPC: Final = "grpc"
PROBE_KINDS: Final = (PROBE_TCP, PROBE_HTTP, PROBE_GRPC, PROBE_QUEUE_PROXY)


class PodTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS on the connections to the pods of a revision."""

    ca: Annotated[
        str,
        doc(
            "The certificate authorities of the pods: a file in PEM, or the PEM text. Empty: those of the system.",
            "ca.crt",
        ),
    ] = ""
    server_name: Annotated[
        str,
        doc(
            "The name in SNI, which the certificate must have. Empty: the address of the pod.",
            "model.internal",
        ),
    ] = ""
    san: Annotated[str, doc("One more DNS name that the certificate must have.", "kn-user-default")] = ""
    min_version: Annotated[str, doc("The lowest TLS version that is accepted.", "1.3", words=TLS_VERSIONS)] = "1.2"
    verify: Annotated[bool, doc("If true, the certificate of the pod is verified.", False)] = True
    certificate: Annotated[
        str, doc("A file with a client certificate, in PEM, for pods that require one.", "client.crt")
    ] = ""
    key: Annotated[str, doc("A file with the private key of the client certificate, in PEM.", "client.key")] = ""


class Pod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fixed pod with its own settings."""

    address: Annotated[
        str,
        doc(
            "The host and port of the pod, or a Unix socket. A name stands for one pod at each of its addresses.",
            "127.0.0.1:9001",
            "unix:/run/app.sock",
        ),
    ] = ""
    weight: Annotated[
        Weight,
        doc(
            "With `policy: weighted`: its share of the requests. 0: only if no other pod has a free slot. `srv`: the "
            "weights of the records.",
            3,
        ),
    ] = 1
    zone: Annotated[
        str,
        doc("Its [zone](pods.md#zones), for `prefer_zone`. Empty: the activator's.", "eu-west-1b"),
    ] = ""
    srv: Annotated[
        str,
        doc("Instead of `address`: a name whose SRV records give addresses and ports.", "_http._tcp.model.internal"),
    ] = ""


class Probe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The probe of fixed pods, and of pods that report themselves."""

    kind: Annotated[
        str,
        doc(
            "`tcp`: the port accepts connections. `http`: `path` is answered with 2xx or 3xx. `grpc`: gRPC's health "
            "service reports SERVING. `queue-proxy`: the probe of Knative. Empty: `http` if `path` or "
            "`identity_header` is set, else `tcp`.",
            "http",
            words=("", *PROBE_KINDS),
        ),
    ] = ""
    path: Annotated[str, doc("With `http`: the path of the probe. Empty: `/`.", "/ready")] = ""
    service: Annotated[
        str, doc("With `grpc`: the name of the service. Empty: the server as a whole.", "model.Inference")
    ] = ""
    host: Annotated[
        str, doc("With `http`: the `Host` of the probe. Empty: the address of the pod.", "model.internal")
    ] = ""
    identity_header: Annotated[
        str,
        doc(
            "With `http`: the response header with the pod's identity, also checked on each new connection. Not for "
            "fixed pods.",
            "X-Pod-Uid",
        ),
    ] = ""


class Health(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Passive health checks, and pods that are not ready for a long time; the default of all revisions."""

    strikes: Annotated[
        Positive,
        doc("The failures in a row (no answer, broken connection) that put a pod into quarantine.", 5),
    ] = 3
    ejection_share: Annotated[
        Share,
        doc(
            "The largest share of the pods in quarantine for such failures, rounded down, but at least one pod. The "
            "last ready pod always stays.",
            0.3,
        ),
    ] = 0.5
    stale_after: Annotated[
        Duration,
        doc(
            "A pod that has not been ready for this time is probed again, unless its source decides that (Kubernetes "
            "does for an exec readiness probe or a startup probe). 0: never.",
            "1m",
        ),
    ] = Duration(600.0)


class RevisionHealth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Passive health checks of one revision, and active health checks of its ready pods."""

    strikes: Annotated[Positive | None, doc("Default: `health.strikes`.", 5)] = None
    ejection_share: Annotated[Share | None, doc("Default: `health.ejection_share`.", 0.3)] = None
    stale_after: Annotated[Duration | None, doc("Default: `health.stale_after`.", "1m")] = None
    http_get: Annotated[
        str,
        doc(
            "A path that pods must answer with 2xx or 3xx, before they get requests and while they are ready. Empty: "
            "the probe is used.",
            "/health",
        ),
    ] = ""
    interval: Annotated[
        Duration | None,
        doc(
            "The time between two health checks of a ready pod. 0: ready pods are not checked. Not set: 2 s with "
            "`http_get`, else 0.",
            "5s",
        ),
    ] = None
    rise: Annotated[
        Positive | None, doc("The passed checks in a row after which a failed pod gets a trial. Default: 2.", 1)
    ] = None
    fall: Annotated[
        Positive | None, doc("The failed checks in a row after which a ready pod is taken out. Default: 3.", 2)
    ] = None


class Dns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The resolver of names in `pods`."""

    servers: Annotated[
        list[str],
        doc(
            "The name servers: IP addresses, with a port if it is not 53. Empty: those of /etc/resolv.conf.",
            ["10.0.0.2"],
        ),
    ] = []
    timeout: Annotated[Duration, doc("The time limit of one query, including retries.", "2s")] = Duration(5.0)


class Push(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The endpoint where pods report their own state."""

    listen: Annotated[str, doc("The host and port to listen on.", "127.0.0.1:8014")] = ""
    token: Annotated[
        Secret,
        doc(
            "The bearer token that a report needs: the token, `file:/path` or `env:NAME`. Required if other machines "
            "can connect. Without it, only pods that no other source lists can be reported.",
            "s3cret",
            "env:PUSH_TOKEN",
        ),
    ] = Secret("")
    token_file: Annotated[str, doc("A file that holds the token, instead of `token`.", "/run/activator/token")] = ""
    networks: Annotated[
        list[str],
        doc("Networks of pods that another address may report.", ["10.0.0.0/8"]),
    ] = []
