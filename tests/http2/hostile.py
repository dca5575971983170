"""Hostile clients as data: floods, bombs, games with states and tables, cut bytes; and messages that smuggle.

`attack(stimulus, host, port)` runs one against any server while an innocent client asks on a connection of its own, and
reports; `problems` compares that with what a hardened server does:

  1. What comes of the attack is among `allowed`, within `bound_s`.
  2. The innocent client has every answer within one second, as has a new one afterwards.
  3. The server grows by no more than `memory_bytes` (where `pid` is given).

`send_message` does the same for a single message in `messages.py`.
"""

from __future__ import annotations

import enum
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bench.processes import process_cpu_s
from tests.http2.raw_client import (
    MAX_WINDOW,
    PREFACE,
    SETTINGS_ACK,
    SILENT,
    Code,
    Flag,
    Frame,
    RawClient,
    Setting,
    Type,
    code_name,
    continuation_frame,
    data_frame,
    frame,
    goaway_frame,
    headers_frame,
    integer,
    literal,
    ping_frame,
    priority_field,
    priority_frame,
    reset_frame,
    settings_frame,
    window_frame,
)

INNOCENT_S = 1.0  # for one answer
PATIENCE_S = 5.0  # for one answer at most, also of a reference, by the clock
PONG_S = 2.0  # for the answer to a PING
REFERENCE_PONG_S = 10.0  # … as long as anything comes: 100,000 answers to PING take the client here a second of CPU
MEGABYTE = 2**20


class Outcome(enum.Enum):
    ENDED = "the connection ended, or GOAWAY has an error"
    REFUSED = "a stream was reset with an error, or answered with a status of 400 or more"
    SERVED = "answered"
    TOLERATED = "nothing came of it, and PING is answered"
    STUCK = "nothing comes any more, not even for a PING"


ENDED, REFUSED, SERVED = Outcome.ENDED, Outcome.REFUSED, Outcome.SERVED
TOLERATED, STUCK = Outcome.TOLERATED, Outcome.STUCK
ANYTHING = frozenset(Outcome)


@dataclass(frozen=True)
class Target:
    host: str
    port: int
    path: str = "/"  # what is answered with a small body
    large: str = "/large"  # what is answered with more than 1 MB
    authority: str | None = None
    tls: ssl.SSLContext | None = None
    pid: int = 0  # of the server, to see what it holds
    is_reference: bool = False  # it is judged by its CPU: by the clock, it would be by what else the machine does

    def connect(self, path: str = "", patience_s: float = 2.0) -> RawClient:
        return RawClient(
            self.host,
            self.port,
            path=path or self.path,
            authority=self.authority,
            tls=self.tls,
            patience_s=patience_s,
        )

    def resident_bytes(self) -> int:
        if not self.pid:
            return 0
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return int(found[1]) * 1024 if found is not None else 0

    def worked_s(self) -> float:
        """By a clock, or the CPU that a reference has used."""
        return process_cpu_s(self.pid) if self.is_reference else time.monotonic()


Drive = Callable[[RawClient, Target], None]


@dataclass(frozen=True)
class Stimulus:
    name: str
    drive: Drive
    allowed: frozenset[Outcome]
    handshake: bool = True
    bound_s: float = 10.0
    memory_bytes: int = 64 * MEGABYTE
    waits_for: int = 0  # a stream whose end is awaited
    check: Callable[[RawClient], str] = lambda client: ""  # what is wrong beside the outcome


@dataclass
class Report:
    outcome: Outcome
    code: str = ""  # of GOAWAY
    resets: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    took_s: float = 0.0
    innocent: int = 0  # requests that were answered meanwhile
    slowest_s: float = 0.0  # for one answer, in CPU of a reference
    failures: list[str] = field(default_factory=list)
    alive: bool = False
    grown_bytes: int = 0
    wrong: str = ""

    def __str__(self) -> str:
        return (
            f"{self.outcome.name} {self.code} resets {dict(self.resets)} statuses {dict(self.statuses)} in"
            f" {self.took_s:.2f} s; innocent: {self.innocent}, at most {self.slowest_s:.3f} s {self.failures};"
            f" alive: {self.alive}; {self.grown_bytes / MEGABYTE:.1f} MiB more {self.wrong}"
        )


