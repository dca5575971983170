"""Checks of probes beyond the types of values: their kinds, keys that only one kind uses, and the pods they fit.

Part of `checks.py`, with its rules.
"""

from __future__ import annotations

import re
from typing import Final

from activator.config.edge_checks import item_at, program_key
from activator.config.model.pods import PROBE_GRPC, PROBE_HTTP, PROBE_KINDS
from activator.config.reader import TOKEN, UNREADABLE, Reader, Values
from activator.config.tree import Item

_PATH: Final = re.compile(r"/[!-~]*")  # visible ASCII, as it is sent
_HOST: Final = re.compile(r"[A-Za-z0-9._:\[\]-]+")
SERVICE_BYTES_MAX: Final = 120  # gRPC service name: its length is one byte when encoded

HEALTH_INTERVAL_MIN_S: Final = 0.1  # between two checks of one pod

_HTTP_KEYS: Final = ("path", "host", "identity_header")


def check_probe(reader: Reader, revision: Item, values: Values, path: str) -> None:
    """Check the key `probe` of one revision."""
    probe = values.get("probe")
    if probe is None or probe is UNREADABLE:
        return
    item = item_at(revision, "probe")
    if program := program_key(revision, values):
        reader.advise(item, path, f"`probe` cannot be set with `{program}`: use `{program}.readiness`")
        return
    kind = probe.get("kind", "")
    if kind and kind not in PROBE_KINDS:
        reader.found(item_at(item, "kind"), f"{path}.kind", "one of " + ", ".join(PROBE_KINDS))
        return
    for key in _HTTP_KEYS:
        if kind not in ("", PROBE_HTTP) and probe.get(key, ""):
            reader.advise(item_at(item, key), f"{path}.{key}", f"`{key}` requires `kind: http`, and it is {kind}")
            return
    if probe.get("service", "") and kind != PROBE_GRPC:
        advice = f"`service` requires `kind: grpc`{', and it is ' + kind if kind else ''}"
        reader.advise(item_at(item, "service"), f"{path}.service", advice)
        return
    if len(probe.get("service", "").encode()) > SERVICE_BYTES_MAX:
        reader.found(item_at(item, "service"), f"{path}.service", f"a name of at most {SERVICE_BYTES_MAX} bytes")
    _check_texts(reader, item, probe, path)
    if probe.get("identity_header") and values.get("pods"):
        advice = (
            "`identity_header` requires pods that report themselves: fixed `pods` have no identity but their address"
        )
        reader.advise(item_at(item, "identity_header"), f"{path}.identity_header", advice)


def check_health(reader: Reader, revision: Item, values: Values, path: str) -> None:
    """Check the active health checks in the key `health` of one revision."""
    health = values.get("health")
    if health is None or health is UNREADABLE:
        return
    item = item_at(revision, "health")
    active = [key for key in ("http_get", "interval", "rise", "fall") if health.get(key) not in (None, "")]
    if not active:
        return
    first, at = item_at(item, active[0]), f"{path}.{active[0]}"
    http_get, interval = health.get("http_get", ""), health.get("interval")
    if program := program_key(revision, values):
        reader.advise(first, at, f"health checks cannot be set with `{program}`: use `{program}.readiness`")
    elif http_get and _PATH.fullmatch(http_get) is None:
        reader.found(item_at(item, "http_get"), f"{path}.http_get", "a path that begins with /, without spaces")
    elif http_get and values.get("probe") is not None:
        reader.advise(item_at(item, "http_get"), f"{path}.http_get", "set `probe` or `health.http_get`, not both")
    elif not http_get and interval is None:
        reader.advise(first, at, f"`{active[0]}` requires `interval`, or `http_get`")
    elif interval is not None and (interval < 0 or 0 < interval < HEALTH_INTERVAL_MIN_S):
        reader.found(item_at(item, "interval"), f"{path}.interval", f"0, or at least {HEALTH_INTERVAL_MIN_S:g} s")


def _check_texts(reader: Reader, item: Item, probe: Values, path: str) -> None:
    if probe.get("path") and _PATH.fullmatch(probe["path"]) is None:
        reader.found(item_at(item, "path"), f"{path}.path", "a path that begins with /, without spaces")
    if probe.get("host"):
        if _HOST.fullmatch(probe["host"]) is None:
            reader.found(item_at(item, "host"), f"{path}.host", "a host such as pod.internal")
        elif not probe.get("path") and not probe.get("identity_header") and not probe.get("kind"):
            reader.advise(item_at(item, "host"), f"{path}.host", "`host` requires `path` or `kind: http`")
    if probe.get("identity_header") and TOKEN.fullmatch(probe["identity_header"]) is None:
        reader.found(item_at(item, "identity_header"), f"{path}.identity_header", "the name of a header")
