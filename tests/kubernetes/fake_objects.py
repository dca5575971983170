"""What a Kubernetes API server keeps: objects, one history of events, and the rules of writing.

Faithful where a client can tell: resource versions grow by one per write over all resources; a write that changes
nothing makes no new version; `generation` grows with the spec only, of slices with all but annotations; UIDs are never
used twice; deletion waits for finalizers; the history can be compacted, after which what refers to it is 410 Expired.
Names, labels and annotations have their bounds. Who owns which field (managedFields) is kept of all that is written
with a manager's name: a write that is no apply takes over the fields that it changes. A status subresource has a life
of its own: writes of the object leave it, and its own writes leave the rest, where the collection `has_status`.
"""

from __future__ import annotations

import copy
import re
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from tests.kubernetes.fake_patching import (
    MANAGER_LENGTH_MAX,
    PLAIN,
    PatchError,
    Shape,
    apply_owned,
    json_patched,
    merge,
    taken_over,
)

Json = dict[str, Any]
Key = tuple[str, str]

WITH_GENERATION = {"revisions", "endpointslices", "deployments", "statefulsets"}
WITH_STATUS = {"deployments", "statefulsets", "pods"}
UNCONDITIONAL_UPDATE_REFUSED = {"leases"}  # their PUT must name a resourceVersion
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NAME_LENGTH_MAX = 253
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
LABEL_LENGTH_MAX = 63
ANNOTATIONS_BYTES_MAX = 256 << 10
IMMUTABLE_METADATA = ("name", "namespace", "uid", "creationTimestamp")


class RefusalError(Exception):
    """An answer that is a Status."""

    def __init__(self, code: int, reason: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    def status(self) -> Json:
        details = {} if self.retry_after_s is None else {"details": {"retryAfterSeconds": self.retry_after_s}}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
            **details,
        }


def expired(version: int, oldest: int) -> RefusalError:
    return RefusalError(410, "Expired", f"too old resource version: {version} ({oldest})")


class Event(msgspec.Struct):
    """One write: what the object was before and is after, None for was or is not there."""

    version: int
    before: Json | None
    after: Json | None


Admit = Callable[[Json | None, Json, str], None]  # before, after, subresource; raises RefusalError

SHAPES = {
    "services": Shape(
        {("metadata", "ownerReferences"): ("uid",), ("spec", "ports"): ("port", "protocol")},
        frozenset({("spec", "selector")}),
    ),
    "deployments": Shape(
        {("metadata", "ownerReferences"): ("uid",), ("status", "conditions"): ("type",)},
        frozenset({("spec", "selector")}),
    ),
    "statefulsets": Shape(
        {("metadata", "ownerReferences"): ("uid",), ("status", "conditions"): ("type",)},
        frozenset({("spec", "selector")}),
    ),
    "pods": Shape({("metadata", "ownerReferences"): ("uid",), ("status", "conditions"): ("type",)}),
}


class Collection:
    """The objects of one resource, by (namespace, name), and the events that made them."""

    def __init__(self, plural: str, kind: str, api_version: str) -> None:
        self.plural = plural
        self.kind = kind
        self.api_version = api_version
        self.objects: dict[Key, Json] = {}
        self.events: list[Event] = []
        self.compacted = 0  # events up to this version are forgotten
        self.has_generation = plural in WITH_GENERATION
        self.is_custom = False  # of a CustomResourceDefinition
        self.has_status = plural in WITH_STATUS  # a status subresource
        self.is_namespaced = plural not in {"namespaces", "customresourcedefinitions", "nodes"}
        self.shape: Shape = SHAPES.get(plural, PLAIN)
        self.admit: Admit = lambda old, new, subresource: None  # defaults and judges what is to be written


