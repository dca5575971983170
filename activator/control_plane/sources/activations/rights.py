"""The rights of the activator in a cluster without Knative: those to read, beside the reconciler's to write.

The roles of the chart are made from this table (`make chart-snapshots`). `test_e2e_activations.py` runs the program
with exactly these rights, so a call without a row in the table is refused there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from activator.config.activation import API_VERSION
from activator.control_plane.reconcile.rights import RIGHTS, Right, rules

_WATCH: Final = ("get", "list", "watch")

READ: Final[tuple[Right, ...]] = (
    Right(API_VERSION, "activations", _WATCH, "what declares a revision"),
    Right("v1", "services", _WATCH, "annotated Services that declare a revision"),
    Right("discovery.k8s.io/v1", "endpointslices", _WATCH, "where pods are, and whether they are ready"),
    Right("apps/v1", "deployments", _WATCH, "targets: their selector, ports and replicas"),
    Right("apps/v1", "statefulsets", _WATCH, "targets: their selector, ports and replicas"),
    Right("v1", "pods", ("list",), "why pods do not come"),
    Right("gateway.networking.k8s.io/v1", "httproutes", _WATCH, "hosts of routes that lead here"),
)

# With several replicas, in the namespace of the activator itself.
MEMBERS: Final[tuple[Right, ...]] = (
    Right(
        "coordination.k8s.io/v1",
        "leases",
        (*_WATCH, "create", "delete"),
        "one for each replica, whose name is its index",
    ),
    Right("v1", "pods", ("get",), "whether the pod of a replica that does not answer is gone"),
)


# Where the activator serves only one namespace, in the namespace of the activator itself.
OWN: Final[tuple[Right, ...]] = (
    Right(
        "discovery.k8s.io/v1", "endpointslices", _WATCH, "mode transparent: which replicas of this program are ready"
    ),
)


def all_rules() -> list[dict[str, list[str]]]:
    """Return the rules of a role: one for each resource, with all verbs that are used on it."""
    return _merged((*READ, *RIGHTS))


def member_rules() -> list[dict[str, list[str]]]:
    """Return the rules of a role in the activator's own namespace, where there are several replicas."""
    return _merged(MEMBERS)


def own_rules() -> list[dict[str, list[str]]]:
    """Return the rules of a role in the activator's own namespace, where it serves only one other namespace."""
    return _merged(OWN)


def _merged(table: Iterable[Right]) -> list[dict[str, list[str]]]:
    """Return one rule for each resource, with the verbs of all its rows."""
    verbs: dict[tuple[str, str], set[str]] = {}
    for right in table:
        verbs.setdefault((right.group, right.resource), set()).update(right.verbs)
    merged = [
        Right(f"{group}/v1" if group else "v1", name, tuple(sorted(used)), "") for (group, name), used in verbs.items()
    ]
    return sorted(rules(merged), key=lambda rule: (rule["apiGroups"], rule["resources"]))
