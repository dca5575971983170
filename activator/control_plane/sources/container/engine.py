"""A client of a container engine over its Unix socket: Docker's API, which Podman also implements.

Rules
  1. Every call has a time limit and a largest answer, and at most CALLS_MAX run at a time. A stream that lasts as long
     as a container runs (`streamed`) has no limit in total; the caller reads it piece by piece.
  2. An engine that cannot be reached, stalls or breaks the connection raises EngineAwayError; one that refuses raises
     EngineError with its message. Calls are not retried here: the callers know which ones are worth it.
  3. The API version is the engine's, up to VERSION_NEWEST; it is queried again after the engine was unreachable.
  4. aiohttp is imported when the first engine is used.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from activator.config.engines import hint_for
from activator.runtime.errors import one_line
from activator.runtime.units import MIB

if TYPE_CHECKING:
    import aiohttp

CALL_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 16 * MIB  # a list of 5,000 containers
CALLS_MAX: Final = 8  # calls at a time
MESSAGE_CHARS_MAX: Final = 300
VERSION_NEWEST: Final = (1, 51)  # the newest version of the API that this client uses

_VERSION: Final = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})", re.ASCII)

Query = dict[str, str]


class EngineAwayError(Exception):
    """The engine cannot be reached, or does not answer."""


class EngineError(Exception):
    """The engine refused the request; `message` is its own text."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} (status {status})")
        self.status = status
        self.message = message


class Engine:
    """One engine, at the socket `path`. `problem`: why it cannot be used."""

    def __init__(self, path: str, problem: str = "") -> None:
        self.path = path
        self._problem = problem
        self.is_podman = False  # valid after the first call
        self._session: aiohttp.ClientSession | None = None
        self._calls = asyncio.Semaphore(CALLS_MAX)
        self._prefix = ""  # path prefix with the API version; empty until it is known

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # --- calls ---

    async def call(
        self, method: str, target: str, query: Query | None = None, body: Any = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> Any:
        """Return the answer, decoded from JSON; None if it is empty. Raises EngineAwayError, EngineError."""
        try:
            async with asyncio.timeout(timeout_s), self._calls:
                return await self._call(method, await self._known_prefix() + target, query, body)
        except TimeoutError:
            self._prefix = ""
            raise EngineAwayError(
                f"the container engine at {self.path} did not answer within {timeout_s:g} s"
            ) from None

    async def inspect(self, kind: str, name: str, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any] | None:
        """Return a container or an image as the engine shows it; None if it does not exist."""
        target = f"/{kind}/{name}/json"
        try:
            shown = await self.call("GET", target, timeout_s=timeout_s)
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        if not isinstance(shown, dict):
            raise EngineError(200, f"an answer of {type(shown).__name__} to {target}")
        return shown

    async def _call(self, method: str, target: str, query: Query | None, body: Any) -> Any:
        """Send a request to a path with its version; return the answer as `call` does, without its limits."""
        async with self._requested(method, target, query, body, None) as answer:
            data = await _read(answer.content)
            if answer.status >= 400:
                raise EngineError(answer.status, message_of(data))
            if answer.status == 304 or not data.strip():
                return None
            try:
                return json.loads(data)
            except (ValueError, RecursionError):
                raise EngineError(answer.status, f"an answer to {target} that is not JSON") from None

    @asynccontextmanager
    async def streamed(
        self, method: str, target: str, query: Query | None = None, body: Any = None, idle_s: float | None = None
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Open an answer that is read piece by piece. `idle_s`: the longest time without a piece; None: no limit.

        Raises as `call`; a connection that breaks while it is read also raises EngineAwayError.
        """
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                prefix = await self._known_prefix()
        except TimeoutError:
            raise EngineAwayError(f"the container engine at {self.path} does not answer") from None
        async with self._requested(method, prefix + target, query, body, idle_s) as answer:
            if answer.status >= 400:
                raise EngineError(answer.status, message_of(await _read(answer.content)))
            yield answer.content

    @asynccontextmanager
    async def _requested(
        self, method: str, target: str, query: Query | None, body: Any, idle_s: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; yield the answer. An error of the connection raises EngineAwayError."""
        import aiohttp

        if self._problem:
            raise EngineAwayError(self._problem)
        url = f"http://engine{target}" + (f"?{urlencode(query)}" if query else "")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=idle_s)
        try:
            async with self._open_session().request(method, url, json=body, timeout=timeout) as answer:
                yield answer
        except (aiohttp.ClientError, OSError) as error:
            # OSError includes the timeouts of aiohttp.
            self._prefix = ""
            raise EngineAwayError(self._cause_of(error)) from None

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            # The semaphore bounds calls, and the number of containers bounds streams.
            self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(self.path, limit=0))
        return self._session

    async def _known_prefix(self) -> str:
        if not self._prefix:
            version = await self._call("GET", "/version", None, None)
            if not isinstance(version, dict):
                raise EngineError(200, "no version")
            parts = version.get("Components")
            names = [part.get("Name") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
            self.is_podman = "Podman Engine" in names
            self._prefix = f"/v{version_of(version)}"
        return self._prefix

    def _cause_of(self, error: Exception) -> str:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        if isinstance(cause, OSError) and cause.errno is not None:
            reason = f"cannot be reached: {cause.strerror}; {hint_for(self.path, cause)}"
        else:
            reason = f"broke off: {one_line(str(error)) or type(error).__name__}"
        return f"the container engine at {self.path} {reason}"


def version_of(answer: dict[str, Any]) -> str:
    """Return the newest version of the API that both sides support. Raises EngineError."""
    theirs = _VERSION.fullmatch(str(answer.get("ApiVersion", "")))
    if theirs is None:
        raise EngineError(200, "the server is not a container engine: it reports no API version")
    version = min((int(theirs[1]), int(theirs[2])), VERSION_NEWEST)
    return f"{version[0]}.{version[1]}"


def message_of(data: bytes) -> str:
    """Return the message of an engine's error as one line of at most MESSAGE_CHARS_MAX."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = data.decode("utf-8", "replace")
    if isinstance(answer, dict):
        answer = answer.get("message") or answer.get("cause") or answer.get("error") or "no reason given"
    text = one_line(str(answer)).strip() or "no reason given"
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 1] + "…"


async def _read(content: aiohttp.StreamReader) -> bytes:
    parts, size = [], 0
    async for part in content.iter_any():
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise EngineError(200, f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)