class FakeObjects:
    """`written` is called after each write."""

    def __init__(self, written: Callable[[Collection], None] = lambda collection: None) -> None:
        self.version = 100
        self._written = written
        self._collections: dict[str, Collection] = {}

    def collection(self, prefix: str, plural: str, kind: str) -> Collection:
        path = f"{prefix}/{plural}"
        if path not in self._collections:
            self._collections[path] = Collection(plural, kind, prefix.removeprefix("/apis/").removeprefix("/api/"))
        return self._collections[path]

    # --- reading ----------------------------------------------------------------------------------------------------

    def get(self, collection: Collection, key: Key) -> Json:
        found = collection.objects.get(key)
        if found is None:
            raise RefusalError(404, "NotFound", f'{collection.plural} "{key[1]}" not found')
        return found

    def at(self, collection: Collection, version: int) -> dict[Key, Json]:
        """The objects as they were at `version`."""
        if version < collection.compacted:
            raise expired(version, collection.compacted)
        objects = dict(collection.objects)
        for event in reversed(collection.events):
            if event.version <= version:
                break
            if event.before is not None:
                objects[key_of(event.before)] = event.before
            elif event.after is not None:
                del objects[key_of(event.after)]
        return objects

    def since(self, collection: Collection, version: int) -> list[Event]:
        if version < collection.compacted:
            raise expired(version, collection.compacted)
        return [event for event in collection.events if event.version > version]

    def compact(self, collection: Collection) -> None:
        """Forget the history."""
        collection.events.clear()
        collection.compacted = self.version

    # --- writing ----------------------------------------------------------------------------------------------------

    def create(self, collection: Collection, namespace: str, given: Json, manager: str = "") -> Json:
        """`manager`: of a client, which owns what it gives; empty: a test or a controller, which may give all."""
        new = copy.deepcopy(given)
        metadata = new.setdefault("metadata", {})
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise RefusalError(422, "Invalid", "name or generateName is required")
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        if metadata.get("namespace", namespace) != namespace:
            raise RefusalError(
                400, "BadRequest", "the namespace of the object does not match the namespace of the request"
            )
        check_metadata(collection, metadata)
        drop_empty(collection, new)
        if (namespace, metadata["name"]) in collection.objects:
            raise RefusalError(409, "AlreadyExists", f'{collection.plural} "{metadata["name"]}" already exists')
        if manager and collection.has_status:
            new.pop("status", None)
        collection.admit(None, new, "")
        if manager and not metadata.get("managedFields"):
            metadata["managedFields"] = taken_over({"metadata": {}}, new, manager, collection.shape)
        if collection.is_namespaced:
            metadata["namespace"] = namespace
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
        metadata.pop("resourceVersion", None)
        if collection.has_generation:
            metadata["generation"] = 1
        return self._write(collection, None, new)

    def update(
        self,
        collection: Collection,
        key: Key,
        given: Json,
        manager: str = "",
        subresource: str = "",
        whole: bool = True,
    ) -> Json:
        """PUT: the whole object; refused with 409 if it names an old resourceVersion or another UID.

        `manager` becomes the owner of what changes; empty: who owns what is as `given` says. `whole` False: object and
        status at once, as only tests and the fake controllers do.
        """
        old = self.get(collection, key)
        new = copy.deepcopy(given)
        metadata = new.setdefault("metadata", {})
        check_preconditions(collection, old, metadata)
        if collection.plural in UNCONDITIONAL_UPDATE_REFUSED and not metadata.get("resourceVersion"):
            raise RefusalError(422, "Invalid", "metadata.resourceVersion: must be specified for an update")
        if whole and collection.has_status:
            new = one_part(old, new, subresource)
            metadata = new["metadata"]
        check_metadata(collection, {**metadata, "name": key[1]})
        drop_empty(collection, new)
        collection.admit(old, new, subresource)
        if manager:
            metadata["managedFields"] = taken_over(old, new, manager, collection.shape, subresource)
        for name in (*IMMUTABLE_METADATA, "generation", "deletionTimestamp"):
            if name in old["metadata"]:
                metadata[name] = old["metadata"][name]
            else:
                metadata.pop(name, None)
        if collection.has_generation and content(old, collection) != content(new, collection):
            metadata["generation"] = old["metadata"]["generation"] + 1
        metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
        if same(old, new):
            return old
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            self._write(collection, old, None)
            return new
        return self._write(collection, old, new)

    def merge_patch(
        self,
        collection: Collection,
        key: Key,
        patch: Json,
        manager: str = "",
        subresource: str = "",
        whole: bool = False,
    ) -> Json:
        old = self.get(collection, key)
        check_patch(collection, old, patch.get("metadata", {}), subresource)
        patched = merge(old, patch)
        for name in ("resourceVersion", "uid"):
            patched["metadata"][name] = old["metadata"][name]
        return self.update(collection, key, patched, manager, subresource, whole)

    def terminate(self, collection: Collection, key: Key) -> Json:
        """A deletion that takes its time, as that of a pod: it is marked, and `delete` ends it."""
        new = copy.deepcopy(self.get(collection, key))
        new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z"
        return self._write(collection, self.get(collection, key), new)

    def json_patch(self, collection: Collection, key: Key, operations: Any, manager: str) -> Json:
        """All of the operations or none."""
        old = self.get(collection, key)
        if not isinstance(operations, list):
            raise RefusalError(400, "BadRequest", "json: cannot unmarshal object into Go value of type jsonpatch.Patch")
        try:
            patched = json_patched(old, operations)
        except PatchError as error:
            message = "the server rejected our request due to an error in our request"
            raise RefusalError(422, "Invalid", f"{message}: {error}") from error
        return self.update(collection, key, patched, manager)

    def apply(
        self, collection: Collection, key: Key, wanted: Json, manager: str, force: bool, subresource: str = ""
    ) -> tuple[Json, bool]:
        """The object, and whether it was created."""
        if not manager:
            raise RefusalError(422, "Invalid", "fieldManager: Required value: is required for apply patch")
        if len(manager) > MANAGER_LENGTH_MAX:
            message = f"fieldManager: Too long: may not be more than {MANAGER_LENGTH_MAX} bytes"
            raise RefusalError(422, "Invalid", message)
        name = wanted.get("metadata", {}).get("name", key[1])
        if name != key[1] or not wanted.get("apiVersion") or not wanted.get("kind"):
            raise RefusalError(
                400, "BadRequest", "the name, apiVersion or kind of the object does not match the request"
            )
        old = collection.objects.get(key)
        if old is not None:
            check_patch(collection, old, wanted["metadata"], subresource)
        elif subresource:
            raise RefusalError(404, "NotFound", f'{collection.plural} "{key[1]}" not found')
        elif wanted["metadata"].get("uid"):
            message = "uid mismatch: the provided object specified uid {}, and no existing object was found"
            raise RefusalError(409, "Conflict", message.format(wanted["metadata"]["uid"]))
        if wanted["metadata"].get("managedFields"):
            raise RefusalError(400, "BadRequest", "metadata.managedFields must be nil")
        if collection.has_status:
            wanted = applied_part(wanted, subresource)
        applied, conflicts = apply_owned(old or {}, wanted, manager, force, collection.shape, subresource)
        if conflicts:
            raise apply_conflict(collection, conflicts)
        if old is None:
            return self.create(collection, key[0], applied), True
        return self.update(collection, key, applied, "", subresource), False

    def delete(self, collection: Collection, key: Key, uid: str = "", version: str = "") -> Json:
        old = self.get(collection, key)
        if uid and uid != old["metadata"]["uid"]:
            raise RefusalError(409, "Conflict", "Precondition failed: UID in precondition does not match")
        if version and version != old["metadata"]["resourceVersion"]:
            raise RefusalError(409, "Conflict", "Precondition failed: ResourceVersion in precondition does not match")
        if not old["metadata"].get("finalizers"):
            return self._write(collection, old, None)
        if old["metadata"].get("deletionTimestamp"):
            return old
        new = copy.deepcopy(old)
        new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z"
        return self._write(collection, old, new)

    def _write(self, collection: Collection, before: Json | None, after: Json | None) -> Json:
        self.version += 1
        key = key_of(after or before or {})
        if after is None:
            assert before is not None
            collection.objects.pop(key)
        else:
            after["metadata"]["resourceVersion"] = str(self.version)
            collection.objects[key] = after
        collection.events.append(Event(self.version, before, after))
        self._written(collection)
        return after or before or {}


