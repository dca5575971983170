"""The profile knative: what Knative's controllers, ingress and monitoring find is what they found before.

Expected is what the manifests of Knative Serving 1.23 have (config/core/deployments/activator*.yaml and
config/core/200-roles/activator.yaml); what differs on purpose says so.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import pytest

from activator.cli import _from_knative
from activator.config.model.file import Config
from activator.config.model.kinds import Secret
from activator.config.model.listeners import AdminListener
from activator.control_plane.sources.knative.config_maps import default_config
from activator.control_plane.sources.knative.environment import KnativeEnvironment
from activator.control_plane.sources.knative.internal_tls import SECRET
from activator.kubernetes.resources import (
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    ENDPOINTS,
    REVISIONS,
    SECRETS,
    SERVICES,
)
from tests.charts.renditions import BESIDE, KNATIVE, Object, objects, of_kind

READ = ["get", "list", "watch"]


@pytest.fixture(name="found")
def _found() -> list[Object]:
    return objects({**KNATIVE, "autoscaling": {"minReplicas": 2}}, namespace="knative-serving")


def container_of(found: list[Object]) -> Object:
    (container,) = of_kind(found, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(container)


def environment_of(found: list[Object]) -> dict[str, str]:
    fields = {"metadata.name": "activator-1", "status.podIP": "10.0.0.9", "metadata.namespace": "knative-serving"}
    return {
        one["name"]: one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in container_of(found)["env"]
    }


def configured(found: list[Object], monkeypatch: pytest.MonkeyPatch) -> Config:
    """What a program that is started with this container's variables makes of them."""
    for name, value in environment_of(found).items():
        monkeypatch.setenv(name, value)
    loaded = _from_knative()
    assert loaded is not None
    return loaded[0]


def test_the_deployment(found: list[Object]) -> None:
    spec = of_kind(found, "Deployment")["spec"]
    assert spec["selector"]["matchLabels"] == {"app": "activator", "role": "activator"}  # cannot be changed later
    assert "replicas" not in spec
    template = spec["template"]
    assert template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert template["spec"]["serviceAccountName"] == "activator"
    assert template["spec"]["terminationGracePeriodSeconds"] == 600
    (term,) = template["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert (term["weight"], term["podAffinityTerm"]["topologyKey"]) == (100, "kubernetes.io/hostname")
    container = container_of(found)
    assert {(one["name"], one["containerPort"]) for one in container["ports"]} == {
        ("metrics", 9090),
        ("profiling", 8008),
        ("http1", 8012),
        ("h2c", 8013),
    }
    # Not the same: more memory asked for (128 Mi for 60), and no limit of the processor's time.
    assert container["resources"] == {"requests": {"cpu": "300m", "memory": "128Mi"}, "limits": {"memory": "600Mi"}}


def test_the_probes(found: list[Object]) -> None:
    container = container_of(found)
    readiness, liveness = container["readinessProbe"], container["livenessProbe"]
    assert readiness["httpGet"]["port"] == liveness["httpGet"]["port"] == 8012
    assert (readiness["periodSeconds"], readiness["failureThreshold"]) == (5, 5)
    assert (liveness["periodSeconds"], liveness["failureThreshold"], liveness["initialDelaySeconds"]) == (10, 12, 15)
    # Not the same: liveness asks for a path of its own, so that a drain is no reason to be killed.
    assert (readiness["httpGet"]["path"], liveness["httpGet"]["path"]) == ("/", "/healthz")


def test_the_service(found: list[Object]) -> None:
    spec = of_kind(found, "Service")["spec"]
    assert spec["type"] == "ClusterIP"
    assert spec["selector"] == {"app": "activator"}
    assert {(one["name"], one["port"], one["targetPort"]) for one in spec["ports"]} == {
        ("http-metrics", 9090, 9090),
        ("http-profiling", 8008, 8008),
        ("http", 80, 8012),
        ("http2", 81, 8013),
        ("https", 443, 8112),
    }


def test_scaling_and_budget(found: list[Object]) -> None:
    scaler = of_kind(objects(KNATIVE), "HorizontalPodAutoscaler")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (1, 20)
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "activator"}
    (metric,) = scaler["metrics"]
    assert metric["resource"] == {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 100}}
    assert of_kind(found, "PodDisruptionBudget")["spec"]["selector"] == {"matchLabels": {"app": "activator"}}


