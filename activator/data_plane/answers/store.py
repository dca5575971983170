"""The answers that one data plane keeps: accepted, bounded, found by their names, and forgotten in time.

Rules
  1. A request is accepted only where there is a place for it, in its revision and in all; else it is answered as if it
     had not asked to be (RFC 7240: a preference that is not fulfilled is ignored). It has its place until its answer is
     forgotten.
  2. The bytes of answers are bounded for each answer, each revision and in all. Bytes count until the last reader has
     been sent them.
  3. An answer is kept for `keep` from its end, however often it is read; whoever has it may delete it before.
  4. A name is 128 bits of chance behind the number of the data plane that has the answer. The last GONE_MAX names that
     were forgotten are known, so that a client who comes late is told so (410), and not that there was nothing (404).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from activator.codec.message import Fields, Headers, ResponseHead
from activator.config.specs import AsyncSpec
from activator.data_plane.answers.kept_answer import KEPT_OVERHEAD_BYTES, AnswerKeeper, KeptAnswer
from activator.data_plane.exchange import ClientStream
from activator.data_plane.refusals import PHRASES, POSITION_HEADER, refusal_head, refusal_text
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.messages import ANSWER_OUTCOMES
from activator.runtime.clock import Defer, Now, TimingWheel
from activator.runtime.reasons import Reason

ANSWERS_PATH: Final = b"/.activator/answers/"
STATE_HEADER: Final = b"Activator-Answer"
GONE_MAX: Final = 4096  # names that are known to be forgotten


class _Usage:
    """What one revision's answers take."""

    def __init__(self) -> None:
        self.count: int = 0
        self.bytes: int = 0


