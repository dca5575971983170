"""Checks of telemetry beyond the types of values: the access log, the activator's own log, metrics, traces.

Part of `checks.py`, with its rules.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from activator.config.edge_checks import check_positive
from activator.config.key_path import KeyPath
from activator.config.log_template import KNATIVE, TemplateError, template_fields
from activator.config.model.file import Config
from activator.config.model.telemetry import (
    EXPORTERS,
    LOG_FORMATS,
    LOG_LEVELS,
    LOG_PARTS,
    METRICS_PROTOCOLS,
    KnativeExport,
    Log,
)


def check_telemetry(root: KeyPath, config: Config) -> None:
    """Check the telemetry settings of the whole file."""
    _check_access_log(root["access_log"], config.access_log)
    _check_log(root["log"], config.log)
    _check_knative(root["metrics"]["knative"], config.metrics.knative)
    _check_word(root["tracing"]["exporter"], config.tracing.exporter, EXPORTERS)
    _check_url(root["tracing"]["endpoint"], config.tracing.endpoint)


def _check_access_log(at: KeyPath, setting: bool | str) -> None:
    if setting is False or setting in {"json", "common", KNATIVE}:
        return
    if setting is True:
        at.found("false, json, common, knative or a template")
        return
    try:
        template_fields(setting)
    except TemplateError as error:
        at.found(str(error))


def _check_log(at: KeyPath, log: Log) -> None:
    _check_word(at["format"], log.format, LOG_FORMATS)
    _check_word(at["level"], log.level, LOG_LEVELS)
    for part, level in log.levels.items():
        entry_at = at["levels"][part]
        if part in LOG_PARTS:
            _check_word(entry_at, level, LOG_LEVELS)
        else:
            found = part or entry_at.item.describe()
            at["levels"].found("parts out of " + ", ".join(LOG_PARTS), found, entry_at.where)


def _check_knative(at: KeyPath, knative: KnativeExport) -> None:
    _check_word(at["protocol"], knative.protocol, METRICS_PROTOCOLS)
    if knative.protocol == "http/protobuf":
        _check_url(at["endpoint"], knative.endpoint)
    elif knative.endpoint and not _is_address(knative.endpoint):
        at["endpoint"].found("an address such as 0.0.0.0:9090", beside=(at["protocol"],))
    check_positive(at, knative, "export_interval", expected="more than 0s")


def _check_word(at: KeyPath, word: str, words: tuple[str, ...]) -> None:
    """Check that a value is one of the words, or empty."""
    if word and word not in words:
        at.found("one of " + ", ".join(words))


def _check_url(at: KeyPath, url: str) -> None:
    if url and not _is_url(url):
        at.found("a URL such as http://127.0.0.1:4318")


def _is_address(text: str) -> bool:
    """Return True for `host:port`; without a host, all interfaces are meant."""
    _, colon, port = text.rpartition(":")
    return bool(colon) and port.isdecimal() and int(port) <= 65_535


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
