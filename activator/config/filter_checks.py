"""Checks of `headers`, `forward_auth`, `record`, `fault` and `filters` beyond the types of their values.

Part of `checks.py`, with its rules. A filter that is not built in is imported and created once, as it will be for the
revision.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from activator.config.edge_checks import NETWORK, check_each, is_peer
from activator.config.key_path import KeyPath
from activator.config.model.filters import Fault, FilterUse, ForwardAuth
from activator.config.model.records import Record
from activator.config.model.revision import Revision
from activator.config.rates import RATE_MAX, parse_rate
from activator.config.reader import TOKEN
from activator.config.specs import FILTER_ENTRY_POINTS
from activator.runtime.errors import StartError
from activator.runtime.plugins import PluginError, load_plugin
from activator.runtime.secret_text import ENVIRONMENT, FILE, read_secret, without_secrets
from activator.runtime.units import KIB

DELAY_MAX_S: Final = 600.0
AUTHORISED_FIELDS_MAX: Final = 32  # fields of an authoriser that pods get
AUTHORISED_MAX_S: Final = 3_600.0
DECISION_MAX_S: Final = 60.0
RECORDED_REQUESTS_MAX: Final = 1_000  # for each revision and worker; at most 2 KiB each
CAPTURE_BYTES_MAX: Final = 64 * KIB  # masking a body takes up to 0.1 s of the event loop
CAPTURE_KEEP_MAX_S: Final = 86_400.0
FILTER_MODULE: Final = "activator.data_plane.filters.filter"  # the module of the base class, which is not imported here
# Fields that frame a message, or concern only one connection.
_CONNECTION_FIELDS: Final = frozenset(
    ("connection", "content-length", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade")
)
_VALUE: Final = re.compile(r"[^\x00\r\n]*")


def authoriser_of(url: str) -> tuple[str, int, bool, str, str] | None:
    """Return host, port, whether it is TLS, host and port as written, and path and query of a URL; None if invalid."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in {"http", "https"} or not host or port == 0 or not is_plain:
        return None
    if "@" in parts.netloc or "#" in url:
        return None
    tls = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return host, port or (443 if tls else 80), tls, parts.netloc, target


def check_filters(at: KeyPath, revision: Revision) -> None:
    """Check the filters of one revision."""
    for direction, rules in (("request", revision.headers.request), ("response", revision.headers.response)):
        entry_at = at["headers"][direction]
        for name_at, name in entry_at["remove"].each(rules.remove):
            _check_field(name_at, name, "", may_be_host=False)
        for key, fields in (("set", rules.set), ("append", rules.append)):
            for name, value in fields.items():
                _check_field(entry_at[key][name], name, value, may_be_host=(direction, key) == ("request", "set"))
    check_each(at["allow"], revision.allow, is_peer, f"{NETWORK}, or unix")
    if revision.forward_auth is not None:
        _check_forward_auth(at["forward_auth"], revision.forward_auth)
    limit = revision.rate_limit
    if limit is not None:
        if parse_rate(limit.requests) is None:
            at["rate_limit"]["requests"].found("a number per period, such as 100/min or 10/s")
        if (limit.burst or 0) > RATE_MAX:
            at["rate_limit"]["burst"].found(f"at most {RATE_MAX}")
    if revision.record is not None:
        _check_record(at["record"], revision.record)
    if revision.fault is not None:
        _check_fault(at["fault"], revision.fault)
    for entry_at, use in at["filters"].each(revision.filters):
        _check_filter(entry_at, use)


def check_references(at: KeyPath, revision: Revision) -> None:
    """Report header fields of an object of a cluster that name secrets of the activator's own environment."""
    for direction, rules in (("request", revision.headers.request), ("response", revision.headers.response)):
        for key, fields in (("set", rules.set), ("append", rules.append)):
            for name, value in fields.items():
                if value.startswith((FILE, ENVIRONMENT)):
                    at["headers"][direction][key][name].advise(
                        "`env:` and `file:` are only for the activator's own file"
                    )


