"""The chart as Helm's own engine renders it, and what of the repository is written from that.

    python -m tests.charts.renditions      writes the snapshots and the part `config` of values.schema.json anew

Rules
  1. Helm renders, lints and judges values; nothing of it is imitated here.
  2. A snapshot is what a reader would want to see: the objects of one set of values, in the order of their files. Each
     optional object stands in a snapshot of its own, alone.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import helm_python
import yaml

from activator.config.crd import make_definition
from activator.config.file import schema
from activator.control_plane.sources.activations.rights import all_rules, member_rules, own_rules
from tests.charts.chart_files import (
    CHART,
    CRD_FILE,
    DASHBOARD,
    FILES,
    MEMBER_RULES_FILE,
    OWN_RULES_FILE,
    RULES_FILE,
    VALUES_SCHEMA,
)

WRITTEN: Final = "# Written by `make chart-snapshots` from the program's own tables and types; do not edit.\n"
SNAPSHOTS: Final = Path(__file__).parent / "snapshots"
WRITTEN_BY_THE_CHART: Final = (
    "listen",
    "admin",
    "shutdown",
    "kubernetes",
)  # keys of the file that `config` may not have

Object = dict[str, Any]
Values = dict[str, Any]

REVISIONS: Final[Values] = {
    "config": {
        "trailing_fragmentation_threshold": 0.25,
        "limits": {"connections": 20000, "held_bytes": "128MiB"},
        "revisions": [{"name": "hello", "hosts": ["*"], "container_concurrency": 10, "pods": ["hello.test:80"]}],
    }
}
KNATIVE: Final[Values] = {"profile": "knative"}
CLUSTER: Final[Values] = {"profile": "kubernetes"}
SEVERAL: Final[Values] = {**CLUSTER, "replicas": 3, "members": {"enabled": True, "keySecret": "group-key"}}
BESIDE: Final[Values] = {**KNATIVE, "deploymentName": "activator-python"}
EVERYTHING: Final[Values] = {
    **REVISIONS,
    "image": {"repository": "registry.test/activator", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "bindHost": "[::]",
    "tls": {"secretName": "certificate"},
    "service": {
        "exposeAdmin": True,
        "extraPorts": [{"name": "push", "port": 8015}],
        "annotations": {"a": "b"},
        "ipFamilyPolicy": "PreferDualStack",
    },
    "serviceAccount": {"annotations": {"a": "b"}},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "edge", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [],
    "priorityClassName": "system-cluster-critical",
    "commonLabels": {"team": "edge"},
    "podLabels": {"mesh": "off"},
    "podAnnotations": {"a": "b"},
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [{"name": "extra", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
}

# name: (values, the templates that are shown; empty: all)
RENDITIONS: Final[dict[str, tuple[Values, tuple[str, ...]]]] = {
    "standalone": (REVISIONS, ()),
    "knative": (KNATIVE, ()),
    "kubernetes": (CLUSTER, ("deployment.yaml", "configmap.yaml", "rbac.yaml", "service.yaml")),
    "kubernetes-one-namespace": ({**CLUSTER, "kubernetes": {"namespace": "models"}}, ("rbac.yaml", "configmap.yaml")),
    "kubernetes-replicas": (
        {**SEVERAL, "networkPolicy": {"enabled": True}},
        ("deployment.yaml", "configmap.yaml", "rbac.yaml", "networkpolicy.yaml", "pdb.yaml"),
    ),
    "external-scaler": (
        {**CLUSTER, "kubernetes": {"externalScaler": {"enabled": True}}, "networkPolicy": {"enabled": True}},
        ("configmap.yaml", "deployment.yaml", "keda-service.yaml", "networkpolicy.yaml"),
    ),
    "knative-beside": (BESIDE, ()),
    "everything": (EVERYTHING, ("deployment.yaml", "service.yaml", "configmap.yaml", "serviceaccount.yaml")),
    "autoscaling": ({**REVISIONS, "autoscaling": {"enabled": True, "minReplicas": 2}}, ("hpa.yaml", "pdb.yaml")),
    "autoscaling-by-all": (
        {
            **SEVERAL,
            "autoscaling": {"enabled": True, "targetMemoryUtilizationPercentage": 300, "targetQueued": 50},
        },
        ("hpa.yaml",),
    ),
    "budget-knative": ({**KNATIVE, "autoscaling": {"minReplicas": 2}}, ("pdb.yaml",)),
    "members": (
        {**KNATIVE, "members": {"enabled": True, "keySecret": "group-key"}, "networkPolicy": {"enabled": True}},
        ("rbac.yaml", "deployment.yaml", "networkpolicy.yaml"),
    ),
    "scale-fallback": ({**KNATIVE, "knative": {"scaleFallback": "30s"}}, ("rbac.yaml",)),
    "network-policy": (
        {
            **REVISIONS,
            "networkPolicy": {"enabled": True},
            "service": {"extraPorts": [{"name": "push", "port": 80, "targetPort": 8015}, {"name": "b", "port": 9}]},
        },
        ("networkpolicy.yaml",),
    ),
    "network-policy-knative": (
        {
            **KNATIVE,
            "networkPolicy": {
                "enabled": True,
                "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kourier-system"}}}],
                "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            },
        },
        ("networkpolicy.yaml",),
    ),
    "pod-monitor": ({**KNATIVE, "podMonitor": {"enabled": True, "labels": {"release": "p"}}}, ("podmonitor.yaml",)),
    "service-monitor": ({**KNATIVE, "serviceMonitor": {"enabled": True}}, ("servicemonitor.yaml",)),
    "prometheus-rule": ({**REVISIONS, "prometheusRule": {"enabled": True}}, ("prometheusrule.yaml",)),
    "dashboard": ({**REVISIONS, "dashboard": {"enabled": True}}, ("dashboard.yaml",)),
}

# host:port, an IPv6 host in brackets; what it cannot say, such as ports above 65535, the program says at its start.
ADDRESS_PATTERN: Final = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?):[1-9][0-9]{0,4}$"
CONFIG_DESCRIPTION = (
    "The configuration of the activator (docs/configuration.md), without `listen`, `admin`, `shutdown` and "
    "`kubernetes`, which the chart writes."
)


@contextmanager
def opened() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(CHART) as chart:
        yield chart


def render(values: Values, name: str = "demo", namespace: str = "serving") -> dict[str, str]:
    """The text of each template that renders to anything, by its file name. Raises helm_python's errors."""
    with opened() as chart:
        rendered = chart.render(values, name=name, namespace=namespace)
    return {path.rpartition("/")[2]: text.strip("\n") + "\n" for path, text in sorted(rendered.items()) if text.strip()}


