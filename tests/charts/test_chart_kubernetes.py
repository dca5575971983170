"""The profile kubernetes: rights, the kind Activation, and what it excludes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from activator.config.crd import make_definition
from activator.config.file import parse
from activator.control_plane.reconcile.rights import RIGHTS
from activator.control_plane.sources.activations.rights import READ, all_rules, member_rules, own_rules
from tests.charts.chart_files import CRD_FILE, MEMBER_RULES_FILE, OWN_RULES_FILE, RULES_FILE
from tests.charts.renditions import (
    CLUSTER,
    SEVERAL,
    Values,
    crd_text,
    member_rules_text,
    objects,
    of_kind,
    own_rules_text,
    rules_text,
)
from tests.sources import ROOT


def test_what_the_program_says_of_itself_is_what_the_chart_has() -> None:
    """`make chart-snapshots` writes both files."""
    assert RULES_FILE.read_text("utf-8") == rules_text()
    assert MEMBER_RULES_FILE.read_text("utf-8") == member_rules_text()
    assert OWN_RULES_FILE.read_text("utf-8") == own_rules_text()
    assert CRD_FILE.read_text("utf-8") == crd_text()


def test_the_role_has_the_rights_of_the_table_and_no_others() -> None:
    role = of_kind(objects(CLUSTER), "ClusterRole")
    assert role["rules"] == all_rules()
    given = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert given == {(right.group, right.resource, verb) for right in (*READ, *RIGHTS) for verb in right.verbs}
    assert not any("*" in part for one in given for part in one)
    assert not any(resource in {"secrets", "configmaps"} for _, resource, _ in given)


def test_one_namespace_needs_no_right_in_the_cluster() -> None:
    found = objects({**CLUSTER, "kubernetes": {"namespace": "models"}})
    assert not [one for one in found if one["kind"].startswith("ClusterRole")]
    roles = {one["metadata"]["namespace"]: one for one in found if one["kind"] == "Role"}
    bindings = {one["metadata"]["namespace"]: one for one in found if one["kind"] == "RoleBinding"}
    assert set(roles) == set(bindings) == {"models", "serving"}
    assert roles["models"]["rules"] == all_rules()
    assert roles["serving"]["rules"] == own_rules(), "which of its own replicas are ready, and no more"
    assert {one["subjects"][0]["namespace"] for one in bindings.values()} == {"serving"}


def test_the_kind_is_installed_upgraded_and_kept() -> None:
    crd = of_kind(objects(CLUSTER), "CustomResourceDefinition")
    assert crd["spec"] == make_definition()["spec"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not [one for one in objects({**CLUSTER, "crd": {"install": False}}) if one["kind"] == crd["kind"]]
    assert not [one for one in objects({}) if one["kind"] == crd["kind"]]


def test_the_program_takes_the_file() -> None:
    found = objects({**CLUSTER, "config": {"workers": 4}, "kubernetes": {"reconcileInterval": "1m"}})
    config = parse(of_kind(found, "ConfigMap")["data"]["activator.yaml"], "activator.yaml", {})
    assert config.kubernetes is not None
    assert (config.kubernetes.mode, config.kubernetes.service) == ("activations", "serving/demo-activator")
    assert (config.kubernetes.namespace, float(config.kubernetes.reconcile_interval)) == ("", 60.0)
    assert config.workers == 4


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_several_replicas_are_members_of_one_group(replicas: int) -> None:
    found = objects({**SEVERAL, "replicas": replicas})
    config = parse(of_kind(found, "ConfigMap")["data"]["activator.yaml"], "activator.yaml", {})
    assert (config.members.listen, config.members.group) == ("0.0.0.0:8015", "demo-activator")
    deployment = of_kind(found, "Deployment")
    assert deployment["spec"]["replicas"] == replicas
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert {"POD_NAME", "POD_UID", "POD_IP", "POD_NAMESPACE"} <= {one["name"] for one in container["env"]}
    assert config.members.key_file == "/etc/activator/members/key"
    assert "/etc/activator/members" in {mount["mountPath"] for mount in container["volumeMounts"]}
    role = of_kind(found, "Role")
    assert (role["metadata"]["namespace"], role["rules"]) == ("serving", member_rules())
    budgets = [one for one in found if one["kind"] == "PodDisruptionBudget"]
    assert [one["spec"]["maxUnavailable"] for one in budgets] == [1] * (replicas > 1), "one may be drained"


def test_replicas_may_be_scaled_by_load() -> None:
    found = objects({**SEVERAL, "autoscaling": {"enabled": True, "minReplicas": 2, "maxReplicas": 4}})
    assert of_kind(found, "HorizontalPodAutoscaler")["spec"]["maxReplicas"] == 4


def test_memory_and_the_queue_may_count_as_well() -> None:
    by_cpu = {"enabled": True, "minReplicas": 2, "maxReplicas": 4}
    found = objects({**SEVERAL, "autoscaling": by_cpu})
    assert [one["type"] for one in of_kind(found, "HorizontalPodAutoscaler")["spec"]["metrics"]] == ["Resource"]
    by_all = {**by_cpu, "targetMemoryUtilizationPercentage": 300, "targetQueued": 50}
    found = objects({**SEVERAL, "autoscaling": by_all})
    cpu, memory, queue = of_kind(found, "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert (cpu["resource"]["name"], memory["resource"]["name"]) == ("cpu", "memory")
    assert memory["resource"]["target"] == {"type": "Utilization", "averageUtilization": 300}
    assert queue["pods"]["metric"]["name"] in (ROOT / "docs" / "metrics.md").read_text("utf-8")
    assert queue["pods"]["target"] == {"type": "AverageValue", "averageValue": "50"}


def test_the_members_role_is_in_the_namespace_of_the_release_wherever_objects_are_served() -> None:
    found = objects({**SEVERAL, "kubernetes": {"namespace": "models"}})
    roles = {one["metadata"]["name"]: one["metadata"]["namespace"] for one in found if one["kind"] == "Role"}
    assert roles == {
        "demo-activator": "models",
        "demo-activator-members": "serving",
        "demo-activator-own": "serving",
    }


def test_its_pods_have_a_token_and_know_their_name() -> None:
    pod = of_kind(objects(CLUSTER), "Deployment")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is True
    assert "POD_NAME" in {one["name"] for one in pod["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**CLUSTER, "replicas": 2}, "several replicas need members.enabled=true"),
        ({**CLUSTER, "autoscaling": {"enabled": True}}, "several replicas need members.enabled=true"),
        ({"members": {"enabled": True}}, "members.enabled: only with profile=knative and profile=kubernetes"),
        (
            {**CLUSTER, "config": {"revisions": [{"name": "a", "hosts": ["*"], "pods": ["h:1"]}]}},
            "Activations and annotated Services declare revisions",
        ),
        ({"kubernetes": {"namespace": "models"}}, "kubernetes.namespace: only with profile=kubernetes"),
        (
            {"config": {"revisions": [{"name": "a", "hosts": ["*"], "process": {"command": ["x"]}}]}},
            "process",
        ),
        ({"config": {"revisions": [{"name": "a", "hosts": ["*"], "pods": ["nowhere"]}]}}, "pattern"),
        ({"config": {"revisions": [{"name": "a", "hosts": ["x.y", "x.y"], "pods": ["h:1"]}]}}, "are equal"),
        (
            {
                "config": {
                    "revisions": [
                        {"name": "a", "hosts": ["x.y"], "pods": ["h:1"]},
                        {"name": "b", "hosts": ["X.y"], "pods": ["h:2"]},
                    ]
                }
            },
            "the host X.y leads to a and to b",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(values: Values, message: str) -> None:
    with pytest.raises(Exception, match=message) as refused:
        objects(values)
    assert "panic" not in str(refused.value)


def test_the_files_are_yaml() -> None:
    crd: Any = yaml.safe_load(CRD_FILE.read_text("utf-8"))
    assert crd == make_definition()