def key_of(thing: Json) -> Key:
    return (thing["metadata"].get("namespace", ""), thing["metadata"]["name"])


def content(thing: Json, collection: Collection) -> Json:
    """Whatever `generation` counts the changes of. What has no spec (a slice) has its labels counted too."""
    if "spec" in thing and not collection.is_custom:
        return {"spec": thing["spec"]}
    counted = {name: value for name, value in thing.items() if name not in {"metadata", "status", "apiVersion", "kind"}}
    return counted if collection.is_custom else {**counted, "labels": thing["metadata"].get("labels") or {}}


def one_part(old: Json, new: Json, subresource: str) -> Json:
    """What a write of the object, or of its status, may change; of the rest it is as it was."""
    if subresource == "status":
        status = {"status": new["status"]} if "status" in new else {}
        rest = {name: value for name, value in old.items() if name not in {"status", "metadata"}}
        owners = new["metadata"].get("managedFields")
        metadata = {**old["metadata"], **({"managedFields": owners} if owners else {})}
        return {**rest, "metadata": copy.deepcopy(metadata), **status}
    without = {name: value for name, value in new.items() if name != "status"}
    return {**without, **({"status": old["status"]} if "status" in old else {})}


def applied_part(wanted: Json, subresource: str) -> Json:
    """What an apply of the object, or of its status, owns."""
    if subresource == "status":
        name = {"name": wanted["metadata"].get("name")} if "name" in wanted["metadata"] else {}
        kept = {field: value for field, value in wanted.items() if field in {"apiVersion", "kind", "status"}}
        return {**kept, "metadata": name}
    return {name: value for name, value in wanted.items() if name != "status"}


