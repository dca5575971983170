"""The hosts that HTTPRoutes of the Gateway API name for a revision, so that an Activation need not repeat them.

Rules
  1. A route counts if one of its backends is the activator's own Service.
  2. A route belongs to the revision that its annotation `activator.dev/activation` names, in the route's namespace;
     without the annotation, to the revision with the route's name.

Source: gateway.networking.k8s.io/v1 HTTPRoute: a backend with an empty group and no kind is a Service.
"""

from __future__ import annotations

from typing import Final

from activator.control_plane.sources.activations.objects import HttpRoute
from activator.kubernetes.objects import Key

ACTIVATION: Final = "activator.dev/activation"


class RouteHosts:
    """The hosts by revision. `routed_to`: the activator's Service, by namespace and name."""

    def __init__(self, routed_to: Key) -> None:
        self._routed_to = routed_to
        self._routes: dict[Key, tuple[str, tuple[str, ...]]] = {}  # by route: the revision, and the hosts
        self._by_revision: dict[str, dict[Key, tuple[str, ...]]] = {}

    def put(self, route: HttpRoute) -> set[str]:
        """Record the state of a route; return the revisions whose hosts may have changed."""
        affected = self.drop(route)
        if not self._leads_here(route):
            return affected
        namespace, name = route.key
        revision = f"{namespace}/{route.metadata.annotations.get(ACTIVATION, name)}"
        hosts = tuple(route.spec.hostnames or ())
        self._routes[route.key] = (revision, hosts)
        self._by_revision.setdefault(revision, {})[route.key] = hosts
        return affected | {revision}

    def drop(self, route: HttpRoute) -> set[str]:
        """Forget a route; return the revisions whose hosts may have changed."""
        revision, _ = self._routes.pop(route.key, ("", ()))
        if not revision:
            return set()
        routes = self._by_revision[revision]
        del routes[route.key]
        if not routes:
            del self._by_revision[revision]
        return {revision}

    def of(self, revision: str) -> list[str]:
        """Return the hosts of all routes of a revision, in the order of the routes' names."""
        routes = self._by_revision.get(revision, {})
        return [host for key in sorted(routes) for host in routes[key]]

    def _leads_here(self, route: HttpRoute) -> bool:
        own = route.metadata.namespace
        return any(
            (backend.namespace or own, backend.name) == self._routed_to
            and (backend.group, backend.kind) == ("", "Service")
            for rule in route.spec.rules or ()
            for backend in rule.backend_refs or ()
        )
