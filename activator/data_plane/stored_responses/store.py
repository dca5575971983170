"""The store of one data plane's responses to asynchronous requests: it admits, bounds, finds and expires them.

Rules
  1. A request is accepted only if its revision and the whole store have room; otherwise it is answered synchronously
     (RFC 7240: a preference that is not fulfilled is ignored). The request counts until its response is forgotten.
  2. The bytes of responses are bounded for each response, for each revision and in total. Bytes count until they have
     been sent to the last reader.
  3. A response is stored for `keep` from its end, however often it is read; a client that knows its name may delete it
     before.
  4. A name consists of the number of the data plane and 128 random bits. The last GONE_MAX forgotten names are kept, so
     that a late client gets a 410 instead of a 404.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from activator.codec.message import Fields, Headers, ResponseHead
from activator.config.specs import AsyncSpec
from activator.data_plane.refusals import PHRASES, POSITION_HEADER, refusal_head, refusal_text
from activator.data_plane.stored_responses.stored_response import (
    KEPT_OVERHEAD_BYTES,
    StoredResponse,
    StoredResponseOwner,
)
from activator.data_plane.streams import ClientStream
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.messages import ANSWER_OUTCOMES
from activator.runtime.clock import Defer, Now, TimingWheel
from activator.runtime.reasons import Reason

ANSWERS_PATH: Final = b"/.activator/answers/"
STATE_HEADER: Final = b"Activator-Answer"
GONE_MAX: Final = 4096  # how many forgotten names are kept


class _Usage:
    """The number of the responses of one revision, and their bytes."""

    def __init__(self) -> None:
        self.count: int = 0
        self.bytes: int = 0


class ResponseStore(StoredResponseOwner):
    """The stored responses of one data plane. `secret` returns 32 random hexadecimal digits for a name."""

    def __init__(
        self,
        wheel: TimingWheel,
        now: Now,
        defer: Defer,
        bytes_max: int,
        requests_max: int,
        secret: Callable[[], str],
    ) -> None:
        self.number: int = 0  # identifies this data plane; never reused
        self.is_open: bool = False  # requests for stored responses are possible
        self.is_closing: bool = False
        self.bytes: int = 0
        self.pending: int = 0  # not complete yet
        self.totals: dict[str, int] = dict.fromkeys(ANSWER_OUTCOMES, 0)
        self.kept: dict[str, StoredResponse] = {}  # by name
        self._wheel = wheel
        self._now = now
        self._defer = defer
        self.bytes_max = bytes_max
        self.requests_max = requests_max
        self._secret = secret
        self._revisions: dict[str, None] = {}  # revisions that accept asynchronous requests
        self._usage: dict[str, _Usage] = {}
        self._gone: dict[str, None] = {}  # forgotten names, the oldest first

    # --- revisions ---

    def revision_set(self, key: str, responds_async: bool) -> None:
        """Set if a revision accepts asynchronous requests."""
        if responds_async:
            self._revisions[key] = None
        else:
            self._revisions.pop(key, None)
        self._update_open()

    def _update_open(self) -> None:
        self.is_open = bool(self._revisions) or bool(self.kept)

    # --- requests ---

    def accept(self, throttler: RevisionThrottler, client: ClientStream) -> StoredResponse | None:
        """Create and count a stored response for a request; return None if there is no room."""
        spec = throttler.spec.filters.respond_async
        if spec is None or self.is_closing or not self._has_room(throttler.key, spec):
            self.totals["synchronous"] += 1
            return None
        identity = f"{self.number:x}-{self._secret()}"
        answer = StoredResponse(self, identity, throttler, spec, client, self._now())
        self.kept[identity] = answer
        usage = self._usage.setdefault(throttler.key, _Usage())
        usage.count += 1
        self._account(answer, KEPT_OVERHEAD_BYTES)
        self.pending += 1
        self.totals["accepted"] += 1
        self.is_open = True
        return answer

    def _has_room(self, key: str, spec: AsyncSpec) -> bool:
        usage = self._usage.get(key)
        if usage is not None and (
            usage.count >= spec.requests_max or usage.bytes + KEPT_OVERHEAD_BYTES > spec.bytes_max
        ):
            return False
        return len(self.kept) < self.requests_max and self.bytes + KEPT_OVERHEAD_BYTES <= self.bytes_max

    def withdraw(self, answer: StoredResponse) -> None:
        """Remove a response that its client receives directly, because its name has not been sent."""
        self.totals["accepted"] -= 1
        self._forget(answer)

    # --- clients ---

    def find(self, identity: str) -> StoredResponse | None:
        """Return the response with this name; None if there is none."""
        return self.kept.get(identity)

    def delete(self, answer: StoredResponse) -> None:
        """Delete a response; a pending request is ended, as if its client had disconnected."""
        self.totals["deleted"] += 1
        is_done = answer.is_done
        self._forget(answer)
        if not is_done:
            answer.is_done = True
            self.pending -= 1
            answer.exchange.client_gone()

    def absence_response(self, identity: str) -> tuple[ResponseHead, bytes]:
        """Return the response for an unknown or forgotten name."""
        reason = Reason.ANSWER_GONE if identity in self._gone else Reason.NO_ANSWER
        text = refusal_text(reason, "")
        return refusal_head(reason, text, 0), text

    def pending_response(self, answer: StoredResponse) -> tuple[ResponseHead, bytes]:
        """Return a 202 with the state of a pending request."""
        throttler = answer.throttler
        exchange = answer.exchange
        now_s = self._now()
        fields: dict[str, Any] = {
            "answer": path_of(answer).decode(),
            "state": "running",
            "waited_s": round(max(now_s - answer.asked_s, 0.0), 1),
        }
        headers: Headers = [
            (b"Content-Type", b"application/json"),
            (b"Cache-Control", b"no-store"),
        ]
        retry_after_s = 1
        if exchange.place.is_queued:
            position = throttler.queue.position_of(exchange.place)
            retry_after_s = throttler.queue.expected_s(position)
            starting = throttler.table.capacity == 0
            fields["state"] = "starting" if starting else "waiting"
            fields["position"] = position
            fields["waiting"] = throttler.queue.waiting()
            fields["expected_s"] = retry_after_s
            headers.append((POSITION_HEADER, str(position).encode()))
        headers.append((STATE_HEADER, fields["state"].encode()))
        headers.append((b"Retry-After", str(retry_after_s).encode()))
        body = json.dumps(fields).encode() + b"\n"
        return ResponseHead(202, PHRASES[202], Fields.from_pairs(headers), len(body), True), body

    def read_begins(self, answer: StoredResponse) -> None:
        """Count a reader of the response, until `read_ends`."""
        if answer.readers == 0 and not answer.was_read:
            answer.was_read = True
            self.totals["collected"] += 1
        answer.readers += 1

    def read_ends(self, answer: StoredResponse) -> None:
        answer.readers -= 1
        if answer.is_forgotten and answer.readers == 0:
            self._release_bytes(answer)

    # --- the end ---

    def close(self) -> None:
        """Store no more responses: later requests are answered synchronously."""
        self.is_closing = True

    def cut(self) -> None:
        """End all pending requests."""
        for answer in list(self.kept.values()):
            if not answer.is_done:
                answer.exchange.revoked(Reason.DRAINING, "")

    def forget_all(self) -> int:
        """Forget all responses; return how many were never read."""
        lost = sum(not answer.was_read for answer in self.kept.values())
        self.totals["lost"] += lost
        for answer in list(self.kept.values()):
            self._forget(answer)
        return lost

    # --- calls of stored responses (StoredResponseOwner) ---

    def fits(self, answer: StoredResponse, count: int) -> bool:
        spec = answer.spec
        usage = self._usage[answer.throttler.key]
        return (
            answer.bytes - KEPT_OVERHEAD_BYTES + count <= spec.answer_bytes_max
            and usage.bytes + count <= spec.bytes_max
            and self.bytes + count <= self.bytes_max
        )

    def grow(self, answer: StoredResponse, count: int) -> bool:
        if answer.is_forgotten:  # deleted a moment ago: its data is discarded
            return True
        if not self.fits(answer, count):
            return False
        self._account(answer, count)
        return True

    def shrink(self, answer: StoredResponse) -> None:
        if not answer.is_forgotten:
            self._account(answer, KEPT_OVERHEAD_BYTES - answer.bytes)

    def count_too_large(self, answer: StoredResponse) -> None:
        self.totals["too_large"] += 1
        exchange = answer.exchange
        self._defer(lambda: exchange.revoked(Reason.ANSWER_TOO_LARGE, ""))

    def done(self, answer: StoredResponse) -> None:
        self.pending -= 1
        self.totals["done"] += 1
        if not answer.is_forgotten:
            self._wheel.arm(answer.expiry, self._now() + answer.spec.keep_s)

    def expired(self, answer: StoredResponse) -> None:
        if not answer.was_read:
            self.totals["expired"] += 1
        self._forget(answer)

    # --- within ---

    def _account(self, answer: StoredResponse, count: int) -> None:
        """Count `count` more bytes for a response, its revision and the store."""
        answer.bytes += count
        self.bytes += count
        self._usage[answer.throttler.key].bytes += count

    def _forget(self, answer: StoredResponse) -> None:
        """Remove a response; its bytes count until its last reader has received them."""
        if answer.is_forgotten:
            return
        answer.is_forgotten = True
        self._wheel.cancel(answer.expiry)
        answer.expiry.stop()
        del self.kept[answer.identity]
        self._gone[answer.identity] = None
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
        if answer.readers == 0:
            self._release_bytes(answer)
        self._update_open()

    def _release_bytes(self, answer: StoredResponse) -> None:
        key = answer.throttler.key
        usage = self._usage[key]
        self._account(answer, -answer.bytes)
        usage.count -= 1
        if usage.count == 0:
            del self._usage[key]
        answer.body = bytearray()


def path_of(answer: StoredResponse) -> bytes:
    """Return the path of the response and, before that, of its state."""
    return ANSWERS_PATH + answer.identity.encode()
