"""The table of the reconciler's calls: paths are made from it, and roles are generated from it.

Rules
  1. Every call uses a row of this table: `Right.path` and `Right.collection` are the only makers of paths.
  2. A row that no call needs is a mistake, as is a call without a row: a test runs with exactly these rights, and
     removes each of them once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from activator.control_plane.reconcile.desired import ACTIVATION_VERSION


class Right(msgspec.Struct, frozen=True):
    """One resource of one API version. `resource` is the plural, with its subresource: "deployments/scale"."""

    api_version: str  # such as "v1" or "apps/v1"
    resource: str
    verbs: tuple[str, ...]
    why: str

    @property
    def group(self) -> str:
        """The API group as in RBAC rules; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def collection(self, namespace: str) -> str:
        """Return the path of all objects in a namespace."""
        return f"{_prefix(self.api_version)}/namespaces/{namespace}/{self.resource.partition('/')[0]}"

    def path(self, namespace: str, name: str) -> str:
        """Return the path of one object, or of its subresource."""
        plural, _, subresource = self.resource.partition("/")
        whole = f"{_prefix(self.api_version)}/namespaces/{namespace}/{plural}/{name}"
        return f"{whole}/{subresource}" if subresource else whole


def _prefix(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def scale_right(api_version: str, plural: str) -> Right:
    """Return the right for a kind of target; a user who scales a kind beyond SCALES must grant it."""
    return Right(api_version, f"{plural}/scale", ("get", "patch"), "replicas of a target")


ACTIVATIONS: Final = Right(
    ACTIVATION_VERSION, "activations", ("get",), "what its status and UID are, where no watch shows them"
)
STATUSES: Final = Right(ACTIVATION_VERSION, "activations/status", ("patch",), "the status of an Activation")
SERVICES: Final = Right(
    "v1",
    "services",
    ("get", "list", "create", "patch", "delete"),
    "the private headless Service of an Activation; the selector of a transparent one",
)
ENDPOINT_SLICES: Final = Right(
    "discovery.k8s.io/v1",
    "endpointslices",
    ("list", "create", "patch", "delete"),
    "mode transparent: our own slices of a user's Service",
)
EVENTS: Final = Right("events.k8s.io/v1", "events", ("create", "patch"), "decisions worth telling, in series")
SCALES: Final = {
    ("apps/v1", "Deployment"): scale_right("apps/v1", "deployments"),
    ("apps/v1", "StatefulSet"): scale_right("apps/v1", "statefulsets"),
}

RIGHTS: Final[tuple[Right, ...]] = (ACTIVATIONS, STATUSES, SERVICES, ENDPOINT_SLICES, EVENTS, *SCALES.values())


def rules(rights: Iterable[Right] = RIGHTS) -> list[dict[str, list[str]]]:
    """Return the rules of a Role or ClusterRole."""
    return [{"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)} for right in rights]
