"""Started with Knative's environment alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from activator.control_plane.sources.knative.config_maps import default_config
from activator.control_plane.sources.knative.environment import is_knative, read_environment
from activator.runtime.errors import ConfigError

MANIFEST = {
    "GOGC": "500",
    "POD_NAME": "activator-1",
    "POD_IP": "10.0.0.7",
    "SYSTEM_NAMESPACE": "knative-serving",
    "CONFIG_LOGGING_NAME": "config-logging",
    "CONFIG_OBSERVABILITY_NAME": "config-observability",
    "METRICS_DOMAIN": "knative.dev/internal/serving",
}


def test_the_manifests_environment() -> None:
    environment = read_environment({**MANIFEST, "CLUSTER_DOMAIN": "k8s.test", "PROBE_TIMEOUT": "1s"})
    assert (environment.pod_name, environment.pod_ip, environment.cluster_domain) == (
        "activator-1",
        "10.0.0.7",
        "k8s.test",
    )
    assert (environment.probe_timeout_s, environment.probe_frequency_s, environment.metrics_port) == (1.0, 0.2, 9090)


@pytest.mark.parametrize("missing", ["POD_NAME", "POD_IP", "SYSTEM_NAMESPACE"])
def test_without_any_of_the_three_it_is_not_knatives(missing: str) -> None:
    environ = {name: value for name, value in MANIFEST.items() if name != missing}
    assert is_knative(MANIFEST) and not is_knative(environ)
    with pytest.raises(ConfigError, match=missing):
        read_environment(environ)


def test_every_mistake_is_told() -> None:
    mistakes = {"POD_IP": "x", "PROBE_TIMEOUT": "soon", "MAX_IDLE_PROXY_CONNS": "-1", "METRICS_PROMETHEUS_PORT": "80"}
    mistakes["ACTIVATOR_TLS_MIN_VERSION"] = "1.1"
    with pytest.raises(ConfigError) as refused:
        read_environment({**MANIFEST, **mistakes})
    assert [problem.partition(":")[0] for problem in refused.value.problems] == [
        "POD_IP",
        "MAX_IDLE_PROXY_CONNS",
        "PROBE_TIMEOUT",
        "METRICS_PROMETHEUS_PORT",
        "ACTIVATOR_TLS_MIN_VERSION",
    ]


def test_of_knatives_variables_about_tls_one_counts_and_the_others_are_told() -> None:
    environment = read_environment({**MANIFEST, "ACTIVATOR_TLS_MIN_VERSION": "1.2"})
    assert (environment.tls_min_version, environment.tls_ignored) == ("1.2", ())
    others = ("ACTIVATOR_TLS_MAX_VERSION", "ACTIVATOR_TLS_CIPHER_SUITES", "ACTIVATOR_TLS_CURVE_PREFERENCES")
    environment = read_environment({**MANIFEST, **dict.fromkeys(others, "x")})
    assert (environment.tls_min_version, environment.tls_ignored) == ("1.3", others)


def test_the_clusters_domain_out_of_resolv_conf(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text("nameserver 10.96.0.10\nsearch ns.svc.my.domain svc.my.domain my.domain\noptions ndots:5\n")
    assert read_environment(MANIFEST, file).cluster_domain == "my.domain"
    assert read_environment(MANIFEST, tmp_path / "none").cluster_domain == "cluster.local"


def test_both_ports_of_the_family_of_the_pod() -> None:
    assert default_config(read_environment(MANIFEST)).listen == ["0.0.0.0:8012", "0.0.0.0:8013"]
    six = default_config(read_environment({**MANIFEST, "POD_IP": "2001:db8::7"}))
    assert six.listen == ["[::]:8012", "[::]:8013"]
    assert six.shutdown.delay + six.shutdown.timeout < 600
