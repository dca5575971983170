"""The handlers of Knative's objects: each stores objects with the revision that they belong to.

A private Service has the revision's pods; the public one has the pods too, or the activators in front of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from activator.control_plane.sources.knative.revision_backends import RevisionBackends
from activator.control_plane.sources.knative.service_backends import ServiceBackends
from activator.kubernetes.objects import (
    ConfigMap,
    Endpoints,
    EndpointSlice,
    Key,
    KubeObject,
    Revision,
    Service,
)

SERVICE_TYPE: Final = "networking.internal.knative.dev/serviceType"
REVISION_LABEL: Final = "serving.knative.dev/revision"

PRIVATE: Final = "Private"
PUBLIC: Final = "Public"

RevisionFor = Callable[[str], RevisionBackends]  # returns the revision of this key, created if necessary, and marks it
ByKey = Callable[[str], None]


class _Objects:
    """The handler of one kind; lists need no more than the calls for single objects."""

    def resync(self, new: Any) -> None:
        """Do nothing: `changed` has already been called with the current state, which is enough for most kinds."""

    def listed(self, objects: Mapping[Key, Any]) -> None:
        """Do nothing: the differences have been delivered one by one."""


class RevisionObjects(_Objects):
    def __init__(self, revision_for: RevisionFor, removed: ByKey) -> None:
        self._revision_for = revision_for
        self._removed = removed

    def changed(self, old: Revision | None, new: Revision) -> None:
        self._revision_for(_key(new)).revision = new

    def removed(self, old: Revision) -> None:
        self._removed(_key(old))


class _ServicesHandler(_Objects):
    """The objects of a revision's Services. `forget_if_empty` drops the revision if nothing of it is left."""

    def __init__(self, revision_for: RevisionFor, forget_if_empty: ByKey) -> None:
        self._revision_for = revision_for
        self._forget_if_empty = forget_if_empty

    def _service_of(self, item: KubeObject) -> ServiceBackends | None:
        """Return the Service that an object with endpoints belongs to; None: none."""
        key, kind = _service_key(item)
        if not key:
            return None
        if kind == PRIVATE:
            return self._revision_for(key).private
        if kind == PUBLIC:
            return self._revision_for(key).public
        return None


class ServiceObjects(_ServicesHandler):
    """Private Services, for their addresses."""

    def changed(self, old: Service | None, new: Service) -> None:
        key = _labelled_key(new)
        if old is not None and _labelled_key(old) != key:
            self.removed(old)
        if key:
            self._revision_for(key).services[new.metadata.name] = new

    def removed(self, old: Service) -> None:
        key = _labelled_key(old)
        if key:
            self._revision_for(key).services.pop(old.metadata.name, None)
            self._forget_if_empty(key)


class SliceObjects(_ServicesHandler):
    def changed(self, old: EndpointSlice | None, new: EndpointSlice) -> None:
        if old is not None and _service_key(old) != _service_key(new):
            self.removed(old)
        service = self._service_of(new)
        if service is not None:
            service.put_slice(new)

    def removed(self, old: EndpointSlice) -> None:
        service = self._service_of(old)
        if service is not None:
            service.drop_slice(old.metadata.name)
            self._forget_if_empty(_labelled_key(old))

    def resync(self, new: EndpointSlice) -> None:
        key, kind = _service_key(new)
        if key and kind == PRIVATE:
            self._revision_for(key).events_lost([new], [])


class EndpointsObjects(_ServicesHandler):
    def changed(self, old: Endpoints | None, new: Endpoints) -> None:
        if old is not None and _service_key(old) != _service_key(new):
            self.removed(old)
        service = self._service_of(new)
        if service is not None:
            service.put_endpoints(new)

    def removed(self, old: Endpoints) -> None:
        service = self._service_of(old)
        if service is not None:
            service.drop_endpoints(old.metadata.name)
            self._forget_if_empty(_labelled_key(old))

    def resync(self, new: Endpoints) -> None:
        key, kind = _service_key(new)
        if key and kind == PRIVATE:
            self._revision_for(key).events_lost([], [new])


class ConfigObjects(_Objects):
    """The handler of the ConfigMaps of the system namespace."""

    def __init__(self, configured: Callable[[str, Mapping[str, str]], None]) -> None:
        self._configured = configured

    def changed(self, old: ConfigMap | None, new: ConfigMap) -> None:
        self._configured(new.metadata.name, new.data)

    def removed(self, old: ConfigMap) -> None:
        self._configured(old.metadata.name, {})


def _key(item: KubeObject) -> str:
    return f"{item.metadata.namespace}/{item.metadata.name}"


def _labelled_key(item: KubeObject) -> str:
    """Return the revision that the object's label names; empty if it names none."""
    name = item.metadata.labels.get(REVISION_LABEL, "")
    return f"{item.metadata.namespace}/{name}" if name else ""


def _service_key(item: KubeObject) -> tuple[str, str]:
    return _labelled_key(item), item.metadata.labels.get(SERVICE_TYPE, "")