def problems(stimulus: Stimulus, report: Report) -> list[str]:
    found = list(report.failures)
    if report.outcome not in stimulus.allowed:
        found.append(f"{report.outcome.name} is none of {sorted(one.name for one in stimulus.allowed)}")
    if report.took_s > stimulus.bound_s:
        found.append(f"took {report.took_s:.1f} s of {stimulus.bound_s} s")
    if not report.innocent:
        found.append("the innocent client had no answer")
    if report.slowest_s > INNOCENT_S:
        found.append(f"the innocent client waited for {report.slowest_s:.2f} s")
    if not report.alive:
        found.append("a new client is not served afterwards")
    if report.grown_bytes > stimulus.memory_bytes:
        found.append(f"the server grew by {report.grown_bytes / MEGABYTE:.0f} MiB")
    if report.wrong:
        found.append(report.wrong)
    return found


class Innocent:
    """Asks again and again on one connection, in a thread, until the end of the block."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.answered = 0
        self.slowest_s = 0.0
        self.failures: list[str] = []
        self.most_bytes = self.least_bytes = target.resident_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)

    def _run(self) -> None:
        try:
            with self.target.connect(patience_s=PATIENCE_S) as client:
                client.handshake()
                client.replenish = True
                stream = 1
                while not self._stop.is_set() or not self.answered:
                    began_s = self.target.worked_s()
                    client.request(stream)
                    end = client.until_end_of(stream)
                    status = client.status(stream)
                    if not isinstance(end, Frame) or status is None or status >= 400:
                        self.failures.append(f"the innocent client got {end}, {status}")
                        return
                    self.slowest_s = max(self.slowest_s, self.target.worked_s() - began_s)
                    self.answered += 1
                    self.most_bytes = max(self.most_bytes, self.target.resident_bytes())
                    stream += 2
                    self._stop.wait(0.02)
        except (OSError, AssertionError) as error:
            self.failures.append(f"the innocent client: {error!r}")


def is_served(target: Target) -> bool:
    try:
        with target.connect(patience_s=PATIENCE_S) as client:
            client.handshake()
            client.replenish = True
            client.request(1)
            client.until_end_of(1, PATIENCE_S if target.is_reference else INNOCENT_S)
            status = client.status(1)
            return status is not None and status < 400
    except (OSError, AssertionError):
        return False


def outcome_of(client: RawClient, waits_for: int = 0, pong_s: float = PONG_S) -> Outcome:
    """Reads until it is clear what became of the attack; a PING is to be answered within `pong_s`."""
    if waits_for and not client.is_ended:
        client.until_end_of(waits_for)
    # Twice, since the answer to the first may come before frames that are older.
    ponged = not client.is_ended and all(_is_pinged(client, mark, pong_s) for mark in (b"outcome1", b"outcome2"))
    if client.is_ended:
        return ENDED
    statuses = [status for stream in client.heads if (status := client.status(stream)) is not None]
    if any(code != Code.NO_ERROR for code in client.resets.values()) or any(status >= 400 for status in statuses):
        return REFUSED
    if not ponged:
        return STUCK
    return SERVED if statuses else TOLERATED


def _is_pinged(client: RawClient, mark: bytes, within_s: float) -> bool:
    """Whether the PING is answered before nothing comes for as long as the client has patience, and in time."""
    client.pump(ping_frame(mark), read=False)
    give_up_s = time.monotonic() + within_s
    while not client.is_ended and (left_s := give_up_s - time.monotonic()) > 0:
        event = client.next(min(left_s, client.patience_s))
        if event is SILENT:
            return False
        if isinstance(event, Frame) and event.type == Type.PING and event.is_ack and event.payload == mark:
            return True
    return False


def attack(stimulus: Stimulus, target: Target) -> Report:
    with Innocent(target) as innocent:
        began_s = time.monotonic()
        with target.connect() as client:
            if stimulus.handshake:
                client.handshake()
            stimulus.drive(client, target)
            pong_s = REFERENCE_PONG_S if target.is_reference else PONG_S
            report = Report(outcome_of(client, stimulus.waits_for, pong_s))
            report.took_s = time.monotonic() - began_s
            report.code = code_name(client.goaway.code) if client.goaway is not None else ""
            report.resets = Counter(code_name(code) for code in client.resets.values())
            statuses = [client.status(stream) for stream in client.heads]
            report.statuses = Counter(status for status in statuses if status is not None)
            if report.outcome in stimulus.allowed:
                report.wrong = stimulus.check(client)
    report.innocent, report.slowest_s, report.failures = innocent.answered, innocent.slowest_s, innocent.failures
    report.grown_bytes = innocent.most_bytes - innocent.least_bytes
    report.alive = is_served(target)
    return report


# --- floods ---


def flood(data: bytes, count: int, *, read: bool = True) -> Drive:
    return lambda client, target: _pump(client, data * count, read=read)


def _pump(client: RawClient, data: bytes, *, read: bool = True) -> None:
    client.pump(data, read=read)


def rapid_reset(count: int, *, end: bool = True) -> Drive:
    """CVE-2023-44487."""

    def drive(client: RawClient, target: Target) -> None:
        client.request(1)  # fills the table, so that the next ones have a few bytes each
        block = client.block(client.fields())
        streams = range(3, 3 + 2 * count, 2)
        client.pump(b"".join(headers_frame(stream, block, end=end) + reset_frame(stream) for stream in streams))

    return drive


def made_reset(bad: Callable[[int], bytes], count: int = 10_000) -> Drive:
    """CVE-2025-8671: the server is made to reset streams that it then has to go on with."""

    def drive(client: RawClient, target: Target) -> None:
        client.request(1)
        block = client.block(client.fields())
        streams = range(3, 3 + 2 * count, 2)
        client.pump(b"".join(headers_frame(stream, block) + bad(stream) for stream in streams))

    return drive


def continuation_flood(fragment: bytes, count: int) -> Drive:
    """CONTINUATION without END_HEADERS, for ever."""

    def drive(client: RawClient, target: Target) -> None:
        client.send(headers_frame(1, client.block(client.fields()), whole=False))
        client.pump(continuation_frame(1, fragment, whole=False) * count)

    return drive


def megabyte_in_single_bytes(client: RawClient, target: Target) -> None:
    block = client.block(client.fields()) + b"\x00\x01a" + integer(MEGABYTE, 7)
    client.send(headers_frame(1, block, whole=False))
    fragment = continuation_frame(1, b"x", whole=False)
    client.pump(fragment * (MEGABYTE - 1) + continuation_frame(1, b"x"))


def on_open_stream(data: Callable[[int], bytes], count: int, *, method: str = "POST") -> Drive:
    """A frame again and again on a stream that stays open."""

    def drive(client: RawClient, target: Target) -> None:
        client.request(1, method, end=False)
        client.pump(data(1) * count)

    return drive


def shaken_windows(client: RawClient, target: Target) -> None:
    """The initial window up and down while a hundred answers wait for it."""
    client.path = target.large
    client.send(settings_frame((Setting.INITIAL_WINDOW_SIZE, 0)))
    for stream in range(1, 201, 2):
        client.request(stream)
    pair = settings_frame((Setting.INITIAL_WINDOW_SIZE, 1)) + settings_frame((Setting.INITIAL_WINDOW_SIZE, 0))
    client.pump(pair * 2_000)


def held_windows(client: RawClient, target: Target) -> None:
    """A hundred large answers that are never taken."""
    client.path = target.large
    client.send(settings_frame((Setting.INITIAL_WINDOW_SIZE, 0)))
    for stream in range(1, 201, 2):
        client.request(stream)
    client.until_closed(1.0)


def unread_answers(client: RawClient, target: Target) -> None:
    """All the windows that there are, and nothing is read."""
    client.path = target.large
    client.send(settings_frame((Setting.INITIAL_WINDOW_SIZE, MAX_WINDOW)) + window_frame(0, MAX_WINDOW - 65_535))
    for stream in range(1, 201, 2):
        client.request(stream)
    threading.Event().wait(1.0)


def too_many_streams(client: RawClient, target: Target) -> None:
    limit = client.settings.get(Setting.MAX_CONCURRENT_STREAMS, 1_000)
    client.path = target.large
    client.send(settings_frame((Setting.INITIAL_WINDOW_SIZE, 0)))
    block = client.block(client.fields())
    again = client.block(client.fields())
    frames = [headers_frame(1, block), *(headers_frame(3 + 2 * number, again) for number in range(limit + 49))]
    client.pump(b"".join(frames))


def fifty_refused(client: RawClient) -> str:
    refused = sum(code in (Code.REFUSED_STREAM, Code.PROTOCOL_ERROR) for code in client.resets.values())
    return "" if client.is_ended or refused >= 50 else f"{refused} of 50 streams too many were refused"


# --- tables ---


def hpack_bomb(client: RawClient, target: Target) -> None:
    """A field of 4,000 bytes in the table, and 16,000 times its index."""
    fields = client.block(client.fields())
    client.send(headers_frame(1, fields + literal(b"a", b"x" * 4_000, 0x40)))
    client.until_end_of(1)
    block = client.block(client.fields(without=[":authority"]))
    client.send(headers_frame(3, block + integer(62, 7, 0x80) * 16_000))


def hpack_bomb_kept_low(client: RawClient, target: Target) -> None:
    """The same in a hundred blocks at once, each half of a usual limit of 64 KiB."""
    fields = client.block(client.fields())
    client.send(headers_frame(1, fields + literal(b"a", b"x" * 4_000, 0x40)))
    client.until_end_of(1)
    block = client.block(client.fields(without=[":authority"])) + integer(62, 7, 0x80) * 8
    client.pump(b"".join(headers_frame(stream, block) for stream in range(3, 203, 2)))


def block_with(tail: bytes, *, before: bytes = b"") -> Drive:
    """A request whose block has these bytes around it."""

    def drive(client: RawClient, target: Target) -> None:
        client.send(headers_frame(1, before + client.block(client.fields()) + tail))

    return drive


def forgotten_table(client: RawClient, target: Target) -> None:
    """An index of what an update of the size threw away."""
    client.send(headers_frame(1, client.block(client.fields()) + literal(b"a", b"b", 0x40)))
    client.until_end_of(1)
    client.send(headers_frame(3, integer(0, 5, 0x20) + integer(62, 7, 0x80)))


def entry_larger_than_table(client: RawClient, target: Target) -> None:
    """It empties the table, which is no error (RFC 7541, 4.4)."""
    block = client.block(client.fields())
    client.send(headers_frame(1, integer(64, 5, 0x20) + block + literal(b"a", b"b" * 100, 0x40)))


# --- streams and states ---


def streams(*numbers: int) -> Drive:
    """A request on each of these."""

    def drive(client: RawClient, target: Target) -> None:
        for number in numbers:
            client.request(number)

    return drive


def reused(client: RawClient, target: Target) -> None:
    client.request(1)
    client.until_end_of(1)
    client.request(1)


def frames(*parts: Callable[[RawClient], bytes]) -> Drive:
    def drive(client: RawClient, target: Target) -> None:
        client.send(b"".join(part(client) for part in parts))

    return drive


def _head(method: str = "GET", *, end: bool = True) -> Callable[[RawClient], bytes]:
    return lambda client: headers_frame(1, client.block(client.fields(method)), end=end)


def _trailers(*, end: bool = True) -> Callable[[RawClient], bytes]:
    return lambda client: headers_frame(1, client.block([("x-trailer", "1")]), end=end)


def _data(content: bytes = b"test", *, end: bool = False) -> Callable[[RawClient], bytes]:
    return lambda client: data_frame(1, content, end=end)


# --- cut bytes ---


def cut_preface(*, stall: bool) -> Drive:
    """A connection for each byte at which the preface can be cut; stalled, or closed at once."""

    def drive(client: RawClient, target: Target) -> None:
        whole = PREFACE + settings_frame((Setting.INITIAL_WINDOW_SIZE, 65_535))
        others = []
        for end in range(len(whole)):
            other = target.connect()
            other.send(whole[:end])
            if stall:
                others.append(other)
            else:
                other.close()
        client.handshake()
        client.request(1)
        client.until_end_of(1)
        for other in others:
            other.close()

    return drive


def cut_frames(*, stall: bool) -> Drive:
    """A connection for each byte at which a request can be cut; stalled, or closed at once."""

    def drive(client: RawClient, target: Target) -> None:
        end, whole = 0, b"?"
        others = []
        while end < len(whole):
            other = target.connect()
            whole = _whole_request(other)
            other.send(PREFACE + settings_frame() + SETTINGS_ACK + whole[:end])
            if stall:
                others.append(other)
            else:
                other.close()
            end += 1
        client.request(1)
        client.until_end_of(1)
        for other in others:
            other.close()

    return drive


def single_bytes(client: RawClient, target: Target) -> None:
    """A request, each byte in a segment of its own."""
    for byte in _whole_request(client):
        client.send(bytes([byte]))


def _whole_request(client: RawClient) -> bytes:
    head = headers_frame(1, client.block(client.fields("POST", [("content-length", "4")])), end=False)
    return ping_frame() + head + data_frame(1, b"test", end=True)


def anything_of(*outcomes: Outcome) -> frozenset[Outcome]:
    return frozenset(outcomes)


STOPPED = anything_of(ENDED, REFUSED)
ONLY_ENDED = anything_of(ENDED)
BOUNDED = anything_of(ENDED, REFUSED, SERVED, TOLERATED)  # it costs what it costs, and no more
HELD_BACK = anything_of(ENDED, STUCK)  # who does not read is not answered
UNREAD = BOUNDED | HELD_BACK
INDEX = integer(16, 7, 0x80)  # accept-encoding: gzip, deflate
COOKIE = integer(32, 4) + integer(3, 7) + b"a=b"

STIMULI = [
    Stimulus("rapid reset", rapid_reset(100_000), ONLY_ENDED),
    Stimulus("rapid reset of requests without an end", rapid_reset(100_000, end=False), ONLY_ENDED),
    Stimulus("made to reset by WINDOW_UPDATE of 0", made_reset(lambda stream: window_frame(stream, 0)), ONLY_ENDED),
    Stimulus(
        "made to reset by PRIORITY of 4 bytes",
        made_reset(lambda stream: frame(Type.PRIORITY, 0, stream, bytes(4))),
        ONLY_ENDED,
    ),
    Stimulus(
        "made to reset by DATA after the end", made_reset(lambda stream: data_frame(stream, b"x")), ONLY_ENDED
    ),
    Stimulus("CONTINUATION, empty", continuation_flood(b"", 100_000), ONLY_ENDED),
    Stimulus("CONTINUATION, one byte each", continuation_flood(INDEX, 100_000), ONLY_ENDED),
    Stimulus("CONTINUATION, large", continuation_flood(literal(b"a", b"x" * 15_000), 500), ONLY_ENDED),
    Stimulus(
        "a block of a megabyte in fragments of one byte",
        megabyte_in_single_bytes,
        STOPPED,
    ),
    Stimulus("SETTINGS", flood(settings_frame((Setting.INITIAL_WINDOW_SIZE, 65_535)), 100_000), BOUNDED),
    Stimulus(
        "SETTINGS, nothing read", flood(settings_frame((Setting.MAX_FRAME_SIZE, 16_384)), 500_000, read=False), UNREAD
    ),
    Stimulus("SETTINGS, 2,700 values each", flood(settings_frame(*[(4, 65_535)] * 2_700), 300), BOUNDED),
    Stimulus("SETTINGS with ACK that nobody asked for", flood(SETTINGS_ACK, 100_000), BOUNDED),
    Stimulus("SETTINGS that move the windows of a hundred streams", shaken_windows, BOUNDED),
    Stimulus("PING", flood(ping_frame(), 100_000), BOUNDED),
    Stimulus("PING, nothing read", flood(ping_frame(), 500_000, read=False), UNREAD),
    Stimulus("DATA, empty", on_open_stream(lambda stream: data_frame(stream, b""), 100_000), BOUNDED),
    Stimulus(
        "DATA, nothing but padding",
        on_open_stream(lambda stream: data_frame(stream, b"", pad=bytes(255)), 2_000),
        BOUNDED,
    ),
    Stimulus("HEADERS of trailers again and again", on_open_stream(lambda stream: headers_frame(stream, b"",
             end=False), 10_000), STOPPED),
    Stimulus("PRIORITY", flood(priority_frame(1, priority_field(0)), 100_000), BOUNDED),
    Stimulus(
        "PRIORITY of many streams",
        lambda client, target: _pump(
            client, b"".join(priority_frame(2 * number + 1, priority_field(0)) for number in range(100_000))
        ),
        BOUNDED,
    ),
    Stimulus("unknown frames", flood(frame(0x77, 0xFF, 0, b"x" * 8), 100_000), BOUNDED),
    Stimulus("unknown frames of 16 KiB on an idle stream", flood(frame(0x77, 0, 9, bytes(16_384)), 1_000), BOUNDED),
    Stimulus("GOAWAY", flood(goaway_frame(), 10_000), BOUNDED),
    Stimulus("WINDOW_UPDATE by 1", flood(window_frame(0, 1), 100_000), BOUNDED),
    Stimulus("WINDOW_UPDATE by 1 on a stream", on_open_stream(lambda stream: window_frame(stream, 1), 99_000), BOUNDED),
    Stimulus("WINDOW_UPDATE by 0", flood(window_frame(0, 0), 1_000), ONLY_ENDED),
    Stimulus("WINDOW_UPDATE by 0 on a stream", on_open_stream(lambda stream: window_frame(stream, 0), 1), STOPPED),
    Stimulus("the window of the connection overflows", flood(window_frame(0, MAX_WINDOW), 2), ONLY_ENDED),
    Stimulus(
        "the window of a stream overflows", on_open_stream(lambda stream: window_frame(stream, MAX_WINDOW), 2), STOPPED
    ),
    Stimulus(
        "the window of a stream overflows by SETTINGS",
        frames(
            lambda client: headers_frame(1, client.block(client.fields("POST")), end=False),
            lambda client: window_frame(1, MAX_WINDOW - 65_535),
            lambda client: settings_frame((Setting.INITIAL_WINDOW_SIZE, 65_536)),
        ),
        STOPPED,
    ),
    Stimulus(
        "16 MB of DATA, whatever the windows", on_open_stream(lambda stream: data_frame(stream, bytes(16_384)), 1_000),
        UNREAD,
    ),
    Stimulus("a hundred large answers, no window", held_windows, ANYTHING),
    Stimulus("a hundred large answers, nothing read", unread_answers, ANYTHING),
    Stimulus("fifty streams too many", too_many_streams, STOPPED, check=fifty_refused),
    Stimulus("HPACK bomb", hpack_bomb, STOPPED, waits_for=3),
    Stimulus("HPACK bombs that are just small enough", hpack_bomb_kept_low, BOUNDED),
    Stimulus("16,000 fields from the static table", block_with(INDEX * 16_000), STOPPED, waits_for=1),
    Stimulus("2,500 cookies", block_with(COOKIE * 2_500), BOUNDED, waits_for=1),
    Stimulus("table: 6,000 updates before a block", block_with(b"", before=b"\x20\x3f\xe1\x1f" * 3_000), BOUNDED,
             waits_for=1),
    Stimulus("table: an index that was thrown away", forgotten_table, ONLY_ENDED),
    Stimulus("table: an entry larger than the table", entry_larger_than_table, anything_of(SERVED), waits_for=1),
    Stimulus("table: an index of 2^70", block_with(b"\xff" + b"\xff" * 9 + b"\x7f"), ONLY_ENDED),
    Stimulus("table: an index with a thousand bytes", block_with(b"\xff" + b"\x80" * 1_000 + b"\x00"), STOPPED),
    Stimulus("table: a size of 2^70", block_with(b"", before=b"\x3f" + b"\xff" * 9 + b"\x7f"), ONLY_ENDED),
    Stimulus("a string of 2^62 bytes", block_with(b"\x00\x01a\x7f" + b"\xff" * 8 + b"\x3f"), ONLY_ENDED),
    Stimulus("a string longer than the block", block_with(b"\x00\x01a\x7f\x00abc"), ONLY_ENDED),
    Stimulus("a block that ends within an integer", block_with(b"\xff\x80"), ONLY_ENDED),
    Stimulus("an even stream", streams(2), ONLY_ENDED),
    Stimulus("streams out of order", streams(5, 3), ONLY_ENDED),
    Stimulus("a stream twice", reused, STOPPED),
    Stimulus("stream 0", streams(0), ONLY_ENDED),
    Stimulus("the last stream that there is", streams(MAX_WINDOW), anything_of(SERVED), waits_for=MAX_WINDOW),
    Stimulus("the last stream, then another", streams(MAX_WINDOW, 1), ONLY_ENDED),
    Stimulus("DATA after the end", frames(_head("POST"), _data()), STOPPED),
    Stimulus("DATA after trailers", frames(_head("POST", end=False), _data(), _trailers(), _data()), STOPPED),
    Stimulus("trailers without an end", frames(_head("POST", end=False), _data(), _trailers(end=False)), STOPPED),
    Stimulus("trailers twice", frames(_head("POST", end=False), _trailers(), _trailers()), STOPPED),
    Stimulus("a request twice in one stream", frames(_head("POST", end=False), _head("POST", end=False)), STOPPED),
    Stimulus(
        "PUSH_PROMISE",
        lambda client, target: _pump(client, frame(Type.PUSH_PROMISE, Flag.END_HEADERS, 1, b"\0\0\0\2\x82")),
        ONLY_ENDED,
    ),
    Stimulus("a frame of 16 MB", flood(frame(Type.PING, 0, 0, bytes(2**24 - 1)), 1), ONLY_ENDED),
    Stimulus("the preface cut at every byte, closed", cut_preface(stall=False), anything_of(SERVED), handshake=False),
    Stimulus("the preface cut at every byte, stalled", cut_preface(stall=True), anything_of(SERVED), handshake=False),
    Stimulus("the preface twice", flood(PREFACE, 1), ONLY_ENDED),
    Stimulus("HTTP/1.1 after the preface", flood(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 2), ONLY_ENDED),
    Stimulus("a request cut at every byte, closed", cut_frames(stall=False), anything_of(SERVED)),
    Stimulus("a request cut at every byte, stalled", cut_frames(stall=True), anything_of(SERVED)),
    Stimulus("a request in segments of one byte", single_bytes, anything_of(SERVED), waits_for=1),
]  # fmt: skip
