"""Keeps a store like the API's: list once, then watch; list again when the watch cannot go on.

Rules
  1. Without a connection the state is the last known state, with an age. Nothing is dropped meanwhile.
  2. A break costs as little as possible: a watch goes on where it was; only what the server has forgotten (410), or
     what cannot be skipped (an event too long, one that is no JSON), is listed anew.
  3. A watch counts as alive only while something comes, a bookmark at least: silence ends it.
  4. Attempts after failures are spaced by a jittered backoff that only a watch that has held resets, so that a server
     that answers every watch with 410 is not overloaded by lists. Its Retry-After is respected.
  5. Nothing that comes in ends the task: what goes wrong is counted by kind and tried again. Only its owner ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final, Generic

from activator.kubernetes.backoff import KUBE_WOKEN_S, kube_backoff
from activator.kubernetes.client import KubeClient
from activator.kubernetes.decoding import Decoding
from activator.kubernetes.errors import (
    KubeError,
    LineTooLongError,
    RefusedError,
    RelistError,
    UnreadableError,
    WatchStalledError,
)
from activator.kubernetes.listing import (
    KUBE_BYTES_PER_TURN_MAX,
    KUBE_PAGE_OBJECTS,
    Pause,
    list_all,
)
from activator.kubernetes.object_store import Handler, ObjectStore
from activator.kubernetes.objects import BareObject, Key, Object
from activator.kubernetes.resources import Selection
from activator.kubernetes.watch_stream import WatchStream
from activator.runtime.backoff import fraction
from activator.runtime.clock import NEVER, Now
from activator.runtime.tasks import EndablePause, pause
from lb.rng import Rng

KUBE_EVENTS_PER_TURN_MAX: Final = 200  # watch events handled before the loop is given a turn …
KUBE_WATCH_S: Final = 300.0  # the server ends a watch after between once and twice this
KUBE_WATCH_GRACE_S: Final = 15.0  # what a server may take beyond that before the watch is cut
KUBE_INACTIVITY_S: Final = 90.0  # nothing in a watch for so long, no bookmark either (one a minute): it has stalled
KUBE_STEADY_S: Final = 10.0  # a watch that held so long ended well: the next begins without a backoff
KUBE_GO_ON_MAX_S: Final = 0.25  # a watch that brought events and broke is begun again after so long at the most
KUBE_DECODE_LOG_INTERVAL_S: Final = 60.0  # objects that cannot be read are logged at most so often

log = logging.getLogger("activator.kubernetes")

_NO_SUCH_KIND: Final = "404"
_GO_ON_STATUS = frozenset({401, 403, 404, 408, 429})  # refusals of a watch after which its version is still good


class Reflector(Generic[Object]):
    """The objects of one selection, as the API has them.

    `run` is its life, to be started as a task; `check` is to be called about once a second. `synced`: the first list
    has come. `version` is the resource version that the store is at; empty: the next step is a list.
    """

    def __init__(
        self,
        client: KubeClient,
        selection: Selection[Object],
        handler: Handler[Object],
        now: Now,
        rng: Rng,
        pause: Pause = pause,
        inactivity_s: float = KUBE_INACTIVITY_S,
        watch_s: float = KUBE_WATCH_S,
        page_objects: int = KUBE_PAGE_OBJECTS,
    ) -> None:
        self._client = client
        self.selection = selection
        self.name = selection.resource.plural
        self._now = now
        self._pause = pause
        self._rest = EndablePause(pause)  # after a failure
        self._inactivity_s = inactivity_s
        self._watch_s = watch_s
        self._page_objects = page_objects
        self._backoff = kube_backoff(rng)
        self._rng = rng
        self.decoding = Decoding(selection.resource.kind)
        self.contents = ObjectStore(self.name, handler)
        self.list_lock = asyncio.Lock()  # lists of this selection, the comparisons' among them, one after the other
        self.synced = False
        self.version = ""
        self._wanted: RelistError | None = None
        self.last_event_s = -NEVER
        self.lists_total = 0
        self.watches_total = 0
        self.events_total: Counter[str] = Counter()  # by type
        self.errors_total: Counter[str] = Counter()  # by kind
        self.last_error = ""
        self._stream: WatchStream | None = None
        self._stream_began_s = -NEVER
        self._stream_read_s = -NEVER
        self._stream_ends_s = NEVER
        self._watch_brought = False  # the last one has brought an event of an object
        self._decode_logged_s = -NEVER
        self._decode_logged_total = 0

    @property
    def store(self) -> dict[Key, Object]:
        """What is known, by (namespace, name)."""
        return self.contents.objects

    @property
    def watching(self) -> bool:
        """Whether a watch runs."""
        return self._stream is not None

    def age_s(self, now_s: float) -> float:
        """How long ago the API last answered: an event, a bookmark or a whole list. Infinite before the first."""
        return now_s - self.last_event_s

    def answered(self) -> None:
        """The API has answered, here or to a comparison."""
        self.last_event_s = self._now()

    def relist(self, why: str) -> None:
        """List anew now, also after a list or the beginning of a watch that is under way: that may be from before."""
        self._wanted = RelistError(why)
        if self._stream is not None:
            self._stream.abort(self._wanted)

    def check(self) -> None:
        """End a watch that has stalled. To be called about once a second."""
        self._log_decode_failures()
        stream = self._stream
        if stream is None:
            return
        now_s = self._now()
        if now_s - self._stream_read_s >= self._inactivity_s:
            stream.abort(WatchStalledError(f"nothing for {self._inactivity_s:g} s, no bookmark either"))
        elif now_s >= self._stream_ends_s:
            stream.abort(WatchStalledError("the server did not end the watch at its time"))

    async def run(self) -> None:
        """List, watch, again. Ends by cancellation only."""
        while True:
            pause_s = await self._step()
            if pause_s > 0:
                await self._rest(pause_s)

    def wake(self) -> None:
        """The API answers again: try again now, unless it has asked for a pause."""
        if not self._backoff.is_asked_for:
            self._backoff.lower(KUBE_WOKEN_S)
            self._rest.end()

    async def _step(self) -> float:
        """A list if need be, then one watch; the seconds to wait after it."""
        error: Exception | None = None
        self._watch_brought = False
        try:
            if self._wanted is not None or not self.version:
                await self._list()
            if self._wanted is not None:
                raise self._wanted  # after a pause: endless requests for lists are served more and more rarely
            await self._watch()
        except KubeError as failure:
            error = failure
            self._broke(failure)
        except Exception as failure:
            error = failure
            self.version = ""
            self._note("internal", failure)
            log.exception("%s: the watch failed", self.name)
        held = self._stream_began_s >= 0 and self._now() - self._stream_began_s >= KUBE_STEADY_S
        self._stream_began_s = -NEVER
        if held:
            self._backoff.reset()
            if error is None or isinstance(error, RelistError):
                return 0.0
        elif self._watch_brought and self.version and self._wanted is None:
            self._backoff.lower(KUBE_GO_ON_MAX_S)
        return self._backoff.next_s(error.retry_after_s if isinstance(error, KubeError) else None)

    def _broke(self, error: KubeError) -> None:
        """Where to go on after a failure."""
        self._note(error.kind, error)
        refused = isinstance(error, RefusedError) and 400 <= error.status < 500 and error.status not in _GO_ON_STATUS
        if refused or isinstance(error, LineTooLongError | UnreadableError | RelistError):
            self.version = ""

    def _note(self, kind: str, error: Exception) -> None:
        self.errors_total[kind] += 1
        self.last_error = f"{kind}: {error}"
        # The first of a row, and once more when it does not end; a kind that the cluster does not have may never come.
        if self._backoff.failures == 0 or (self._backoff.failures == 5 and kind != _NO_SUCH_KIND):
            log.warning("%s: %s (%s)", self.name, error, kind)

    # --- list -------------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        async with self.list_lock:
            self._wanted = None
            items, version = await list_all(
                self._client, self.selection, self.decoding, self._pause, self._page_objects
            )
            self.lists_total += 1
            self.version = version
            self.answered()
            self.contents.replace(items)
            self.synced = True

    # --- watch ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        seconds = int(self._watch_s * (1 + fraction(self._rng)))  # not all at the same time
        query = {
            **self.selection.query(),
            "resourceVersion": self.version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        stream = await self._client.watch(self.selection.path, query)
        self.watches_total += 1
        if self._wanted is not None:
            stream.abort(self._wanted)
        now_s = self._now()
        self._stream_began_s = self._stream_read_s = now_s
        self._stream_ends_s = now_s + seconds + KUBE_WATCH_GRACE_S
        self._stream = stream
        try:
            while lines := await stream.lines():
                self._stream_read_s = self._now()
                self.answered()
                await self._events(stream, lines)
        finally:
            self._stream = None
            stream.close()

    async def _events(self, stream: WatchStream, lines: list[bytes]) -> None:
        events = size = 0
        for line in lines:
            self._event(line)
            events += 1
            size += len(line)
            if events >= KUBE_EVENTS_PER_TURN_MAX or size > KUBE_BYTES_PER_TURN_MAX:
                events = size = 0
                await self._pause(0)
                stream.raise_if_aborted()

    def _event(self, line: bytes) -> None:
        event = self.decoding.event(line)
        kind, thing = event.type, event.object
        metadata = thing.metadata
        self.events_total[kind] += 1
        if kind != "BOOKMARK":
            self._watch_brought = True
        if kind == "DELETED":
            self.contents.deleted(metadata)
        elif kind in {"ADDED", "MODIFIED"}:
            if not isinstance(thing, BareObject):
                self.contents.added_or_modified(thing)
        elif kind != "BOOKMARK":
            raise UnreadableError(f"an event of the unknown type {kind[:40]!r}")
        if metadata.resource_version:
            self.version = metadata.resource_version
            self.contents.progressed(self.version)

    def _log_decode_failures(self) -> None:
        """At most once an interval; the first one at once."""
        total = self.decoding.failures_total
        if total == self._decode_logged_total or self._now() - self._decode_logged_s < KUBE_DECODE_LOG_INTERVAL_S:
            return
        new = total - self._decode_logged_total
        self._decode_logged_total = total
        self._decode_logged_s = self._now()
        log.error("%s: %d objects could not be read, the last: %s", self.name, new, self.decoding.last_failure)
