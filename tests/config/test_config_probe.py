"""The key `probe`."""

from __future__ import annotations

import pytest

from activator.config.file import parse, resolve
from activator.config.specs import HealthCheckSpec, ProbeSpec
from activator.runtime.errors import ConfigError

PODS = "pods: ['127.0.0.1:1']"
PROCESS = "process: {command: [x]}"


def spec_of(probe: str) -> ProbeSpec:
    text = f"revisions:\n  - {{name: a, hosts: [a], {PODS}, {probe}}}\n"
    (spec,) = resolve(parse(text, "f", {}), lambda _: "random")
    return spec.probing.probe


def problems(probe: str, runs: str = PODS) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(f"revisions:\n  - name: a\n    hosts: [a]\n    {runs}\n    probe: {probe}\n", "f", {})
    return caught.value.problems


@pytest.mark.parametrize(
    ("probe", "spec"),
    [
        ("max_scale: 1", ProbeSpec()),
        ("probe: {}", ProbeSpec()),
        ("probe: {kind: tcp}", ProbeSpec("tcp")),
        ("probe: {path: /up?x=1}", ProbeSpec("http", "/up?x=1")),
        ("probe: {kind: http, host: pod.test}", ProbeSpec("http", "", "pod.test")),
        ("probe: {kind: queue-proxy}", ProbeSpec("queue-proxy")),
    ],
)
def test_what_is_fine(probe: str, spec: ProbeSpec) -> None:
    assert spec_of(probe) == spec


@pytest.mark.parametrize(
    ("probe", "problem"),
    [
        ("{kind: ping}", 'f:5: revisions[0].probe.kind: found "ping", expected one of tcp, http, grpc, queue-proxy'),
        ("{service: a.B}", "f:5: revisions[0].probe.service: `service` requires `kind: grpc`"),
        ("{kind: tcp, service: a}", "f:5: revisions[0].probe.service: `service` requires `kind: grpc`, and it is tcp"),
        ("{kind: grpc, path: /}", "f:5: revisions[0].probe.path: `path` requires `kind: http`, and it is grpc"),
        ("{path: up}", 'f:5: revisions[0].probe.path: found "up", expected a path that begins with /, without spaces'),
        ("{path: '/a b'}", 'f:5: revisions[0].probe.path: found "/a b", expected a path that begins with /, without'),
        ("{path: '/ä'}", "f:5: revisions[0].probe.path: found"),
        ("{kind: tcp, path: /}", "f:5: revisions[0].probe.path: `path` requires `kind: http`, and it is tcp"),
        (
            "{kind: queue-proxy, host: h}",
            "f:5: revisions[0].probe.host: `host` requires `kind: http`, and it is queue-proxy",
        ),
        ("{host: h}", "f:5: revisions[0].probe.host: `host` requires `path` or `kind: http`"),
        ("{path: /, host: 'a b'}", 'f:5: revisions[0].probe.host: found "a b", expected a host such as pod.internal'),
        ("{path: /, identity_header: 'a b'}", "f:5: revisions[0].probe.identity_header: found"),
        (
            "{identity_header: X-Pod}",
            "f:5: revisions[0].probe.identity_header: `identity_header` requires pods that report",
        ),
        ("{kind: 1, path: 2}", "f:5: revisions[0].probe.kind"),
        ("{paht: /}", 'f:5: revisions[0].probe: found the unknown key "paht", expected "path"'),
        ("/up", 'f:5: revisions[0].probe: found "/up", expected a mapping'),
    ],
)
def test_mistakes_are_one_line_each(probe: str, problem: str) -> None:
    found = problems(probe)
    assert found[0].startswith(problem), found
    assert len(found) == (2 if "a b" in probe and "identity" in probe else 1)


def test_a_local_process_is_asked_as_its_readiness_says() -> None:
    (problem,) = problems("{path: /}", PROCESS)
    assert problem.startswith("f:5: revisions[0].probe: `probe` cannot be set with `process`: use `process.readiness`")


@pytest.mark.parametrize(
    ("health", "checks", "probe"),
    [
        ("health: {}", None, ProbeSpec()),
        ("health: {http_get: /up}", HealthCheckSpec(2.0, 2, 3), ProbeSpec("http", "/up")),
        (
            "health: {http_get: /up, interval: 500ms, rise: 1, fall: 5}",
            HealthCheckSpec(0.5, 1, 5),
            ProbeSpec("http", "/up"),
        ),
        ("health: {http_get: /up, interval: 0s}", None, ProbeSpec("http", "/up")),
        ("health: {interval: 5s}, probe: {path: /r}", HealthCheckSpec(5.0, 2, 3), ProbeSpec("http", "/r")),
    ],
)
def test_active_health_checks(health: str, checks: HealthCheckSpec | None, probe: ProbeSpec) -> None:
    text = f"revisions:\n  - {{name: a, hosts: [a], {PODS}, {health}}}\n"
    (spec,) = resolve(parse(text, "f", {}), lambda _: "random")
    assert (spec.probing.checks, spec.probing.probe) == (checks, probe)


@pytest.mark.parametrize(
    ("health", "more", "problem"),
    [
        ("{rise: 2}", PODS, "f:5: revisions[0].health.rise: `rise` requires `interval`, or `http_get`"),
        ("{http_get: up}", PODS, 'f:5: revisions[0].health.http_get: found "up", expected a path that begins with /'),
        ("{interval: 1ms}", PODS, 'f:5: revisions[0].health.interval: found "1ms", expected 0, or at least 0.1 s'),
        ("{http_get: /}", PROCESS, "f:5: revisions[0].health.http_get: health checks cannot be set with `process`"),
        (
            "{http_get: /}",
            PODS + "\n    probe: {kind: tcp}",
            "f:6: revisions[0].health.http_get: set `probe` or `health.http_get`, not both",
        ),
    ],
)
def test_health_checks_that_are_mistakes(health: str, more: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"revisions:\n  - name: a\n    hosts: [a]\n    {more}\n    health: {health}\n", "f", {})
    (found,) = caught.value.problems
    assert found.startswith(problem)
