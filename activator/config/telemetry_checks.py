"""Checks of telemetry beyond the types of values: the access log, the activator's own log, metrics, traces.

Part of `checks.py`, with its rules.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from activator.config.log_template import KNATIVE, TemplateError, template_fields
from activator.config.model.telemetry import EXPORTERS, LOG_FORMATS, LOG_LEVELS, LOG_PARTS, METRICS_PROTOCOLS
from activator.config.reader import UNREADABLE, Reader, Values
from activator.config.tree import Item


def check_telemetry(reader: Reader, root: Item, values: Values) -> None:
    """Check the telemetry settings of the whole file."""
    _check_access_log(reader, root, values)
    log = values.get("log", {})
    if log is not UNREADABLE:
        _check_log(reader, _at(root, "log"), log)
    metrics = values.get("metrics", {})
    if metrics is not UNREADABLE and metrics.get("knative", {}) is not UNREADABLE:
        _check_knative(reader, _at(_at(root, "metrics"), "knative"), metrics.get("knative", {}))
    tracing = values.get("tracing", {})
    if tracing is not UNREADABLE:
        item = _at(root, "tracing")
        _check_word(reader, item, tracing, "tracing", "exporter", EXPORTERS)
        _check_url(reader, item, tracing, "tracing", "endpoint")


def _check_access_log(reader: Reader, root: Item, values: Values) -> None:
    wanted = values.get("access_log", False)
    if wanted is False or wanted is UNREADABLE or wanted in {"json", "common", KNATIVE}:
        return
    item = _at(root, "access_log")
    if wanted is True:
        reader.found(item, "access_log", "false, json, common, knative or a template")
        return
    try:
        template_fields(wanted)
    except TemplateError as error:
        reader.found(item, "access_log", str(error))


def _check_log(reader: Reader, item: Item, values: Values) -> None:
    _check_word(reader, item, values, "log", "format", LOG_FORMATS)
    _check_word(reader, item, values, "log", "level", LOG_LEVELS)
    levels = values.get("levels", {})
    if levels is UNREADABLE:
        return
    for part in levels:
        if part not in LOG_PARTS:
            reader.found(_at(_at(item, "levels"), part), "log.levels", "parts out of " + ", ".join(LOG_PARTS), part)
        else:
            _check_word(reader, _at(item, "levels"), levels, "log.levels", part, LOG_LEVELS)


def _check_knative(reader: Reader, item: Item, values: Values) -> None:
    _check_word(reader, item, values, "metrics.knative", "protocol", METRICS_PROTOCOLS)
    endpoint = values.get("endpoint", "")
    if values.get("protocol") == "http/protobuf":
        _check_url(reader, item, values, "metrics.knative", "endpoint")
    elif endpoint and endpoint is not UNREADABLE and not _is_address(endpoint):
        reader.found(_at(item, "endpoint"), "metrics.knative.endpoint", "an address such as 0.0.0.0:9090")
    interval = values.get("export_interval", 1.0)
    if interval is not UNREADABLE and interval <= 0.0:
        reader.found(_at(item, "export_interval"), "metrics.knative.export_interval", "more than 0s")


def _check_word(reader: Reader, item: Item, values: Values, path: str, key: str, words: tuple[str, ...]) -> None:
    """Check that a value is one of the words, or empty."""
    word = values.get(key, "")
    if word and word is not UNREADABLE and word not in words:
        reader.found(_at(item, key), f"{path}.{key}", "one of " + ", ".join(words))


def _check_url(reader: Reader, item: Item, values: Values, path: str, key: str) -> None:
    url = values.get(key, "")
    if url and url is not UNREADABLE and not _is_url(url):
        reader.found(_at(item, key), f"{path}.{key}", "a URL such as http://127.0.0.1:4318")


def _is_address(text: str) -> bool:
    """True for `host:port`; without a host, all interfaces are meant."""
    _, colon, port = text.rpartition(":")
    return bool(colon) and port.isdecimal() and int(port) <= 65_535


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _at(item: Item, key: str) -> Item:
    return item.entries.get(key, item) if item.entries else item
