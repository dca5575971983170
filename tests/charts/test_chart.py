"""The chart, rendered by Helm: every object is one that Kubernetes takes, and looks as the snapshots show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import yaml

import activator
from activator.cli import main as cli
from tests.charts.chart_files import CHART, DASHBOARD, VALUES_SCHEMA
from tests.charts.crd_schemas import SCHEMAS
from tests.charts.renditions import (
    RENDITIONS,
    SNAPSHOTS,
    Object,
    objects,
    of_kind,
    render,
    snapshot,
    values_schema,
    values_schema_text,
)

KUBERNETES_VERSIONS = ("1.25", "1.37")  # the oldest that Chart.yaml takes, the newest whose schemas there are


def validate(found: Object, version: str) -> None:
    """Raises where Kubernetes would refuse the object, or drop a field of it in silence."""
    if found["kind"] in SCHEMAS:
        jsonschema.Draft202012Validator(SCHEMAS[found["kind"]]).validate(found)
    else:
        kubernetes_validate.validate(found, version, strict=True)


# --- of every rendition ---


@pytest.mark.parametrize("name", RENDITIONS)
def test_the_chart_renders_to_what_the_snapshots_show(name: str) -> None:
    shown = (SNAPSHOTS / f"{name}.txt").read_text("utf-8")
    assert shown == snapshot(name), "run `make chart-snapshots`, and look at the difference"


def test_there_is_no_snapshot_of_what_is_gone() -> None:
    assert {path.stem for path in SNAPSHOTS.iterdir()} == set(RENDITIONS)


def test_the_schema_of_config_is_the_activators_own() -> None:
    assert VALUES_SCHEMA.read_text("utf-8") == values_schema_text(), "run `make chart-snapshots`"


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("name", RENDITIONS)
def test_kubernetes_takes_every_object(name: str, version: str) -> None:
    for found in objects(RENDITIONS[name][0]):
        validate(found, version)


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("Deployment", {"replcas": 1}),
        ("PodMonitor", {"podMetricsEndpoint": []}),
    ],
)
def test_a_field_that_is_misspelt_is_found(kind: str, spoil: dict[str, Any]) -> None:
    found = of_kind(objects(RENDITIONS["pod-monitor"][0]), kind)
    found["spec"].update(spoil)
    with pytest.raises(jsonschema.ValidationError, match=next(iter(spoil))):
        validate(found, KUBERNETES_VERSIONS[-1])


@pytest.mark.parametrize("name", RENDITIONS)
def test_helm_has_nothing_to_say(name: str) -> None:
    report = helm_python.lint(CHART, RENDITIONS[name][0], strict=True, namespace="serving")
    assert report["errors"] == []
    assert [one["error"] for one in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("name", RENDITIONS)
def test_objects_of_a_release_are_told_apart_and_stand_in_its_namespace(name: str) -> None:
    found = objects(RENDITIONS[name][0])
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(set(names)) == len(names)
    for one in found:
        is_of_the_cluster = one["kind"].startswith("Cluster") or one["kind"] == "CustomResourceDefinition"
        served = RENDITIONS[name][0].get("kubernetes", {}).get("namespace", "serving")
        is_own = one["metadata"]["name"].endswith("-own")  # rights to what the program itself is
        place = served if one["kind"] in {"Role", "RoleBinding"} and not is_own else "serving"
        assert one["metadata"].get("namespace") == (None if is_of_the_cluster else place)
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "demo"


@pytest.mark.parametrize("name", RENDITIONS)
def test_the_container_may_do_nothing(name: str) -> None:
    pod = of_kind(objects(RENDITIONS[name][0]), "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("name", RENDITIONS)
def test_selectors_find_the_pods(name: str) -> None:
    found = objects(RENDITIONS[name][0])
    template = of_kind(found, "Deployment")["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    for one in found:
        spec = one.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector")
        if selector and one["kind"] != "ServiceMonitor":
            assert selector.get("matchLabels", selector).items() <= labels, one["kind"]
    monitored = [one for one in found if one["kind"] == "ServiceMonitor"]
    for one in monitored:
        service = of_kind(found, "Service")
        assert one["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert one["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    for one in found:
        if one["kind"] == "PodMonitor":
            assert one["spec"]["podMetricsEndpoints"][0]["port"] in ports


# --- the profile standalone ---


@pytest.mark.parametrize("name", ["standalone", "everything"])
def test_the_configuration_is_one_that_the_activator_takes(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = of_kind(objects(RENDITIONS[name][0]), "ConfigMap")
    text = found["data"]["activator.yaml"]
    path = tmp_path / "activator.yaml"
    path.write_text(text.replace("/etc/activator/tls", str(_certificate(tmp_path))), "utf-8")
    assert cli(["check", str(path)]) == 0, capsys.readouterr().err


def _certificate(folder: Path) -> Path:
    import trustme

    issued = trustme.CA().issue_cert("activator.test")
    issued.private_key_pem.write_to_path(str(folder / "tls.key"))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(folder / "tls.crt"), append=True)
    return folder


def test_a_change_of_the_configuration_is_a_rollout() -> None:
    def checksum(config: dict[str, Any]) -> str:
        found = of_kind(objects({"config": config}), "Deployment")
        text: str = found["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        return text

    assert checksum({"access_log": "json"}) == checksum({"access_log": "json"}) != checksum({"access_log": "common"})


def test_standalone_asks_the_cluster_nothing() -> None:
    found = objects(RENDITIONS["standalone"][0])
    assert {one["kind"] for one in found} == {"Deployment", "ConfigMap", "Service", "ServiceAccount", "Secret"}
    assert of_kind(found, "Deployment")["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_two_releases_share_no_name() -> None:
    one, other = ({(each["kind"], each["metadata"]["name"]) for each in objects({}, name)} for name in ("a", "b"))
    assert one.isdisjoint(other)


# --- what is optional ---


@pytest.mark.parametrize(
    ("values", "is_there"),
    [
        ({}, False),
        ({"replicas": 2}, True),
        ({"replicas": 2, "podDisruptionBudget": {"enabled": False}}, False),
        ({"autoscaling": {"enabled": True, "minReplicas": 1}}, True),
        ({"autoscaling": {"enabled": True, "minReplicas": 1}, "podDisruptionBudget": {"minAvailable": 1}}, False),
        ({"autoscaling": {"enabled": True, "minReplicas": 2}}, True),
        ({"autoscaling": {"enabled": True, "minReplicas": 2}, "podDisruptionBudget": {"minAvailable": 1}}, True),
        ({"replicas": 5, "autoscaling": {"enabled": True, "minReplicas": 1}}, True),
        ({"profile": "knative"}, True),
        ({"profile": "knative", "autoscaling": {"enabled": False}}, False),
        ({"profile": "knative", "autoscaling": {"minReplicas": 2}}, True),
        ({"profile": "knative", "autoscaling": {"minReplicas": 2}, "deploymentName": "other"}, False),
    ],
)
def test_no_budget_that_keeps_the_node_of_one_replica_from_being_drained(
    values: dict[str, Any], is_there: bool
) -> None:
    assert ("pdb.yaml" in render(values)) is is_there


def test_autoscaling_has_the_say_over_replicas() -> None:
    autoscaled = of_kind(objects({"replicas": 3, "autoscaling": {"enabled": True}}), "Deployment")
    assert "replicas" not in autoscaled["spec"]
    assert of_kind(objects({"replicas": 3}), "Deployment")["spec"]["replicas"] == 3


def test_alerts_can_be_left_out() -> None:
    def alerts(*disabled: str) -> set[str]:
        values = {"prometheusRule": {"enabled": True, "disabledAlerts": list(disabled)}}
        found = of_kind(objects(values), "PrometheusRule")
        return {rule["alert"] for group in found["spec"]["groups"] for rule in group["rules"] if "alert" in rule}

    every = alerts()
    one = min(every)
    assert alerts(one) == every - {one}


def test_the_dashboard_arrives_as_it_is() -> None:
    maps = [one for one in objects(RENDITIONS["dashboard"][0]) if one["metadata"]["name"].endswith("-dashboard")]
    assert json.loads(maps[0]["data"]["activator.json"]) == json.loads(DASHBOARD.read_text("utf-8"))


def test_its_version_is_the_activators() -> None:
    described = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert described["appVersion"] == activator.__version__


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    def keys(values: Any, schema: Any, path: str = "") -> list[str]:
        properties = schema.get("properties")
        if properties is None or not isinstance(values, dict) or path == "/config":
            return []
        wrong = [f"{path}/{key}" for key in set(values) ^ set(properties) if f"{path}/{key}" not in known]
        return wrong + [
            each
            for key in set(values) & set(properties)
            for each in keys(values[key], properties[key], f"{path}/{key}")
        ]

    known = {"/global", "/readinessProbe/initialDelaySeconds"}
    known |= {f"/{probe}Probe/successThreshold" for probe in ("readiness", "liveness")}
    assert keys(yaml.safe_load((CHART / "values.yaml").read_text("utf-8")), values_schema()) == []