def may_go(budget: Object, pods: int) -> int:
    """How many of so many pods, all well, may be evicted: Kubernetes rounds both forms of a share up
    (k8s.io/kubernetes pkg/controller/disruption/disruption.go, getExpectedPodCount).
    """
    if "maxUnavailable" in budget:
        return min(pods, math.ceil(pods * int(budget["maxUnavailable"].removesuffix("%")) / 100))
    return pods - math.ceil(pods * int(budget["minAvailable"].removesuffix("%")) / 100)


def test_the_budget_lets_a_node_be_drained_at_any_number_of_replicas(found: list[Object]) -> None:
    """Not the same: Knative's keeps 80 %, which is all of them where there are fewer than five."""
    knatives = {"minAvailable": "80%"}
    assert [may_go(knatives, pods) for pods in range(1, 7)] == [0, 0, 0, 0, 1, 1]
    for budget in (of_kind(each, "PodDisruptionBudget")["spec"] for each in (found, objects(KNATIVE))):
        allowed = [may_go(budget, pods) for pods in range(1, 21)]
        assert min(allowed) == 1
        assert all(here - there in {0, 1} for here, there in zip(allowed, (may_go(knatives, n) for n in range(1, 21))))
        assert [allowed[pods - 1] for pods in (5, 10, 20)] == [1, 2, 4]


# What the manifests of Knative Serving 1.23 write on their objects (config/core/deployments/activator.yaml and
# activator-hpa.yaml, config/core/200-serviceaccount.yaml and 200-roles/activator.yaml), but for the version, which is
# Knative's own there.
PART = {"app.kubernetes.io/name": "knative-serving"}
COMPONENT = {**PART, "app.kubernetes.io/component": "activator"}
ROLE = {**PART, "serving.knative.dev/controller": "true"}
KNATIVES_LABELS = {
    ("Deployment", "activator"): COMPONENT,
    ("Service", "activator-service"): {**COMPONENT, "app": "activator"},
    ("HorizontalPodAutoscaler", "activator"): COMPONENT,
    ("PodDisruptionBudget", "activator-pdb"): COMPONENT,
    ("ServiceAccount", "activator"): COMPONENT,
    ("Secret", "activator-admin"): {},  # Knative's has no token
    ("Role", "knative-serving-activator"): ROLE,
    ("RoleBinding", "knative-serving-activator"): COMPONENT,
    ("ClusterRole", "knative-serving-activator-cluster"): ROLE,
    ("ClusterRoleBinding", "knative-serving-activator-cluster"): COMPONENT,
}
KNATIVES_POD_LABELS = {**COMPONENT, "app": "activator", "role": "activator"}


def test_whoever_selects_by_knatives_labels_finds_every_object(found: list[Object]) -> None:
    labels = {(one["kind"], one["metadata"]["name"]): one["metadata"]["labels"] for one in found}
    assert labels.keys() == KNATIVES_LABELS.keys()
    for key, knatives in KNATIVES_LABELS.items():
        assert knatives.items() <= labels[key].items(), key
        assert labels[key]["app.kubernetes.io/version"], key
    pods = of_kind(found, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert KNATIVES_POD_LABELS.items() <= pods.items()


def test_rights_are_to_read_and_no_more(found: list[Object]) -> None:
    assert of_kind(found, "Role")["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": READ},
        # Not the same: one Secret, where Knative's may read all of its namespace.
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [SECRET], "verbs": READ},
    ]
    assert of_kind(found, "ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["services", "endpoints"], "verbs": READ},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": READ},
        {"apiGroups": ["serving.knative.dev"], "resources": ["revisions"], "verbs": READ},
    ]
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        binding = of_kind(found, kind)
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "activator", "namespace": "knative-serving"}]
        assert binding["roleRef"]["name"] == binding["metadata"]["name"]


