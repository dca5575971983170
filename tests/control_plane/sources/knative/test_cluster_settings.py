"""What Knative's ConfigMaps say, and what a mistake in them does."""

from __future__ import annotations

from typing import Any

import pytest

from activator.config.cluster_settings import (
    ClusterSettings,
    read_autoscaler,
    read_logging,
    read_network,
    read_observability,
)


def told(_: str) -> None:
    raise AssertionError("no mistake was expected")


def test_defaults_are_knatives() -> None:
    settings = ClusterSettings()
    for read in (read_network, read_autoscaler, read_observability, read_logging):
        assert read(settings, {}, told) == settings
        assert read(settings, {"_example": "anything: at all"}, told) == settings


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"mesh-compatibility-mode": "Enabled"}, {"mesh_mode": "enabled"}),
        ({"mesh-compatibility-mode": "disabled"}, {"mesh_mode": "disabled"}),
        ({"enable-mesh-pod-addressability": "true"}, {"passes_through": True}),
        ({"system-internal-tls": "Enabled"}, {"internal_tls": True}),
        ({"internal-encryption": "true"}, {"internal_tls": True}),
        ({"internal-encryption": "true", "system-internal-tls": "Disabled"}, {}),
    ],
)
def test_network(data: dict[str, str], expected: dict[str, Any]) -> None:
    assert read_network(ClusterSettings(), data, told) == ClusterSettings(**expected)


def test_a_mistake_leaves_what_was_and_is_told() -> None:
    problems: list[str] = []
    before = ClusterSettings(mesh_mode="disabled", internal_tls=True, max_scale=7, tracing_sampling_rate=0.5)
    data = {"mesh-compatibility-mode": "sometimes", "system-internal-tls": "maybe"}
    assert read_network(before, data, problems.append) == before
    assert read_autoscaler(before, {"max-scale": "many"}, problems.append) == before
    assert read_observability(before, {"tracing-sampling-rate": "2"}, problems.append) == before
    assert read_logging(before, {"loglevel.activator": "loud"}, problems.append) == before
    assert len(problems) == 5
    assert (
        problems[0] == "config-network: mesh-compatibility-mode: expected auto, enabled or disabled, found 'sometimes'"
    )


def test_autoscaler() -> None:
    settings = read_autoscaler(ClusterSettings(), {"max-scale": "10", "max-scale-limit": "100"}, told)
    assert (settings.max_scale, settings.max_scale_limit) == (10, 100)


def test_a_request_log_without_a_template_is_refused() -> None:
    problems: list[str] = []
    wanted = {"logging.enable-request-log": "true", "logging.request-log-template": ""}
    assert not read_observability(ClusterSettings(), wanted, problems.append).request_log
    assert problems
    assert read_observability(ClusterSettings(), {**wanted, "logging.request-log-template": "x"}, told).request_log


@pytest.mark.parametrize(
    ("data", "level"),
    [
        ({"loglevel.activator": "debug"}, "debug"),
        ({"zap-logger-config": '{"level": "warn"}'}, "warning"),
        ({"zap-logger-config": '{"level": "warn"}', "loglevel.activator": "error"}, "error"),
        ({"zap-logger-config": "not JSON"}, ""),
        ({"zap-logger-config": "[]"}, ""),
    ],
)
def test_logging(data: dict[str, str], level: str) -> None:
    assert read_logging(ClusterSettings(), data, told).log_level == level
