"""Checks of probes beyond the types of values: their kinds, keys that only one kind uses, and the pods they fit.

Part of `checks.py`, with its rules.
"""

from __future__ import annotations

import re
from typing import Final

from activator.config.edge_checks import program_key
from activator.config.key_path import KeyPath
from activator.config.model.pods import PROBE_GRPC, PROBE_HTTP, PROBE_KINDS, Probe
from activator.config.model.revision import Revision
from activator.config.reader import TOKEN

_PATH: Final = re.compile(r"/[!-~]*")  # visible ASCII, as it is sent
_HOST: Final = re.compile(r"[A-Za-z0-9._:\[\]-]+")
SERVICE_BYTES_MAX: Final = 120  # gRPC service name: its length is one byte when encoded

HEALTH_INTERVAL_MIN_S: Final = 0.1  # between two checks of one pod

_HTTP_KEYS: Final = ("path", "host", "identity_header")


def check_probe(revision_at: KeyPath, revision: Revision) -> None:
    """Check the key `probe` of one revision."""
    probe, at = revision.probe, revision_at["probe"]
    if probe is None:
        return
    if program := program_key(revision_at, revision):
        at.advise(f"`probe` cannot be set with `{program}`: use `{program}.readiness`")
        return
    kind = probe.kind
    if kind and kind not in PROBE_KINDS:
        at["kind"].found("one of " + ", ".join(PROBE_KINDS))
        return
    for key in _HTTP_KEYS:
        if kind not in ("", PROBE_HTTP) and getattr(probe, key):
            at[key].advise(f"`{key}` requires `kind: http`, and it is {kind}")
            return
    if probe.service and kind != PROBE_GRPC:
        advice = f"`service` requires `kind: grpc`{', and it is ' + kind if kind else ''}"
        at["service"].advise(advice, beside=(at["kind"],))
        return
    if len(probe.service.encode()) > SERVICE_BYTES_MAX:
        at["service"].found(f"a name of at most {SERVICE_BYTES_MAX} bytes")
    _check_texts(at, probe)
    if probe.identity_header and revision.pods:
        at["identity_header"].advise(
            "`identity_header` requires pods that report themselves: fixed `pods` have no identity but their address"
        )


def check_health(revision_at: KeyPath, revision: Revision) -> None:
    """Check the active health checks in the key `health` of one revision."""
    health, at = revision.health, revision_at["health"]
    active = [key for key in ("http_get", "interval", "rise", "fall") if getattr(health, key) not in (None, "")]
    if not active:
        return
    interval = health.interval
    if program := program_key(revision_at, revision):
        at[active[0]].advise(f"health checks cannot be set with `{program}`: use `{program}.readiness`")
    elif health.http_get and _PATH.fullmatch(health.http_get) is None:
        at["http_get"].found("a path that begins with /, without spaces")
    elif health.http_get and revision.probe is not None:
        at["http_get"].advise("set `probe` or `health.http_get`, not both")
    elif not health.http_get and interval is None:
        beside = (at["http_get"], at["interval"])
        at[active[0]].advise(f"`{active[0]}` requires `interval`, or `http_get`", beside=beside)
    elif interval is not None and 0 < interval < HEALTH_INTERVAL_MIN_S:
        at["interval"].found(f"0, or at least {HEALTH_INTERVAL_MIN_S:g} s")


def _check_texts(at: KeyPath, probe: Probe) -> None:
    if probe.path and _PATH.fullmatch(probe.path) is None:
        at["path"].found("a path that begins with /, without spaces")
    if probe.host:
        if _HOST.fullmatch(probe.host) is None:
            at["host"].found("a host such as pod.internal")
        elif not probe.path and not probe.identity_header and not probe.kind:
            beside = (at["path"], at["identity_header"], at["kind"])
            at["host"].advise("`host` requires `path` or `kind: http`", beside=beside)
    if probe.identity_header and TOKEN.fullmatch(probe.identity_header) is None:
        at["identity_header"].found("the name of a header")