def _check_field(at: KeyPath, name: str, value: str, may_be_host: bool) -> None:
    """Check the name and the value of a header field; an empty value stands for none."""
    if TOKEN.fullmatch(name) is None:
        at.advise(f"{name!r} is no name of a header field")
    elif name.lower() in _CONNECTION_FIELDS:
        at.advise(f"`{name}` belongs to one connection or frames the message: leave it out")
    elif name.lower() == "host" and not may_be_host:
        at.advise("`Host` can only be set, and only in requests")
    else:
        try:
            value = read_secret(value, name)
        except StartError as error:
            at.advise(str(error))
            return
        if _VALUE.fullmatch(value) is None:
            at.found("a value in one line", "another one")


def _check_forward_auth(at: KeyPath, forward_auth: ForwardAuth) -> None:
    if "@" in forward_auth.url:  # perhaps a password, which must not be shown
        at["url"].found("a URL such as http://127.0.0.1:9091/verify", "one with a user name")
    elif authoriser_of(forward_auth.url) is None:
        at["url"].found("a URL such as http://127.0.0.1:9091/verify, without `#`")
    if len(forward_auth.headers) > AUTHORISED_FIELDS_MAX:
        at["headers"].found(f"at most {AUTHORISED_FIELDS_MAX} names", str(len(forward_auth.headers)))
    for entry_at, name in at["headers"].each(forward_auth.headers):
        _check_field(entry_at, name, "", may_be_host=False)
    if forward_auth.cache > AUTHORISED_MAX_S:
        at["cache"].found("at most 1h")
    if not 0 < forward_auth.timeout <= DECISION_MAX_S:
        at["timeout"].found("more than 0s, at most 1m")


def _check_fault(at: KeyPath, fault: Fault) -> None:
    if fault.delay > DELAY_MAX_S:
        at["delay"].found("at most 10m")
    if fault.status is not None and not 200 <= fault.status <= 599:
        at["status"].found("a status from 200 to 599")
    if not fault.delay and fault.status is None and at.item.entries and at.is_whole:
        at.advise("say what happens: `delay`, `status` or both")


def _check_record(at: KeyPath, record: Record) -> None:
    if record.requests > RECORDED_REQUESTS_MAX:
        at["requests"].found(f"at most {RECORDED_REQUESTS_MAX}")
    capture, capture_at = record.capture, at["capture"]
    if capture is None:
        return
    if record.requests == 0:
        at["requests"].advise("a capture belongs to a record: set `requests` above 0", beside=(capture_at,))
    if not 0 < capture.bytes <= CAPTURE_BYTES_MAX:
        capture_at["bytes"].found("more than 0, at most 64KiB")
    if not 0 < capture.keep <= CAPTURE_KEEP_MAX_S:
        capture_at["keep"].found("more than 0s, at most 24h")


def _check_filter(at: KeyPath, use: FilterUse) -> None:
    """Check that the filter can be imported, and created with its options."""
    if at["name"].is_unread:
        return
    try:
        filter_class = load_plugin(FILTER_ENTRY_POINTS, use.name, "filter")
    except PluginError as error:
        at["name"].advise(str(error))
        return
    bases = filter_class.__mro__ if isinstance(filter_class, type) else ()
    if not isinstance(filter_class, type) or not any(base.__module__ == FILTER_MODULE for base in bases):
        at["name"].advise(f"{use.name} is no subclass of activator.filters.Filter")
        return
    if at["options"].is_unread:
        return
    try:
        options = {key: read_secret(text, f"option {key}") for key, text in use.options.items()}
    except StartError as error:
        at["options"].advise(str(error))
        return
    try:
        filter_class(options)
    except Exception as error:  # a class of a package may raise anything
        at["options"].advise(without_secrets(f"{type(error).__name__}: {error}", options.values()))