def objects(values: Values, name: str = "demo", namespace: str = "serving") -> list[Object]:
    """Every Kubernetes object of a release."""
    return [
        found
        for file, text in render(values, name, namespace).items()
        if file.endswith(".yaml")
        for found in yaml.safe_load_all(text)
        if found
    ]


def of_kind(found: list[Object], kind: str) -> Object:
    """The one object of a kind."""
    (one,) = [each for each in found if each["kind"] == kind]
    return one


def snapshot(name: str) -> str:
    values, shown = RENDITIONS[name]
    files = {file: text for file, text in render(values).items() if not shown or file in shown}
    assert not shown or set(files) == set(shown), f"{name}: rendered are only {sorted(files)}"
    whole = "".join(f"# --- {file}\n{text}" for file, text in files.items())
    whole = re.sub(r"(?m)^(  (?:token|key)): \w{80,}=*$", r"\1: (random)", whole)
    return whole.replace(textwrap.indent(DASHBOARD.read_text("utf-8"), "    "), "    (dashboards/activator.json)\n")


def values_schema() -> Object:
    """values.schema.json as it should be: as it is, with `config` from the activator's own schema."""
    found: Object = json.loads(VALUES_SCHEMA.read_text("utf-8"))
    own = schema()
    properties = {key: value for key, value in own["properties"].items() if key not in WRITTEN_BY_THE_CHART}
    revision = properties["revisions"]["items"]["properties"]
    del revision["process"]  # a container of the activator has no programs to start
    revision["hosts"]["uniqueItems"] = True
    for one in revision["pods"]["items"]["anyOf"]:
        address = one if one["type"] == "string" else one["properties"]["address"]
        address["pattern"] = ADDRESS_PATTERN
    found["properties"]["config"] = {
        "description": CONFIG_DESCRIPTION,
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }
    return found


def values_schema_text() -> str:
    return json.dumps(values_schema(), indent=2) + "\n"


def rules_text() -> str:
    """The rules of the program's role in a cluster without Knative."""
    return WRITTEN + yaml.safe_dump(all_rules(), sort_keys=False, default_flow_style=None)


def member_rules_text() -> str:
    """The rules of a role in the program's own namespace, where its replicas find each other."""
    return WRITTEN + yaml.safe_dump(member_rules(), sort_keys=False, default_flow_style=None)


def own_rules_text() -> str:
    """The rules of a role in the program's own namespace, where it looks at another one alone."""
    return WRITTEN + yaml.safe_dump(own_rules(), sort_keys=False, default_flow_style=None)


def crd_text() -> str:
    """The CustomResourceDefinition of Activation."""
    return WRITTEN + yaml.safe_dump(make_definition(), sort_keys=False, width=120)


def main() -> None:
    FILES.mkdir(exist_ok=True)
    RULES_FILE.write_text(rules_text(), "utf-8")
    MEMBER_RULES_FILE.write_text(member_rules_text(), "utf-8")
    OWN_RULES_FILE.write_text(own_rules_text(), "utf-8")
    CRD_FILE.write_text(crd_text(), "utf-8")
    VALUES_SCHEMA.write_text(values_schema_text(), "utf-8")  # first: what is rendered is judged by it
    SNAPSHOTS.mkdir(exist_ok=True)
    for path in SNAPSHOTS.glob("*.txt"):
        if path.stem not in RENDITIONS:
            path.unlink()
    for name in RENDITIONS:
        (SNAPSHOTS / f"{name}.txt").write_text(snapshot(name), "utf-8")


if __name__ == "__main__":
    main()
