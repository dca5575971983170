"""Which resources there are, what CustomResourceDefinitions add to them, and what a write of each must look like."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.kubernetes.fake_objects import Collection, FakeObjects, Json, RefusalError
from tests.kubernetes.fake_patching import Shape
from tests.kubernetes.fake_scale import Paths
from tests.kubernetes.fake_schema import mistakes, prune, put_defaults, schema_mistakes

DEFINITIONS = ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions")
NOTE_LENGTH_MAX = 1024


class Kind(NamedTuple):
    """`scale`: where its replicas stand, in the spec and in the status, and of a custom resource the selector as text;
    None: it has no scale subresource."""

    kind: str
    has_status: bool = False
    scale: Paths | None = None
    is_namespaced: bool = True


REPLICAS: Paths = (("spec", "replicas"), ("status", "replicas"), ())
KINDS: dict[tuple[str, str], Kind] = {
    ("/api/v1", "configmaps"): Kind("ConfigMap"),
    ("/api/v1", "endpoints"): Kind("Endpoints"),
    ("/api/v1", "namespaces"): Kind("Namespace", is_namespaced=False),
    ("/api/v1", "pods"): Kind("Pod", has_status=True),
    ("/api/v1", "secrets"): Kind("Secret"),
    ("/api/v1", "services"): Kind("Service"),
    ("/apis/apps/v1", "deployments"): Kind("Deployment", True, REPLICAS),
    ("/apis/apps/v1", "statefulsets"): Kind("StatefulSet", True, REPLICAS),
    ("/apis/coordination.k8s.io/v1", "leases"): Kind("Lease"),
    ("/apis/discovery.k8s.io/v1", "endpointslices"): Kind("EndpointSlice"),
    ("/apis/events.k8s.io/v1", "events"): Kind("Event"),
    ("/apis/serving.knative.dev/v1", "revisions"): Kind("Revision"),
    DEFINITIONS: Kind("CustomResourceDefinition", is_namespaced=False),
}


class FakeKinds:
    """Those of one server."""

    def __init__(self, objects: FakeObjects) -> None:
        self._objects = objects
        self.kinds = dict(KINDS)
        self.collection(*DEFINITIONS).admit = self._admit_definition
        self.collection("/api/v1", "services").admit = admit_service
        self.collection("/apis/events.k8s.io/v1", "events").admit = admit_event

    def get(self, prefix: str, plural: str) -> Kind | None:
        return self.kinds.get((prefix, plural))

    def collection(self, prefix: str, plural: str) -> Collection:
        return self._objects.collection(prefix, plural, self.kinds[prefix, plural].kind)

    def by_plural(self, plural: str) -> Collection:
        return next(self.collection(prefix, name) for prefix, name in self.kinds if name == plural)

    def discovery(self, prefix: str) -> Json | None:
        """The APIResourceList of a group and version; None: there is none."""
        found = [(plural, kind) for (one, plural), kind in self.kinds.items() if one == prefix]
        if not found:
            return None
        resources = []
        for plural, kind in found:
            resources.append(_resource(plural, kind.kind, kind.is_namespaced))
            if kind.has_status:
                resources.append(_resource(f"{plural}/status", kind.kind, kind.is_namespaced))
            if kind.scale is not None:
                scale = _resource(f"{plural}/scale", "Scale", kind.is_namespaced)
                resources.append({**scale, "group": "autoscaling", "version": "v1"})
        version = prefix.removeprefix("/apis/").removeprefix("/api/")
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}

    # --- definitions ------------------------------------------------------------------------------------------------

    def _admit_definition(self, old: Json | None, new: Json, subresource: str) -> None:
        spec, name = new.get("spec") or {}, new["metadata"]["name"]
        names = spec.get("names") or {}
        if name != f"{names.get('plural')}.{spec.get('group')}":
            raise invalid("CustomResourceDefinition", name, ['metadata.name: must be spec.names.plural+"."+spec.group'])
        versions = [one for one in spec.get("versions") or () if one.get("served")]
        for version in versions:
            schema = (version.get("schema") or {}).get("openAPIV3Schema")
            if not schema or schema.get("type") != "object":
                raise invalid("CustomResourceDefinition", name, ["spec.versions.schema: schemas are required"])
            wrong = list(schema_mistakes(schema))
            if wrong:
                raise invalid("CustomResourceDefinition", name, wrong)
        for version in versions:
            self._define(spec, names, version)
        conditions = [{"type": kind, "status": "True"} for kind in ("NamesAccepted", "Established")]
        new["status"] = {"conditions": conditions, "acceptedNames": names}

    def _define(self, spec: Json, names: Json, version: Json) -> None:
        prefix, plural = f"/apis/{spec['group']}/{version['name']}", names["plural"]
        subresources = version.get("subresources") or {}
        scale = subresources.get("scale")
        paths = None
        if scale:
            selector = _path(scale.get("labelSelectorPath", ""))
            paths = (_path(scale["specReplicasPath"]), _path(scale["statusReplicasPath"]), selector)
        has_status = "status" in subresources
        self.kinds[prefix, plural] = Kind(names["kind"], has_status, paths, spec.get("scope") == "Namespaced")
        collection = self.collection(prefix, plural)
        collection.is_custom = collection.has_generation = True
        collection.has_status = has_status
        schema = version["schema"]["openAPIV3Schema"]
        collection.shape = shape_of(schema)
        collection.admit = lambda old, new, subresource: admit_custom(collection, schema, old, new)


def _resource(name: str, kind: str, namespaced: bool) -> Json:
    return {"name": name, "kind": kind, "namespaced": namespaced, "singularName": "", "verbs": ["get", "patch"]}


def _path(text: str) -> tuple[str, ...]:
    return tuple(text.strip(".").split("."))


def shape_of(schema: Json) -> Shape:
    """How a custom resource is merged, of lists and maps that are within no list."""
    lists: dict[tuple[str, ...], tuple[str, ...]] = {("metadata", "ownerReferences"): ("uid",)}
    atomic: set[tuple[str, ...]] = set()

    def look(one: Json, path: tuple[str, ...]) -> None:
        if one.get("x-kubernetes-list-type") == "map":
            lists[path] = tuple(one["x-kubernetes-list-map-keys"])
        elif one.get("x-kubernetes-map-type") == "atomic":
            atomic.add(path)
        else:
            for name, child in one.get("properties", {}).items():
                look(child, (*path, name))

    look(schema, ())
    return Shape(lists, frozenset(atomic))


# --- what is admitted -----------------------------------------------------------------------------------------------


def invalid(kind: str, name: str, wrong: list[str]) -> RefusalError:
    said = wrong[0] if len(wrong) == 1 else f"[{', '.join(wrong)}]"
    return RefusalError(422, "Invalid", f'{kind} "{name}" is invalid: {said}')


def admit_custom(collection: Collection, schema: Json, old: Json | None, new: Json) -> None:
    """Unknown fields go, defaults come, and the rest must be as the schema says."""
    whole = {"properties": {"apiVersion": {}, "kind": {}, "metadata": {"x-kubernetes-preserve-unknown-fields": True}}}
    properties = {**schema.get("properties", {}), **whole["properties"]}
    open_schema = {**schema, "properties": properties}
    prune(open_schema, new)
    put_defaults(open_schema, new)
    body = {name: value for name, value in new.items() if name not in {"apiVersion", "kind", "metadata"}}
    before: Any = None
    if old is not None:
        before = {name: value for name, value in old.items() if name not in {"apiVersion", "kind", "metadata"}}
    plain = {**schema, "properties": {name: one for name, one in properties.items() if name not in whole["properties"]}}
    wrong = [one.lstrip(".") for one in mistakes(plain, body, before)]
    if wrong:
        group = collection.api_version.partition("/")[0]
        raise invalid(f"{collection.kind}.{group}", new["metadata"]["name"], wrong)


def admit_service(old: Json | None, new: Json, subresource: str) -> None:
    """The defaults and rules that a client of ours meets. Objects without a spec are made by tests that need none."""
    spec = new.get("spec")
    if not isinstance(spec, dict):
        return
    wrong = []
    ports = spec.get("ports") or []
    for number, port in enumerate(ports):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
        if not 1 <= port.get("port", 0) <= 65535:
            wrong.append(f"spec.ports[{number}].port: Invalid value: {port.get('port')}: must be between 1 and 65535")
        if len(ports) > 1 and not port.get("name"):
            wrong.append(f"spec.ports[{number}].name: Required value")
    if not ports and spec.get("clusterIP") != "None":
        wrong.append("spec.ports: Required value")
    names = [port.get("name") for port in ports if port.get("name")]
    if len(set(names)) < len(names):
        wrong.append("spec.ports: Duplicate value")
    before = (old or {}).get("spec") or {}
    if before.get("clusterIP") and spec.get("clusterIP", before["clusterIP"]) != before["clusterIP"]:
        wrong.append("spec.clusterIPs[0]: Invalid value: may not change once set")
    if wrong:
        raise invalid("Service", new["metadata"]["name"], wrong)
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if before.get("clusterIP"):
        spec.setdefault("clusterIP", before["clusterIP"])
    elif "clusterIP" not in spec and spec["type"] != "ExternalName":
        spec["clusterIP"] = f"10.96.{hash(new['metadata']['name']) % 250}.{len(names) + 1}"
    if spec.get("clusterIP"):
        spec["clusterIPs"] = [spec["clusterIP"]]


def admit_event(old: Json | None, new: Json, subresource: str) -> None:
    """What events.k8s.io/v1 requires of a new one, and what may change of one."""
    name = new["metadata"]["name"]
    wrong = []
    if old is not None:
        changed = [
            field for field in new.keys() | old.keys() if field not in {"series", "metadata", "kind", "apiVersion"}
        ]
        wrong += [
            f"{field}: Invalid value: field is immutable" for field in changed if old.get(field) != new.get(field)
        ]
    else:
        for field in ("eventTime", "reportingController", "reportingInstance", "action", "reason"):
            if not new.get(field):
                wrong.append(f"{field}: Required value")
        if new.get("type") not in {"Normal", "Warning"}:
            wrong.append('type: Invalid value: "": must be Normal or Warning')
        if len(new.get("note", "")) > NOTE_LENGTH_MAX:
            wrong.append(f"note: Invalid value: can have at most {NOTE_LENGTH_MAX} characters")
        namespace = (new.get("regarding") or {}).get("namespace", "")
        if namespace and namespace != new["metadata"].get("namespace", namespace):
            wrong.append("metadata.namespace: Invalid value: does not match regarding.namespace")
    series = new.get("series")
    if series is not None and (series.get("count", 0) < 2 or not series.get("lastObservedTime")):
        wrong.append("series: Invalid value: count must be at least 2, and lastObservedTime is required")
    if wrong:
        raise invalid("Event.events.k8s.io", name, sorted(wrong))