def test_rights_cover_what_is_watched(found: list[Object]) -> None:
    rules = [*of_kind(found, "Role")["rules"], *of_kind(found, "ClusterRole")["rules"]]
    granted = {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}
    watched = set()
    for resource in (CONFIG_MAPS, ENDPOINT_SLICES, ENDPOINTS, REVISIONS, SECRETS, SERVICES):
        match = re.fullmatch(r"/(?:api|apis/([^/]+))/[^/]+", resource.prefix)
        assert match is not None
        watched.add((match[1] or "", resource.plural))
    assert granted == watched


def test_scaling_without_the_autoscaler_is_the_only_right_to_write() -> None:
    found = objects({**KNATIVE, "knative": {"scaleFallback": "30s"}})
    rules = of_kind(found, "ClusterRole")["rules"]
    writing = [rule for rule in rules if not set(rule["verbs"]) <= set(READ)]
    assert writing == [{"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["get", "patch"]}]


def test_its_variables_are_what_it_would_do_anyway(found: list[Object], monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(found, monkeypatch)
    expected = default_config(KnativeEnvironment("activator-1", "10.0.0.9", "knative-serving"))
    admin = AdminListener(listen="0.0.0.0:9090", token=Secret("file:/etc/activator/admin/token"))
    assert config == msgspec.structs.replace(expected, admin=admin)


def test_values_arrive_in_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, Any] = {
        **KNATIVE,
        "bindHost": "[::]",
        "shutdown": {"delaySeconds": 5, "timeoutSeconds": 100},
        "knative": {"sharing": "knative", "scaleFallback": "30s", "autoscaler": "ws://a:1", "reconcileInterval": "1m"},
        "config": {"limits": {"connections": 20_000_000}, "access_log": "json", "forwarded": {"trust": ["10.0.0.0/8"]}},
    }
    config = configured(objects(values), monkeypatch)
    assert config.kubernetes is not None
    assert config.admin_address == "[::]:9090"
    assert (config.shutdown.delay, config.shutdown.timeout, config.shutdown.tunnels) == (5.0, 100.0, 100.0)
    assert (config.kubernetes.sharing, config.kubernetes.scale_fallback) == ("knative", 30.0)
    assert (config.kubernetes.autoscaler, config.kubernetes.reconcile_interval) == ("ws://a:1", 60.0)
    assert (config.limits.connections, config.access_log) == (20_000_000, "json")
    assert config.forwarded.trust == ["10.0.0.0/8"]
    assert config.trust_revision_headers  # what values do not name stays as the manifest's program has it


# --- beside Knative's own ---


def test_beside_another_it_takes_no_name_of_knatives() -> None:
    taken = {(one["kind"], one["metadata"]["name"]) for one in objects({**KNATIVE, "autoscaling": {"minReplicas": 2}})}
    ours = {(one["kind"], one["metadata"]["name"]) for one in objects(BESIDE)}
    assert ours.isdisjoint(taken)
    assert {kind for kind, _ in ours} == {kind for kind, _ in taken} - {"Service", "PodDisruptionBudget"}


def test_beside_another_it_is_found_by_the_service_and_does_not_select_the_others() -> None:
    own = of_kind(objects(BESIDE), "Deployment")["spec"]
    service = of_kind(objects(KNATIVE), "Service")["spec"]
    assert service["selector"].items() <= own["template"]["metadata"]["labels"].items()
    assert KNATIVES_POD_LABELS.items() <= own["template"]["metadata"]["labels"].items()
    assert not own["selector"]["matchLabels"].items() <= KNATIVES_POD_LABELS.items()
