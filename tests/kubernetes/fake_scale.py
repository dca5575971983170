"""The scale subresource: a Scale (autoscaling/v1) in the place of whatever has replicas."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.fake_objects import Collection, FakeObjects, Json, Key, RefusalError

Paths = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


def scale_of(thing: Json, paths: Paths, is_custom: bool) -> Json:
    """Its Scale. Of a custom resource the replicas must be there, and its selector is what the definition names."""
    if is_custom and _at(thing, paths[0]) is None:
        said = f'the spec replicas field ".{".".join(paths[0])}" does not exist'
        raise RefusalError(500, "InternalError", f"Internal error occurred: {said}")
    metadata = thing["metadata"]
    status: Json = {"replicas": _at(thing, paths[1]) or 0}
    selector = _at(thing, paths[2]) if is_custom and any(paths[2]) else None
    labels = None if is_custom else _at(thing, ("spec", "selector", "matchLabels"))
    if isinstance(labels, dict):
        selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    if selector:
        status["selector"] = selector
    replicas = _at(thing, paths[0]) or 0
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {"replicas": replicas} if replicas else {},  # Go leaves out a zero
        "status": status,
    }


def scaled(
    objects: FakeObjects,
    collection: Collection,
    key: Key,
    paths: Paths,
    given: Json,
    query: dict[str, str],
    content_type: str,
) -> Json:
    """The object after a write of its Scale. An update gives the whole Scale, in which absent replicas are zero."""
    if content_type == "application/apply-patch+yaml" and collection.is_custom:
        raise RefusalError(500, "", "request to convert CR to an invalid group/version: autoscaling/v1")  # always
    replicas = _at(given, ("spec", "replicas"))
    if replicas is None and content_type == "application/json":
        replicas = 0
    if replicas is None:
        return objects.get(collection, key)
    if not isinstance(replicas, int) or replicas < 0:
        message = f"spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0"
        raise RefusalError(422, "Invalid", f'Scale "{key[1]}" is invalid: {message}')
    given_metadata = given.get("metadata") or {}
    preconditions = {name: given_metadata[name] for name in ("resourceVersion", "uid") if given_metadata.get(name)}
    if collection.is_custom:
        preconditions.pop("uid", None)
    change: Json = {"metadata": preconditions}
    place = change
    for name in paths[0][:-1]:
        place = place.setdefault(name, {})
    place[paths[0][-1]] = replicas
    manager = query.get("fieldManager", "")
    if content_type == "application/apply-patch+yaml":
        if given.get("kind") != "Scale":
            raise RefusalError(400, "BadRequest", "the kind of the object does not match the request: Scale")
        wanted = {"apiVersion": collection.api_version, "kind": collection.kind, **change}
        wanted["metadata"] = {**preconditions, "name": key[1]}
        force = query.get("force") == "true"
        thing, _ = objects.apply(collection, key, wanted, manager, force, "scale")
        return thing
    return objects.merge_patch(collection, key, change, manager or "unknown", "scale", whole=True)


def _at(thing: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        thing = thing.get(name) if isinstance(thing, dict) else None
    return thing
