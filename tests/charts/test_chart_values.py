"""Values that are refused, each with words that say which and why."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest

from activator.config.file import parse
from tests.charts.renditions import objects, of_kind, opened, render, values_schema

Values = dict[str, Any]
KNATIVE: Values = {"profile": "knative"}


def properties_of(schema: Values, path: str = "") -> Iterator[tuple[str, Values]]:
    """Every property, at any depth, with its path."""
    for name, one in schema.get("properties", {}).items():
        yield path + name, one
        yield from properties_of(one, f"{path}{name}.")
    if isinstance(schema.get("items"), dict):
        yield from properties_of(schema["items"], f"{path}[].")
    for one in schema.get("anyOf", []):
        yield from properties_of(one, path)


def test_every_value_has_a_description() -> None:
    properties = dict(properties_of(values_schema()))
    assert len(properties) > 200
    assert [path for path, one in properties.items() if not one.get("description", "").endswith(".")] == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replicaCount": 2}, "additional properties 'replicaCount' not allowed"),
        ({"profile": "openfaas"}, "at '/profile': value must be one of 'standalone', 'knative'"),
        ({"replicas": -1}, "at '/replicas': minimum: got -1, want 0"),
        ({"replicas": "2"}, "at '/replicas': got string, want integer"),
        ({"image": {"repo": "x"}}, "at '/image': additional properties 'repo' not allowed"),
        ({"image": {"digest": "latest"}}, "at '/image/digest': 'latest' does not match pattern"),
        ({"image": {"repository": ""}}, "at '/image/repository': minLength"),
        ({"imagePullSecrets": ["pull"]}, "at '/imagePullSecrets/0': got string, want object"),
        ({"config": {"revision": []}}, "at '/config': additional properties 'revision' not allowed"),
        ({"config": {"listen": "0.0.0.0:80"}}, "at '/config': additional properties 'listen' not allowed"),
        ({"config": {"admin": ""}}, "at '/config': additional properties 'admin' not allowed"),
        ({"config": {"shutdown": {}}}, "at '/config': additional properties 'shutdown' not allowed"),
        ({"config": {"limits": {"header": 1}}}, "at '/config/limits': additional properties 'header' not allowed"),
        ({"config": {"revisions": [{"hosts": []}]}}, "at '/config/revisions/0': missing property 'name'"),
        ({"knative": {"sharing": "some"}}, "at '/knative/sharing': value must be one of 'none', 'knative'"),
        ({"knative": {"scaleFallback": "soon"}}, "at '/knative/scaleFallback': 'soon' does not match pattern"),
        ({"knative": {"autoscaler": "http://a"}}, "at '/knative/autoscaler'"),
        ({"zoneFromPodLabel": "eu-1a"}, "at '/zoneFromPodLabel': got string, want boolean"),
        ({"bindHost": "127.0.0.1"}, "at '/bindHost': value must be one of '0.0.0.0', '[::]'"),
        ({"shutdown": {"delaySeconds": "10s"}}, "at '/shutdown/delaySeconds'"),
        ({"podDisruptionBudget": {"minAvailable": "most"}}, "at '/podDisruptionBudget/minAvailable'"),
        ({"service": {"type": "ExternalName"}}, "at '/service/type': value must be one of"),
        ({"service": {"ipFamilyPolicy": "Dual"}}, "at '/service/ipFamilyPolicy': value must be one of"),
        ({"service": {"extraPorts": [{"port": 1}]}}, "at '/service/extraPorts/0': missing property 'name'"),
        ({"readinessProbe": {"path": "/"}}, "at '/readinessProbe': additional properties 'path' not allowed"),
        ({"podMonitor": {"interval": "often"}}, "at '/podMonitor/interval': 'often' does not match pattern"),
        ({"tls": {"minVersion": "1.0"}}, "at '/tls/minVersion': value must be one of '1.2', '1.3'"),
        ({"nodeSelector": {"gpu": True}}, "at '/nodeSelector/gpu': got boolean, want string"),
    ],
)
def test_the_schema_refuses(values: Values, message: str) -> None:
    with opened() as chart, pytest.raises(helm_python.HelmError) as refused:
        chart.validate_schema(values)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"kubernetes": {"externalScaler": {"enabled": True}}},
            "kubernetes.externalScaler.enabled: only with profile=kubernetes",
        ),
        (
            {"terminationGracePeriodSeconds": 50},
            "terminationGracePeriodSeconds is 50, but shutdown.delaySeconds and shutdown.timeoutSeconds need 55",
        ),
        ({"shutdown": {"delaySeconds": 30}}, "terminationGracePeriodSeconds is 60, but"),
        ({**KNATIVE, "shutdown": {"timeoutSeconds": 556}}, "terminationGracePeriodSeconds is 600, but"),
        ({**KNATIVE, "config": {"revisions": [{"name": "a"}]}}, "revisions come from the cluster"),
        ({**KNATIVE, "tls": {"secretName": "a"}}, "TLS is switched on by system-internal-tls"),
        ({"knative": {"scaleFallback": "30s"}}, "knative.scaleFallback: only with profile=knative"),
        ({"service": {"ipFamilyPolicy": "PreferDualStack"}}, "PreferDualStack needs bindHost=[::]"),
        ({"serviceMonitor": {"enabled": True}}, "serviceMonitor.enabled needs service.exposeAdmin=true"),
        (
            {**KNATIVE, "serviceMonitor": {"enabled": True}, "deploymentName": "other"},
            "this release has no Service; take podMonitor.enabled",
        ),
        (
            {"autoscaling": {"enabled": True, "minReplicas": 30}},
            "autoscaling.minReplicas is greater than autoscaling.maxReplicas",
        ),
    ],
)
def test_the_templates_refuse(values: Values, message: str) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        render(values)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "shutdown", [{}, {"delaySeconds": 15}, {"delaySeconds": 0, "timeoutSeconds": 60}, {"delaySeconds": 0}]
)
def test_what_fits_into_the_grace_is_taken(shutdown: Values) -> None:
    pod = of_kind(objects({"shutdown": shutdown}), "Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 60


@pytest.mark.parametrize("off", ["0s", "0ms", "0", "0.0s"])
def test_a_fallback_that_is_off_brings_no_right(off: str) -> None:
    assert "deployments/scale" not in render({**KNATIVE, "knative": {"scaleFallback": off}})["rbac.yaml"]


def test_rights_for_members_are_asked_for_and_stay_in_the_namespace() -> None:
    assert "leases" not in render(KNATIVE)["rbac.yaml"]
    made = objects({**KNATIVE, "members": {"enabled": True}})
    rules = {one["kind"]: str(one["rules"]) for one in made if one["kind"] in {"Role", "ClusterRole"}}
    assert "leases" in rules["Role"] and "pods" in rules["Role"]
    assert "leases" not in rules["ClusterRole"] and "'pods'" not in rules["ClusterRole"]


def test_the_key_of_the_members_is_made_where_none_is_given() -> None:
    made = objects({**KNATIVE, "members": {"enabled": True}})
    (secret,) = [one for one in made if one["metadata"]["name"] == "activator-members" and one["kind"] == "Secret"]
    assert len(base64.b64decode(secret["data"]["key"])) == 64
    made = objects({**KNATIVE, "members": {"enabled": True, "keySecret": "ours"}})
    assert [one["metadata"]["name"] for one in made if one["kind"] == "Secret"] == ["activator-admin"]
    (deployment,) = [one for one in made if one["kind"] == "Deployment"]
    assert {"name": "members", "secret": {"secretName": "ours"}} in deployment["spec"]["template"]["spec"]["volumes"]


@pytest.mark.parametrize("profile", ["standalone", "kubernetes", "knative"])
def test_the_admin_port_has_a_token_of_its_own(profile: str) -> None:
    made = objects({"profile": profile})
    (secret,) = [one for one in made if one["kind"] == "Secret"]
    token = base64.b64decode(secret["data"]["token"])
    assert len(token) == 64
    assert token != base64.b64decode(of_kind(objects({"profile": profile}), "Secret")["data"]["token"])
    made = objects({"profile": profile, "admin": {"tokenSecret": "ours"}})
    assert [one for one in made if one["kind"] == "Secret"] == []
    pod = of_kind(made, "Deployment")["spec"]["template"]["spec"]
    assert {"name": "admin", "secret": {"secretName": "ours"}} in pod["volumes"]
    assert "file:/etc/activator/admin/token" in str(made)


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({**KNATIVE, "members": {"enabled": True}, "knative": {"sharing": "knative"}}, "use exact"),
        ({**KNATIVE, "knative": {"sharing": "exact"}}, "exact needs members.enabled=true"),
        ({"members": {"enabled": True}}, "members.enabled: only with profile=knative"),
    ],
)
def test_what_members_exclude_and_require(values: dict[str, Any], part: str) -> None:
    with pytest.raises(helm_python.HelmError, match=part):
        render(values)


def test_the_pods_environment_is_what_the_program_reads() -> None:
    made = objects({**KNATIVE, "members": {"enabled": True}})
    (deployment,) = [one for one in made if one["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environ = {one["name"]: one.get("value", "") for one in container["env"]}
    environ = {name: value for name, value in environ.items() if name.startswith("ACTIVATOR_")}
    config = parse("kubernetes: {mode: knative}\n", "f", environ)
    assert config.members.listen == "0.0.0.0:8015" and config.members.group == "activator"
    assert config.members.key_file == "/etc/activator/members/key"
    assert config.kubernetes is not None and config.kubernetes.sharing == "exact"


@pytest.mark.parametrize("profile", ["standalone", "kubernetes", "knative"])
def test_the_zone_from_the_label_of_the_pod(profile: str) -> None:
    """The downward API gives an empty text where the label is absent: no zone."""

    def of_zone(values: Values) -> list[Values]:
        found = of_kind(objects({"profile": profile, **values}), "Deployment")
        env: list[Values] = found["spec"]["template"]["spec"]["containers"][0].get("env", [])
        return [one for one in env if one["name"] == "ACTIVATOR_ZONE"]

    revisions = {"revisions": [{"name": "hello", "hosts": ["*"], "pods": ["hello.test:80"]}]}
    config = revisions if profile == "standalone" else {}
    label = {"fieldRef": {"fieldPath": "metadata.labels['topology.kubernetes.io/zone']"}}
    assert of_zone({"config": config}) == []
    assert of_zone({"config": config, "zoneFromPodLabel": True}) == [{"name": "ACTIVATOR_ZONE", "valueFrom": label}]
    chosen = of_zone({"config": {**config, "zone": "eu-1a"}, "zoneFromPodLabel": True})
    assert chosen == ([{"name": "ACTIVATOR_ZONE", "value": "eu-1a"}] if profile == "knative" else []), (
        "written is first"
    )
