"""A Kubernetes API server for tests: the protocol of list, watch and write over a real socket, and faults on demand.

What a client can tell from a real one is a mistake; `test_conformance.py` runs against both. Of what objects mean it
knows what `fake_kinds.py` says: custom resources by their schemas, Services and events by a few rules, no others.
Nothing happens by itself: `fake_controllers.py` is the controller manager and the nodes.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import ssl
import time
from collections.abc import Callable
from enum import Enum

from aiohttp import web

from tests.kubernetes.fake_kinds import FakeKinds, Kind
from tests.kubernetes.fake_objects import (
    Collection,
    Event,
    FakeObjects,
    Json,
    Key,
    RefusalError,
    expired,
    key_of,
)
from tests.kubernetes.fake_rights import check_rights
from tests.kubernetes.fake_scale import scale_of, scaled
from tests.kubernetes.fake_selectors import fields_match, labels_match

COMPRESSED_FROM_BYTES = (
    128 * 1024
)  # of an answer to a GET: k8s.io/apiserver, endpoints/handlers/responsewriters/writers.go
ONLY_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
WRITING = frozenset({"create", "update", "patch", "delete"})  # verbs


class Fault(Enum):
    """What breaks on the way of one request that is no watch; the client sees no answer."""

    LOST_REQUEST = "the connection is cut before anything is done"
    LOST_ANSWER = "it is done, then the connection is cut"
    NO_ANSWER = "it is done, and nothing is ever answered"


class Target:
    """What a path means."""

    def __init__(self, path: str) -> None:
        parts = path.strip("/").split("/")
        depth = 2 if parts[0] == "api" else 3
        self.prefix = "/" + "/".join(parts[:depth])
        rest = parts[depth:]
        self.namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in {"status", "finalize"}:
            self.namespace = rest[1]
            rest = rest[2:]
        self.plural = rest[0] if rest else ""
        self.name = rest[1] if len(rest) > 1 else ""
        self.subresource = rest[2] if len(rest) > 2 else ""
        self.group = self.prefix.split("/")[2] if self.prefix.startswith("/apis/") else ""

    @property
    def key(self) -> Key:
        return (self.namespace, self.name)


class Watcher:
    """One running watch."""

    def __init__(self, collection: Collection, namespace: str, query: dict[str, str]) -> None:
        self.collection = collection
        self.namespace = namespace
        self.labels = query.get("labelSelector", "")
        self.fields = query.get("fieldSelector", "")
        self.bookmarks = query.get("allowWatchBookmarks") == "true"
        self.lines: list[bytes] = []
        self.wake = asyncio.Event()
        self.ended = False  # as when its time is over

    def selects(self, thing: Json | None) -> bool:
        return thing is not None and selects(thing, self.namespace, self.labels, self.fields)

    def tell(self, event: Event) -> None:
        """An object that comes to be selected is ADDED, one that is selected no more DELETED, whatever was written."""
        before, after = self.selects(event.before), self.selects(event.after)
        if after:
            assert event.after is not None
            self.send("MODIFIED" if before else "ADDED", event.after)
        elif before:
            assert event.before is not None
            last = {**event.before, "metadata": {**event.before["metadata"], "resourceVersion": str(event.version)}}
            self.send("DELETED", last)

    def bookmark(self, version: int) -> None:
        if self.bookmarks:
            self.send("BOOKMARK", {"metadata": {"resourceVersion": str(version), "creationTimestamp": None}})

    def send(self, kind: str, thing: Json) -> None:
        if kind != "ERROR":
            thing = {"kind": self.collection.kind, "apiVersion": self.collection.api_version, **thing}
        self.lines.append(json.dumps({"type": kind, "object": thing}, separators=(",", ":")).encode() + b"\n")
        self.wake.set()


def selects(thing: Json, namespace: str, labels: str, fields: str) -> bool:
    if namespace and thing["metadata"].get("namespace") != namespace:
        return False
    return labels_match(labels, thing["metadata"].get("labels") or {}) and fields_match(fields, thing)


class FakeApiServer:
    """`requests`: (verb, path, query) of all that came. The faults are plain attributes; set them at any time."""

    def __init__(self) -> None:
        self.objects = FakeObjects(self._written)
        self.kinds = FakeKinds(self.objects)
        self.rules: list[Json] | None = None  # what everybody may do, as the rules of a role; None: everything
        self.listeners: list[Callable[[Collection, Event], None]] = []  # called after each write: controllers
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.requests_kept = True  # False: of a server that lives long
        self.written_by: list[tuple[float, str, str, str]] = []  # of each write: when, the bearer, the verb, the path
        self.watchers: list[Watcher] = []
        self.token = ""  # what clients must bear
        self.refusals: list[tuple[str, RefusalError]] = []  # (verb, answer) for the next requests of that verb
        self.refused: Callable[[str, str], RefusalError | None] = lambda verb, path: None  # for as long as it stands
        self.faults: list[tuple[str, Fault]] = []  # (verb, what breaks) for the next requests of that verb
        self.gone_watches = 0  # so many watches are told 410 in an ERROR event
        self.gone_by_status = False  # … or by the status of the answer
        self.silent = False  # watches stay open and say nothing
        self.dropped: Callable[[Event], bool] = lambda event: False  # events that no watch hears of
        self.cut_next_line = False  # the next event breaks in its middle, and its connection with it
        self.tls: ssl.SSLContext | None = None
        self.host = "127.0.0.1"
        self.port = 0
        self._runner: web.AppRunner | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://{self.host}:{self.port}"

    async def start(self) -> None:
        """Serve; after a `stop` on the same port and with the same objects."""
        application = web.Application(client_max_size=64 << 20)
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=0.1,
            handler_cancellation=True,  # a client that leaves ends its watch
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, reuse_address=True, ssl_context=self.tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Refuse connections and cut those that are there."""
        for watcher in self.watchers:
            watcher.wake.set()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            assert runner.server is not None
            for connection in runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()

    # --- what tests do to it ----------------------------------------------------------------------------------------

    def collection(self, plural: str) -> Collection:
        return self.kinds.by_plural(plural)

    def create(self, plural: str, thing: Json, namespace: str = "default") -> Json:
        return self.objects.create(self.collection(plural), namespace, thing)

    def update(self, plural: str, name: str, change: Json, namespace: str = "default") -> Json:
        """By merge patch."""
        return self.objects.merge_patch(self.collection(plural), (namespace, name), change)

    def delete(self, plural: str, name: str, namespace: str = "default") -> Json:
        return self.objects.delete(self.collection(plural), (namespace, name))

    def compact(self, plural: str) -> None:
        self.objects.compact(self.collection(plural))

    def bookmark(self) -> None:
        for watcher in self.watchers:
            watcher.bookmark(self.objects.version)

    def verbs(self) -> list[str]:
        return [verb for verb, _, _ in self.requests]

    @property
    def writes(self) -> int:
        """How many requests came that write, whatever became of them."""
        return sum(verb in WRITING for verb in self.verbs())

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        target = Target(request.path)
        query = dict(request.query)
        verb = verb_of(request.method, target, query)
        if self.requests_kept:
            self.requests.append((verb, request.path, query))
            if verb in WRITING:
                bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
                self.written_by.append((time.monotonic(), bearer, verb, request.path))
        fault = self._fault(verb)
        if fault is Fault.LOST_REQUEST:
            return cut(request)
        answer = await self._answered(request, verb, target, query)
        if fault is Fault.NO_ANSWER:
            await asyncio.Event().wait()  # until the client leaves
        return answer if fault is None else cut(request)

    async def _answered(
        self, request: web.Request, verb: str, target: Target, query: dict[str, str]
    ) -> web.StreamResponse:
        try:
            self._refuse(request, verb)
            if not target.plural and request.method == "GET":
                found = self.kinds.discovery(target.prefix)
                if found is not None:
                    return web.json_response(found)
            kind = self.kinds.get(target.prefix, target.plural)
            if kind is None or not self._has(kind, target.subresource):
                return web.Response(status=404, text="404 page not found\n")
            self._authorize(verb, target)
            collection = self.kinds.collection(target.prefix, target.plural)
            if verb == "watch":
                return await self._watch(request, collection, target, query)
            body = await request.read()
            code, answer = self._do(verb, collection, target, query, body, request.content_type)
        except RefusalError as refusal:
            code, answer = refusal.code, refusal.status()
            headers = {} if refusal.retry_after_s is None else {"Retry-After": str(refusal.retry_after_s)}
            return web.json_response(answer, status=code, headers=headers)
        if verb == "list" and ONLY_METADATA in request.headers.get("Accept", ""):
            answer = only_metadata(answer)
        return self._written_as(request, code, answer)

    def _written_as(self, request: web.Request, code: int, answer: Json) -> web.Response:
        body = json.dumps(answer, separators=(",", ":")).encode()
        headers = {}
        takes_gzip = "gzip" in request.headers.get("Accept-Encoding", "")
        if request.method == "GET" and takes_gzip and len(body) > COMPRESSED_FROM_BYTES:
            body = gzip.compress(body, 1)
            headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return web.Response(body=body, status=code, headers=headers, content_type="application/json")

    def _fault(self, verb: str) -> Fault | None:
        for number, (broken, fault) in enumerate(self.faults):
            if broken in {verb, "*"}:
                del self.faults[number]
                return fault
        return None

    def _has(self, kind: Kind, subresource: str) -> bool:
        there = {"": True, "status": kind.has_status, "scale": kind.scale is not None}
        return there.get(subresource, False)

    def _authorize(self, verb: str, target: Target) -> None:
        if self.rules is not None:
            resource = f"{target.plural}/{target.subresource}" if target.subresource else target.plural
            check_rights(self.rules, "test", verb, target.group, resource, target.name, target.namespace)

    def _refuse(self, request: web.Request, verb: str) -> None:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise RefusalError(401, "Unauthorized", "Unauthorized")
        for number, (refused_verb, refusal) in enumerate(self.refusals):
            if refused_verb in {verb, "*"}:
                del self.refusals[number]
                raise refusal
        standing = self.refused(verb, request.path)
        if standing is not None:
            raise standing

    def _do(
        self, verb: str, collection: Collection, target: Target, query: dict[str, str], body: bytes, content_type: str
    ) -> tuple[int, Json]:
        given = json.loads(body) if body else {}
        manager = query.get("fieldManager", "") or "unknown"
        if target.subresource == "scale":
            return self._scale(verb, collection, target, given, query, content_type)
        if verb == "list":
            return 200, self._list(collection, target, query)
        if verb == "get":
            return 200, self._whole(collection, self.objects.get(collection, target.key))
        if (
            verb in {"create", "update"}
            and collection.is_custom
            and not (given.get("kind") and given.get("apiVersion"))
        ):
            raise RefusalError(400, "BadRequest", f"Object 'Kind' is missing: must be of type {collection.kind}")
        if verb == "create":
            return 201, self._whole(collection, self.objects.create(collection, target.namespace, given, manager))
        if verb == "update":
            thing = self.objects.update(collection, target.key, given, manager, target.subresource)
            return 200, self._whole(collection, thing)
        if verb == "delete":
            conditions = given.get("preconditions") or {}
            uid, version = conditions.get("uid", ""), conditions.get("resourceVersion", "")
            return 200, self._whole(collection, self.objects.delete(collection, target.key, uid, version))
        if content_type == "application/json-patch+json":
            return 200, self._whole(collection, self.objects.json_patch(collection, target.key, given, manager))
        if content_type == "application/merge-patch+json":
            thing = self.objects.merge_patch(collection, target.key, given, manager, target.subresource, whole=True)
            return 200, self._whole(collection, thing)
        if content_type == "application/apply-patch+yaml":
            return self._apply(collection, target, given, query)
        raise RefusalError(
            415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type}"
        )

    def _apply(self, collection: Collection, target: Target, given: Json, query: dict[str, str]) -> tuple[int, Json]:
        manager, force = query.get("fieldManager", ""), query.get("force") == "true"
        if target.key not in collection.objects and not target.subresource:
            self._authorize("create", target)  # an apply that creates needs both
        thing, created = self.objects.apply(collection, target.key, given, manager, force, target.subresource)
        return 201 if created else 200, self._whole(collection, thing)

    def _whole(self, collection: Collection, thing: Json) -> Json:
        return {"kind": collection.kind, "apiVersion": collection.api_version, **thing}

    def _scale(
        self, verb: str, collection: Collection, target: Target, given: Json, query: dict[str, str], content_type: str
    ) -> tuple[int, Json]:
        """autoscaling/v1 Scale: the replicas of something, and nothing else of it."""
        kind = self.kinds.get(target.prefix, target.plural)
        assert kind is not None
        assert kind.scale is not None
        thing = self.objects.get(collection, target.key)
        scale_of(thing, kind.scale, collection.is_custom)  # what has none cannot get one here
        if verb in {"patch", "update"}:
            thing = scaled(self.objects, collection, target.key, kind.scale, given, query, content_type)
        return 200, scale_of(thing, kind.scale, collection.is_custom)

    # --- list -------------------------------------------------------------------------------------------------------

    def _list(self, collection: Collection, target: Target, query: dict[str, str]) -> Json:
        version, after = self._list_start(query)
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        try:
            selects({"metadata": {"name": ""}}, "", labels, fields)  # a selector is judged, objects or none
            found = [
                thing
                for key, thing in sorted(self.objects.at(collection, version).items())
                if (after is None or key > after) and selects(thing, target.namespace, labels, fields)
            ]
        except ValueError as error:
            raise RefusalError(400, "BadRequest", str(error)) from error
        metadata: Json = {"resourceVersion": str(version)}
        limit = int(query.get("limit", "0"))
        if limit and len(found) > limit:
            if not labels and not fields:
                metadata["remainingItemCount"] = len(found) - limit
            found = found[:limit]
            token = json.dumps({"v": version, "after": key_of(found[-1])})
            metadata["continue"] = base64.urlsafe_b64encode(token.encode()).decode()
        items = [
            {name: value for name, value in thing.items() if name not in {"kind", "apiVersion"}} for thing in found
        ]
        return {
            "kind": f"{collection.kind}List",
            "apiVersion": collection.api_version,
            "metadata": metadata,
            "items": items or None if self._writes_null(collection) else items,
        }

    def _writes_null(self, collection: Collection) -> bool:
        return collection.plural == "endpointslices"  # a Go list that was never made

    def _list_start(self, query: dict[str, str]) -> tuple[int, Key | None]:
        if query.get("continue"):
            if query.get("resourceVersion"):
                raise RefusalError(400, "BadRequest", "specifying resource version is not allowed when using continue")
            try:
                token = json.loads(base64.urlsafe_b64decode(query["continue"]))
                return token["v"], tuple(token["after"])
            except (ValueError, KeyError) as error:
                raise RefusalError(400, "BadRequest", "continue key is not valid") from error
        wanted = self._version_of(query)
        if wanted > self.objects.version:
            message = f"Too large resource version: {wanted}, current: {self.objects.version}"
            raise RefusalError(504, "Timeout", message, retry_after_s=1)
        return self.objects.version, None

    def _version_of(self, query: dict[str, str]) -> int:
        text = query.get("resourceVersion", "") or "0"
        if not text.isdigit():
            raise RefusalError(400, "BadRequest", f'resourceVersion: Invalid value: "{text}"')
        return int(text)

    # --- watch ------------------------------------------------------------------------------------------------------

    async def _watch(
        self, request: web.Request, collection: Collection, target: Target, query: dict[str, str]
    ) -> web.StreamResponse:
        watcher = Watcher(collection, target.namespace, query)
        if target.name:
            watcher.fields = f"metadata.name={target.name}"
        try:
            watcher.selects({"metadata": {"name": ""}})
        except ValueError as error:
            raise RefusalError(400, "BadRequest", str(error)) from error
        ended = self._begin(watcher, self._version_of(query))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.watchers.append(watcher)
        seconds = float(query.get("timeoutSeconds", "0")) or 1800.0
        try:
            async with asyncio.timeout(None if ended else seconds):
                while await self._send_lines(request, response, watcher) and not ended:
                    await watcher.wake.wait()
                    watcher.wake.clear()
        except TimeoutError:
            pass  # as asked for
        finally:
            self.watchers.remove(watcher)
        return response

    def _begin(self, watcher: Watcher, version: int) -> bool:
        """What the watch says first; True: it ends with that."""
        if self.gone_watches > 0:
            self.gone_watches -= 1
            return self._too_old(watcher, expired(version, self.objects.version))
        if version == 0:
            for thing in watcher.collection.objects.values():
                if watcher.selects(thing):
                    watcher.send("ADDED", thing)
            return False
        try:
            for event in self.objects.since(watcher.collection, version):
                watcher.tell(event)
        except RefusalError as refusal:
            return self._too_old(watcher, refusal)
        return False

    def _too_old(self, watcher: Watcher, refusal: RefusalError) -> bool:
        if self.gone_by_status:
            raise refusal
        watcher.send("ERROR", refusal.status())
        return True

    async def _send_lines(self, request: web.Request, response: web.StreamResponse, watcher: Watcher) -> bool:
        """False: the watch is over."""
        if self._runner is None or watcher.ended:
            return False
        lines, watcher.lines = watcher.lines, []
        if self.silent:
            return True
        for line in lines:
            if self.cut_next_line:
                self.cut_next_line = False
                await response.write(line[: len(line) // 2])
                assert request.transport is not None
                request.transport.close()  # after what was written
                return False
            try:
                await response.write(line)
            except (ConnectionError, RuntimeError):
                return False
        return True

    def _written(self, collection: Collection) -> None:
        event = collection.events[-1]
        for listener in self.listeners:
            listener(collection, event)
        if self.dropped(event):
            return
        for watcher in self.watchers:
            if watcher.collection is collection:
                watcher.tell(event)


def only_metadata(found: Json) -> Json:
    """A list of metadata: what a client gets that takes it."""
    kind = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    items = [{**kind, "metadata": thing["metadata"]} for thing in found["items"] or []]
    return {**kind, "kind": "PartialObjectMetadataList", "metadata": found["metadata"], "items": items or None}


def cut(request: web.Request) -> web.Response:
    """The connection ends at once; what is returned is never sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def verb_of(method: str, target: Target, query: dict[str, str]) -> str:
    if method == "GET":
        if query.get("watch") in {"true", "1"}:
            return "watch"
        return "get" if target.name else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method, method.lower())