def apply_conflict(collection: Collection, conflicts: dict[str, set[str]]) -> RefusalError:
    """In the API's words, which name the managers."""
    count = sum(len(fields) for fields in conflicts.values())
    words = [
        f'conflict with "{manager}" using {collection.api_version}: {field}'
        for manager, fields in sorted(conflicts.items())
        for field in sorted(fields)
    ]
    if count == 1:
        return RefusalError(409, "Conflict", f"Apply failed with 1 conflict: {words[0]}")
    listed = "\n".join(
        f'conflicts with "{manager}" using {collection.api_version}:\n'
        + "\n".join(f"- {field}" for field in sorted(fields))
        for manager, fields in sorted(conflicts.items())
    )
    return RefusalError(409, "Conflict", f"Apply failed with {count} conflicts: {listed}")


def same(old: Json, new: Json) -> bool:
    """Whether a write changes nothing; who owns what is no content of its own, but a change of it is a change."""
    return {**old, "apiVersion": 0, "kind": 0} == {**new, "apiVersion": 0, "kind": 0}


def check_preconditions(collection: Collection, old: Json, given: Json) -> None:
    version = given.get("resourceVersion")
    uid = given.get("uid")
    if version and version != old["metadata"]["resourceVersion"]:
        message = f'Operation cannot be fulfilled on {collection.plural} "{old["metadata"]["name"]}": '
        raise RefusalError(
            409, "Conflict", message + "the object has been modified; apply your changes to the latest version"
        )
    if uid and uid != old["metadata"]["uid"]:
        raise RefusalError(409, "Conflict", "Precondition failed: UID in object meta does not match")


def check_patch(collection: Collection, old: Json, given: Json, subresource: str) -> None:
    """A patch with another UID would change it; of the status of a custom resource the UID is not looked at."""
    check_preconditions(collection, old, {"resourceVersion": given.get("resourceVersion")})
    uid, is_status = given.get("uid"), subresource == "status" and collection.is_custom
    if not uid or uid == old["metadata"]["uid"] or is_status:
        return
    if subresource == "scale":
        raise RefusalError(409, "Conflict", "Precondition failed: UID in precondition does not match")
    message = f'metadata.uid: Invalid value: "{uid}": field is immutable'
    raise RefusalError(422, "Invalid", f'{collection.kind} "{old["metadata"]["name"]}" is invalid: {message}')


def check_metadata(collection: Collection, metadata: Json) -> None:
    """422 where a name, a label or the annotations are beyond what the API takes."""
    name = metadata["name"]
    if len(name) > NAME_LENGTH_MAX or not NAME.fullmatch(name):
        raise RefusalError(
            422, "Invalid", f'{collection.plural} "{name[:300]}" is invalid: metadata.name: Invalid value'
        )
    for label, value in (metadata.get("labels") or {}).items():
        if len(value) > LABEL_LENGTH_MAX or not LABEL_VALUE.fullmatch(value):
            raise RefusalError(422, "Invalid", f"metadata.labels: Invalid value of {label}: {value[:300]!r}")
    annotations = metadata.get("annotations") or {}
    if sum(len(name) + len(value) for name, value in annotations.items()) > ANNOTATIONS_BYTES_MAX:
        raise RefusalError(422, "Invalid", f"metadata.annotations: Too long: at most {ANNOTATIONS_BYTES_MAX} bytes")


def drop_empty(collection: Collection, thing: Json) -> None:
    """A map without entries is not there, as Go writes it (omitempty): nothing can be added to it by a JSON Patch."""
    if collection.plural == "configmaps" and thing.get("data") == {}:
        del thing["data"]
