"""Calls to the Kubernetes API: kubernetes-asyncio's configuration and credentials, aiohttp's transport, raw bytes.

Rules
  1. Every call is bounded in time (credentials, queueing, and body included) and in bytes. A watch is bounded until its
     head has arrived; from then on its reader must supervise it.
  2. Lists, writes and watches have budgets, and writes have connections of their own: a write that starts a revision
     waits neither for a list nor for a free connection.
  3. Exceptions of the library and of aiohttp are converted to KubeError. After a 401 the credentials are read again,
     once.
  4. Each call reports to `outage` whether the API answers.
  5. `requests_total` counts by Kubernetes verb (get, list, watch, create, update, patch, delete) and by status code, or
     the kind of failure. Writes of all verbs share one budget and one set of connections.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from activator.kubernetes.credentials import Credentials
from activator.kubernetes.decoding import refusal_of_answer
from activator.kubernetes.errors import (
    UNAUTHORIZED,
    CallTimeoutError,
    KubeError,
    RefusedError,
    TooLargeError,
    UnreachableError,
    UnreadableError,
)
from activator.kubernetes.outage import Outage
from activator.kubernetes.session import KubeSession
from activator.kubernetes.watch_stream import WatchStream
from activator.runtime.tasks import pause
from activator.runtime.units import MIB

KUBE_CALL_TIMEOUT_S: Final = 30.0  # for one call, credentials and body included; for a watch until its head has arrived
KUBE_BODY_BYTES_MAX: Final = 64 * MIB  # one response, for example one page of a list
KUBE_LISTS_AT_ONCE_MAX: Final = 4  # so that lists after an outage do not crowd out other calls
KUBE_WRITES_AT_ONCE_MAX: Final = 16  # a separate budget, so that the start of a revision does not wait for a list
KUBE_LINE_BYTES_MAX: Final = 8 * MIB  # one watch event; etcd accepts objects of 1.5 MiB
KUBE_INFLATED_PER_TURN_MAX: Final = MIB  # inflated bytes of a response before the loop gets a turn; take 3 ms

SERVER_ERROR: Final = 500

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"  # JSON is YAML
JSON_PATCH: Final = "application/json-patch+json"
WHOLE_OBJECT: Final = "application/json"

WHOLE_OBJECTS: Final = "application/json"  # Accept: the objects
# Accept: only the objects' metadata, from a server that supports it.
ONLY_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

WRITES: Final = frozenset({"create", "update", "patch", "delete"})  # Kubernetes' verbs, as in RBAC

Query = Mapping[str, str]
_NO_BUDGET: Final = nullcontext()
_GZIP: Final = "gzip"
_IDENTITY: Final = "identity"  # for a watch, so that each event can be read when it arrives
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS


class _Call(NamedTuple):
    """One request. `verb`: that of Kubernetes, as in RBAC; `accept`: the value of the header field Accept."""

    verb: str
    method: str
    path: str
    query: Query
    body: Any = None
    content_type: str = ""
    accept: str = WHOLE_OBJECTS


class KubeClient:
    """The client of one cluster's API. `user_agent` appears in the API's audit log."""

    def __init__(
        self,
        credentials: Credentials,
        user_agent: str,
        call_timeout_s: float = KUBE_CALL_TIMEOUT_S,
        line_bytes_max: int = KUBE_LINE_BYTES_MAX,
        body_bytes_max: int = KUBE_BODY_BYTES_MAX,
    ) -> None:
        self._credentials = credentials
        self._user_agent = user_agent
        self._call_timeout_s = call_timeout_s
        self._line_bytes_max = line_bytes_max
        self._body_bytes_max = body_bytes_max
        self._sessions: dict[str, KubeSession] = {}  # "reads" and "writes", each with its own connections
        self._sessions_lock = asyncio.Lock()
        writes = asyncio.Semaphore(KUBE_WRITES_AT_ONCE_MAX)
        self._budgets = {"list": asyncio.Semaphore(KUBE_LISTS_AT_ONCE_MAX), **dict.fromkeys(WRITES, writes)}
        self.requests_total: Counter[tuple[str, str]] = Counter()
        self.outage = Outage(credentials.now)

    async def get(self, path: str, query: Query = {}) -> bytes:  # noqa: B006 - read only
        """Return one object; raise KubeError on failure."""
        return await self._call(_Call("get", "GET", path, query))

    async def list_page(self, path: str, query: Query, accept: str = WHOLE_OBJECTS) -> bytes:
        """Return one page of a list; raise KubeError on failure."""
        return await self._call(_Call("list", "GET", path, query, accept=accept))

    async def merge_patch(self, path: str, patch: Mapping[str, Any], field_manager: str) -> bytes:
        """Patch by RFC 7386; return the new object. Raise KubeError (409 if `patch` names an old resourceVersion)."""
        query = {"fieldManager": field_manager}
        return await self._call(_Call("patch", "PATCH", path, query, dict(patch), MERGE_PATCH))

    async def apply(self, path: str, wanted: Mapping[str, Any], field_manager: str, force: bool = False) -> bytes:
        """Apply on the server side; `wanted` has the fields that `field_manager` owns, with apiVersion, kind and name.

        Raise KubeError (409 if another manager owns one of the fields and `force` is not set).
        """
        query = {"fieldManager": field_manager, "force": "true" if force else "false"}
        return await self._call(_Call("patch", "PATCH", path, query, dict(wanted), APPLY_PATCH))

    async def create(self, collection: str, manifest: Mapping[str, Any], field_manager: str) -> bytes:
        """Create an object; return it as created. Raise KubeError (409 AlreadyExists if its name is taken)."""
        return await self._call(
            _Call("create", "POST", collection, {"fieldManager": field_manager}, dict(manifest), WHOLE_OBJECT)
        )

    async def update(self, path: str, manifest: Mapping[str, Any], field_manager: str) -> bytes:
        """Replace an object; return the new one. Raise KubeError (409 Conflict if `manifest` has an old version)."""
        return await self._call(
            _Call("update", "PUT", path, {"fieldManager": field_manager}, dict(manifest), WHOLE_OBJECT)
        )

    async def delete(self, path: str, uid: str, resource_version: str = "") -> bytes:
        """Delete exactly this object, in this version if one is given.

        Raise KubeError (404 if there is none of this name, 409 Conflict if it is another one or has changed).
        """
        preconditions = {"uid": uid, **({"resourceVersion": resource_version} if resource_version else {})}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        return await self._call(_Call("delete", "DELETE", path, {}, body, WHOLE_OBJECT))

    async def json_patch(self, path: str, operations: Sequence[Mapping[str, Any]], field_manager: str) -> bytes:
        """Patch by RFC 6902, all operations or none; return the new object.

        Raise KubeError (422 Invalid if one of the operations, a `test` for example, fails).
        """
        body = [dict(operation) for operation in operations]
        return await self._call(_Call("patch", "PATCH", path, {"fieldManager": field_manager}, body, JSON_PATCH))

    async def watch(self, path: str, query: Query) -> WatchStream:
        """Return a running watch, which the caller must close; raise KubeError on failure."""
        async with self._bounded("watch"):
            response = await self._accepted(_Call("watch", "GET", path, {**query, "watch": "true"}))
            if _encoding(response) != _IDENTITY:
                response.close()
                raise UnreadableError(f"a watch in the encoding {_encoding(response)!r}, which was not asked for")
        return WatchStream(response, self._line_bytes_max)

    async def close(self) -> None:
        """Close all connections; running calls fail."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    async def _call(self, call: _Call) -> bytes:
        """Make the call within its time and its budget; return the whole body. Raise KubeError on failure."""
        async with self._bounded(call.verb), self._budgets.get(call.verb, _NO_BUDGET):
            response = await self._accepted(call)
            try:
                return await self._read(response)
            finally:
                response.release()

    @asynccontextmanager
    async def _bounded(self, verb: str) -> AsyncIterator[None]:
        """Bound the call in time, record whether the API answers, and convert exceptions to KubeError."""
        try:
            async with asyncio.timeout(self._call_timeout_s):
                yield
            self.outage.answered()
        except TimeoutError as error:
            self.outage.failed()
            self.requests_total[verb, CallTimeoutError.kind] += 1
            raise CallTimeoutError(f"no answer within {self._call_timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: closed during the call
            self.outage.failed()
            self.requests_total[verb, UnreachableError.kind] += 1
            raise UnreachableError(str(error) or type(error).__name__) from error
        except RefusedError as error:
            if error.status >= SERVER_ERROR:
                self.outage.failed()
            raise  # counted by its status
        except KubeError as error:
            self.requests_total[verb, error.kind] += 1
            raise

    async def _accepted(self, call: _Call) -> aiohttp.ClientResponse:
        """Send the call; return its response, the body not read. Raise RefusedError for a status other than 2xx."""
        response = await self._send(call)
        if response.status == UNAUTHORIZED and await self._renew_credentials(call.verb, response):
            response = await self._send(call)
        self.requests_total[call.verb, str(response.status)] += 1
        if 200 <= response.status <= 299:
            return response
        try:
            refused = await self._read(response)
        finally:
            response.release()
        raise refusal_of_answer(response.status, refused, _retry_after_s(response))

    async def _renew_credentials(self, verb: str, response: aiohttp.ClientResponse) -> bool:
        """Read the credentials again; return True if that allows another attempt: then `response` is released."""
        try:
            renewed = await self._credentials.renew()
        except BaseException:
            response.release()
            raise
        if renewed:
            self.requests_total[verb, str(UNAUTHORIZED)] += 1
            response.release()
        return renewed

    async def _send(self, call: _Call) -> aiohttp.ClientResponse:
        """Send the call once; return the response with any status, its body not read."""
        session = await self._session("writes" if call.verb in WRITES else "reads")
        encoding = _IDENTITY if call.verb == "watch" else _GZIP
        headers = {"User-Agent": self._user_agent, "Accept": call.accept, "Accept-Encoding": encoding}
        if call.content_type:
            headers["Content-Type"] = call.content_type
        body = None if call.body is None else msgspec.json.encode(call.body)
        return await session.request(call.method, call.path, call.query, headers, body)

    async def _session(self, purpose: str) -> KubeSession:
        """Return the session for `purpose` ("reads" or "writes"), with the present credentials."""
        await self._credentials.refresh()
        if self._credentials.transport_changed:
            await self.close()
        async with self._sessions_lock:
            session = self._sessions.get(purpose)
            if session is None:
                session = self._sessions[purpose] = await self._credentials.session()
            return session

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """Return the whole body, inflated here, because aiohttp inflates each small piece of a list by itself."""
        encoding = _encoding(response)
        if encoding not in (_GZIP, _IDENTITY):
            response.close()
            raise UnreadableError(f"an answer in the encoding {encoding!r}, which was not asked for")
        inflater = _Inflater() if encoding == _GZIP else None
        parts: list[bytes] = []
        size = 0
        async for piece in response.content.iter_any():
            for part in (piece,) if inflater is None else inflater.parts(piece):
                size += len(part)
                if size > self._body_bytes_max:
                    response.close()
                    raise TooLargeError(f"an answer of more than {self._body_bytes_max} bytes")
                parts.append(part)
                if len(part) >= KUBE_INFLATED_PER_TURN_MAX:
                    await pause(0)
        if inflater is not None and parts:
            inflater.end()
        return b"".join(parts)


class _Inflater:
    """The decompressor of one gzip stream (RFC 1952)."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP_WINDOW)

    def parts(self, piece: bytes) -> Iterator[bytes]:
        """Yield the content of this piece of the stream, at most KUBE_INFLATED_PER_TURN_MAX bytes at a time.

        Raise UnreadableError if it is invalid.
        """
        stream = self._stream
        may_continue = True
        while may_continue and not stream.eof:
            try:
                part = stream.decompress(piece, KUBE_INFLATED_PER_TURN_MAX)
            except zlib.error as error:
                raise UnreadableError(f"a compressed answer that cannot be read: {error}") from error
            yield part
            may_continue = len(part) == KUBE_INFLATED_PER_TURN_MAX
            piece = stream.unconsumed_tail
        if stream.unused_data or (stream.eof and piece):
            raise UnreadableError("data after the end of a compressed answer")

    def end(self) -> None:
        """Check that the stream is complete; raise UnreadableError if it is not."""
        if not self._stream.eof:
            raise UnreadableError("a compressed answer that ends early")


def _encoding(response: aiohttp.ClientResponse) -> str:
    """Return the Content-Encoding (RFC 9110 section 8.4)."""
    return response.headers.get("Content-Encoding", _IDENTITY).strip().lower()


def _retry_after_s(response: aiohttp.ClientResponse) -> float | None:
    """Return the seconds of the field Retry-After; None if it has none."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else None  # the API never sends the form with a date