class AnswerStore(AnswerKeeper):
    """`secret` makes names: 32 hexadecimal digits by chance."""

    def __init__(
        self,
        wheel: TimingWheel,
        now: Now,
        defer: Defer,
        bytes_max: int,
        requests_max: int,
        secret: Callable[[], str],
    ) -> None:
        self.number: int = 0  # of this data plane; no other one has it or had it
        self.is_open: bool = False  # somebody may ask for an answer
        self.is_closing: bool = False
        self.bytes: int = 0
        self.pending: int = 0  # that are not done
        self.totals: dict[str, int] = dict.fromkeys(ANSWER_OUTCOMES, 0)
        self.kept: dict[str, KeptAnswer] = {}
        self._wheel = wheel
        self._now = now
        self._defer = defer
        self.bytes_max = bytes_max
        self.requests_max = requests_max
        self._secret = secret
        self._revisions: dict[str, None] = {}  # that may have some
        self._usage: dict[str, _Usage] = {}
        self._gone: dict[str, None] = {}

    # --- revisions ---

    def revision_set(self, key: str, responds_async: bool) -> None:
        """Whether a revision accepts such requests from now on."""
        if responds_async:
            self._revisions[key] = None
        else:
            self._revisions.pop(key, None)
        self._reopen()

    def _reopen(self) -> None:
        self.is_open = bool(self._revisions) or bool(self.kept)

    # --- requests ---

    def accept(self, throttler: RevisionThrottler, client: ClientStream) -> KeptAnswer | None:
        """A place for the answer to a request; None: there is none."""
        spec = throttler.spec.respond_async
        if spec is None or self.is_closing or not self._has_place(throttler.key, spec):
            self.totals["synchronous"] += 1
            return None
        identity = f"{self.number:x}-{self._secret()}"
        answer = KeptAnswer(self, identity, throttler, spec, client, self._now())
        self.kept[identity] = answer
        usage = self._usage.setdefault(throttler.key, _Usage())
        usage.count += 1
        self._account(answer, KEPT_OVERHEAD_BYTES)
        self.pending += 1
        self.totals["accepted"] += 1
        self.is_open = True
        return answer

    def _has_place(self, key: str, spec: AsyncSpec) -> bool:
        usage = self._usage.get(key)
        if usage is not None and (
            usage.count >= spec.requests_max or usage.bytes + KEPT_OVERHEAD_BYTES > spec.bytes_max
        ):
            return False
        return len(self.kept) < self.requests_max and self.bytes + KEPT_OVERHEAD_BYTES <= self.bytes_max

    def withdraw(self, answer: KeptAnswer) -> None:
        """Nobody has been told its name: the client gets the answer at once."""
        self.totals["accepted"] -= 1
        self._forget(answer)

    # --- who asks for one ---

    def find(self, identity: str) -> KeptAnswer | None:
        return self.kept.get(identity)

    def delete(self, answer: KeptAnswer) -> None:
        """Its client wants it no more: what has not ended is ended, as when a client leaves."""
        self.totals["deleted"] += 1
        is_done = answer.is_done
        self._forget(answer)
        if not is_done:
            answer.is_done = True
            self.pending -= 1
            answer.exchange.client_gone()

    def absent(self, identity: str) -> tuple[ResponseHead, bytes]:
        """What is said of a name that there is not."""
        reason = Reason.ANSWER_GONE if identity in self._gone else Reason.NO_ANSWER
        text = refusal_text(reason, "")
        return refusal_head(reason, text, 0), text

    def state(self, answer: KeptAnswer) -> tuple[ResponseHead, bytes]:
        """202, and what is known of a request that has not been answered yet."""
        throttler = answer.throttler
        exchange = answer.exchange
        now_s = self._now()
        shown: dict[str, Any] = {
            "answer": path_of(answer).decode(),
            "state": "running",
            "waited_s": round(max(now_s - answer.asked_s, 0.0), 1),
        }
        headers: Headers = [
            (b"Content-Type", b"application/json"),
            (b"Cache-Control", b"no-store"),
        ]
        retry_after_s = 1
        if exchange.in_line:
            position = throttler.queue.position_of(exchange)
            retry_after_s = throttler.queue.expected_s(position)
            starting = throttler.table.capacity == 0
            shown["state"] = "starting" if starting else "waiting"
            shown["position"] = position
            shown["waiting"] = throttler.queue.waiting()
            shown["expected_s"] = retry_after_s
            headers.append((POSITION_HEADER, str(position).encode()))
        headers.append((STATE_HEADER, shown["state"].encode()))
        headers.append((b"Retry-After", str(retry_after_s).encode()))
        body = json.dumps(shown).encode() + b"\n"
        return ResponseHead(202, PHRASES[202], Fields.from_pairs(headers), len(body), True), body

    def read_begins(self, answer: KeptAnswer) -> None:
        """It is being sent to somebody, until `read_ends`."""
        if answer.readers == 0 and not answer.was_read:
            answer.was_read = True
            self.totals["collected"] += 1
        answer.readers += 1

    def read_ends(self, answer: KeptAnswer) -> None:
        answer.readers -= 1
        if answer.is_forgotten and answer.readers == 0:
            self._release(answer)

    # --- the end ---

    def close(self) -> None:
        """No request is accepted any more."""
        self.is_closing = True

    def cut(self) -> None:
        """End those that have not ended."""
        for answer in list(self.kept.values()):
            if not answer.is_done:
                answer.exchange.revoked(Reason.DRAINING, "")

    def lose(self) -> int:
        """Forget all; how many nobody has read."""
        lost = sum(not answer.was_read for answer in self.kept.values())
        self.totals["lost"] += lost
        for answer in list(self.kept.values()):
            self._forget(answer)
        return lost

    # --- what answers say (AnswerKeeper) ---

    def fits(self, answer: KeptAnswer, count: int) -> bool:
        spec = answer.spec
        usage = self._usage[answer.throttler.key]
        return (
            answer.bytes - KEPT_OVERHEAD_BYTES + count <= spec.answer_bytes_max
            and usage.bytes + count <= spec.bytes_max
            and self.bytes + count <= self.bytes_max
        )

    def grow(self, answer: KeptAnswer, count: int) -> bool:
        if answer.is_forgotten:  # deleted a moment ago: nothing is kept of it
            return True
        if not self.fits(answer, count):
            return False
        self._account(answer, count)
        return True

    def shrink(self, answer: KeptAnswer) -> None:
        if not answer.is_forgotten:
            self._account(answer, KEPT_OVERHEAD_BYTES - answer.bytes)

    def too_large(self, answer: KeptAnswer) -> None:
        self.totals["too_large"] += 1
        exchange = answer.exchange
        self._defer(lambda: exchange.revoked(Reason.ANSWER_TOO_LARGE, ""))

    def done(self, answer: KeptAnswer) -> None:
        self.pending -= 1
        self.totals["done"] += 1
        if not answer.is_forgotten:
            self._wheel.arm(answer.expiry, self._now() + answer.spec.keep_s)

    def expired(self, answer: KeptAnswer) -> None:
        if not answer.was_read:
            self.totals["expired"] += 1
        self._forget(answer)

    # --- within ---

    def _account(self, answer: KeptAnswer, count: int) -> None:
        answer.bytes += count
        self.bytes += count
        self._usage[answer.throttler.key].bytes += count

    def _forget(self, answer: KeptAnswer) -> None:
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
            self._release(answer)
        self._reopen()

    def _release(self, answer: KeptAnswer) -> None:
        key = answer.throttler.key
        usage = self._usage[key]
        self._account(answer, -answer.bytes)
        usage.count -= 1
        if usage.count == 0:
            del self._usage[key]
        answer.body = bytearray()


def path_of(answer: KeptAnswer) -> bytes:
    """Where its state and then the answer are."""
    return ANSWERS_PATH + answer.identity.encode()
