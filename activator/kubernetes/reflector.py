"""Keeps a store equal to the API: lists once, then watches; lists again when the watch cannot continue.

Rules
  1. Without a connection the state is the last known state, with an age. Nothing is dropped.
  2. A break costs as little as possible: a watch continues where it ended. The selection is listed again only if the
     server has forgotten the version (410), or after something that cannot be skipped (an event that is too long or not
     JSON).
  3. A watch is alive only while data arrives, at least a bookmark; silence ends it.
  4. Attempts after failures are spaced by a backoff with jitter. Only a watch that has lasted resets it, so that a
     server that answers every watch with 410 is not overloaded by lists. Its Retry-After is respected.
  5. No data ends the task: failures are counted by kind and retried. Only the owner ends the task.
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
from activator.runtime.tasks import InterruptibleSleep, pause
from lb.rng import Rng

KUBE_EVENTS_PER_TURN_MAX: Final = 200  # watch events handled before the loop gets a turn
KUBE_WATCH_S: Final = 300.0  # The server ends a watch after one to two times this.
KUBE_WATCH_GRACE_S: Final = 15.0  # how much longer the server may take before the client ends the watch
KUBE_INACTIVITY_S: Final = 90.0  # a watch without data for this time, not even a bookmark (one a minute), has stalled
KUBE_STEADY_S: Final = 10.0  # after a watch of this duration the next begins without a backoff
KUBE_GO_ON_MAX_S: Final = 0.25  # longest pause after a watch that delivered events and broke
KUBE_DECODE_LOG_INTERVAL_S: Final = 60.0  # between two log lines about unreadable objects

log = logging.getLogger("activator.kubernetes")

_NO_SUCH_KIND: Final = "404"
_RESUMABLE = frozenset({401, 403, 404, 408, 429})  # refusals of a watch after which its version is still valid


class Reflector(Generic[Object]):
    """The objects of one selection, as the API has them.

    Start `run` as a task, and call `abort_if_stalled` about once a second. `synced`: the first list has arrived.
    `version` is the resource version of the store; if it is empty, the next step is a list.
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
        self._retry_pause = InterruptibleSleep(pause)  # the pause after a failure
        self._inactivity_s = inactivity_s
        self._watch_s = watch_s
        self._page_objects = page_objects
        self._backoff = kube_backoff(rng)
        self._rng = rng
        self.decoding = Decoding(selection.resource.kind)
        self.contents = ObjectStore(self.name, handler)
        self.list_lock = asyncio.Lock()  # one list of this selection at a time, comparisons included
        self.synced = False
        self.version = ""
        self._relist_cause: RelistError | None = None  # set while a new list is requested
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
        self._had_events = False  # the last watch has delivered an event of an object
        self._decode_logged_s = -NEVER
        self._decode_logged_total = 0

    @property
    def store(self) -> dict[Key, Object]:
        """The objects by (namespace, name)."""
        return self.contents.objects

    @property
    def watching(self) -> bool:
        """True while a watch runs."""
        return self._stream is not None

    def age_s(self, now_s: float) -> float:
        """Return the time since the API's last event, bookmark or whole list, in seconds; infinite before the first."""
        return now_s - self.last_event_s

    def answered(self) -> None:
        """Record that the API has answered this reflector or a comparison."""
        self.last_event_s = self._now()

    def relist(self, why: str) -> None:
        """List again, also if a list or the start of a watch is under way, because its data may be older."""
        self._relist_cause = RelistError(why)
        if self._stream is not None:
            self._stream.abort(self._relist_cause)

    def abort_if_stalled(self) -> None:
        """End the watch if it has stalled, and log unreadable objects. Call it about once a second."""
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
        """List and watch until cancelled."""
        while True:
            pause_s = await self._step()
            if pause_s > 0:
                await self._retry_pause(pause_s)

    def wake(self) -> None:
        """Retry now, because the API answers again, unless the server has asked for a pause."""
        if not self._backoff.is_asked_for:
            self._backoff.lower(KUBE_WOKEN_S)
            self._retry_pause.end()

    async def _step(self) -> float:
        """List if necessary, then watch once; return how long to wait afterwards, in seconds."""
        error: Exception | None = None
        self._had_events = False
        try:
            if self._relist_cause is not None or not self.version:
                await self._list()
            if self._relist_cause is not None:
                raise self._relist_cause  # so that repeated requests for lists are subject to the backoff
            await self._watch()
        except KubeError as failure:
            error = failure
            self._record_failure(failure)
        except Exception as failure:
            error = failure
            self.version = ""
            self._count_and_log("internal", failure)
            log.exception("%s: the watch failed with an unexpected exception; all objects are listed again", self.name)
        lasted = self._stream_began_s >= 0 and self._now() - self._stream_began_s >= KUBE_STEADY_S
        self._stream_began_s = -NEVER
        if lasted:
            self._backoff.reset()
            if error is None or isinstance(error, RelistError):
                return 0.0
        elif self._had_events and self.version and self._relist_cause is None:
            self._backoff.lower(KUBE_GO_ON_MAX_S)
        return self._backoff.next_s(error.retry_after_s if isinstance(error, KubeError) else None)

    def _record_failure(self, error: KubeError) -> None:
        """Record a failure; clear the version if the watch cannot continue from it."""
        self._count_and_log(error.kind, error)
        refused = isinstance(error, RefusedError) and 400 <= error.status < 500 and error.status not in _RESUMABLE
        if refused or isinstance(error, LineTooLongError | UnreadableError | RelistError):
            self.version = ""

    def _count_and_log(self, kind: str, error: Exception) -> None:
        """Count a failure; log the first in a row, and the sixth."""
        self.errors_total[kind] += 1
        self.last_error = f"{kind}: {error}"
        # The sixth failure is not logged for a kind that the cluster does not have.
        if self._backoff.failures == 0 or (self._backoff.failures == 5 and kind != _NO_SUCH_KIND):
            log.warning("%s: %s (%s)", self.name, error, kind)

    # --- list -------------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        """Replace the store by a new list; raise KubeError on failure."""
        async with self.list_lock:
            self._relist_cause = None
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
        """Watch from `version` until the watch ends; raise KubeError if it breaks."""
        seconds = int(self._watch_s * (1 + fraction(self._rng)))  # so that watches do not end at the same time
        query = {
            **self.selection.query(),
            "resourceVersion": self.version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        stream = await self._client.watch(self.selection.path, query)
        self.watches_total += 1
        if self._relist_cause is not None:
            stream.abort(self._relist_cause)
        now_s = self._now()
        self._stream_began_s = self._stream_read_s = now_s
        self._stream_ends_s = now_s + seconds + KUBE_WATCH_GRACE_S
        self._stream = stream
        try:
            while lines := await stream.lines():
                self._stream_read_s = self._now()
                self.answered()
                await self._apply_events(stream, lines)
        finally:
            self._stream = None
            stream.close()

    async def _apply_events(self, stream: WatchStream, lines: list[bytes]) -> None:
        """Apply the lines, and let the loop turn after many."""
        events = size = 0
        for line in lines:
            self._apply_event(line)
            events += 1
            size += len(line)
            if events >= KUBE_EVENTS_PER_TURN_MAX or size > KUBE_BYTES_PER_TURN_MAX:
                events = size = 0
                await self._pause(0)
                stream.raise_if_aborted()

    def _apply_event(self, line: bytes) -> None:
        """Apply one line of the watch to the store, and advance `version`."""
        event = self.decoding.event(line)
        kind, received = event.type, event.object
        metadata = received.metadata
        self.events_total[kind] += 1
        if kind != "BOOKMARK":
            self._had_events = True
        if kind == "DELETED":
            self.contents.deleted(metadata)
        elif kind in {"ADDED", "MODIFIED"}:
            if not isinstance(received, BareObject):
                self.contents.added_or_modified(received)
        elif kind != "BOOKMARK":
            raise UnreadableError(f"an event of the unknown type {kind[:40]!r}")
        if metadata.resource_version:
            self.version = metadata.resource_version
            self.contents.drop_tombstones(self.version)

    def _log_decode_failures(self) -> None:
        """Log unreadable objects: the first at once, then at most once per interval."""
        total = self.decoding.failures_total
        if total == self._decode_logged_total or self._now() - self._decode_logged_s < KUBE_DECODE_LOG_INTERVAL_S:
            return
        new = total - self._decode_logged_total
        self._decode_logged_total = total
        self._decode_logged_s = self._now()
        log.error("%s: %d objects could not be read, the last: %s", self.name, new, self.decoding.last_failure)
