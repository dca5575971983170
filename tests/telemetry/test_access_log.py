"""Lines of the access log: what they say, that each is one line, and that nobody waits for them."""

from __future__ import annotations

import json
import logging
import string
from contextlib import closing
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from activator.codec.message import Fields
from activator.config.log_template import FIELDS, TemplateError, template_fields
from activator.config.specs import QueueSpec
from activator.data_plane.headers.trace_context import trace_id_of
from activator.runtime.line_writer import LineWriter
from activator.runtime.reasons import Reason
from activator.telemetry.logs.access_log import (
    ACCESS_LOG_BATCH_BYTES,
    ACCESS_LOG_BATCH_S,
    ACCESS_LOG_TURN_MAX,
    AccessLog,
    LineFormat,
    entry_of,
)
from activator.telemetry.logs.entry import Entry
from activator.telemetry.logs.fields import ACCESS_LOG_FIELD_MAX, LoggedHeaders, header_of, printable
from activator.telemetry.logs.json_line import seconds
from activator.telemetry.logs.switch import AccessLogSwitch
from lb.tracker import READY
from tests.data_plane.proxy.proxy_fakes import Client, World, at_pod, request_head, response_head
from tests.sources import ROOT

WALL_S = 1_795_296_896.0625  # 2026-11-21T21:34:56.0625Z
TRACEPARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
ALL_FIELDS = " ".join(f'"{{{name}}}"' for name in FIELDS)


class Lines(LineWriter):
    """Keeps what it is given."""

    def __init__(self, bytes_max: int = 1 << 20) -> None:
        super().__init__("the access log", -1, bytes_max, logging.getLogger("activator.access_log"))
        self.batches: list[bytes] = []

    def write(self, batch: bytes | bytearray) -> None:
        self.batches.append(bytes(batch))

    def lines(self) -> list[str]:
        text = b"".join(self.batches).decode()
        assert not text or text.endswith("\n")
        return text.split("\n")[:-1]


class Logged:
    """A proxy whose requests are logged."""

    def __init__(self, kind: str = "json", bytes_max: int = 1 << 20, writer: Lines | None = None, **spec: Any) -> None:
        self.world = World(**spec)
        self.writer = writer or Lines(bytes_max)
        clock = self.world.clock
        self.log = AccessLog(kind, lambda: WALL_S, clock.defer, clock.call_later, self.writer, self.world.errors.append)
        self.world.proxy.observer = self.log

    def entries(self) -> list[dict[str, Any]]:
        self.log.flush()
        assert not self.world.errors
        return [json.loads(line) for line in self.writer.lines()]


def test_a_request_that_went_well() -> None:
    logged = Logged()
    world = logged.world
    world.pod()
    head = request_head("POST", length=3, User_Agent="curl/8", traceparent=TRACEPARENT)
    head.headers = head.headers.with_line(b"X-Request-Id", b"abc")
    exchange, _ = world.begin(head)
    exchange.request_body(b"abc")
    exchange.request_end([])
    world.clock.pass_time(0.25)
    world.answer(exchange, 404)
    assert logged.entries() == [
        {
            "time": "2026-11-21T21:34:56.062Z",
            "client": "192.0.2.1",
            "method": "POST",
            "host": "app.test",
            "target": "/",
            "protocol": "HTTP/1.1",
            "status": 404,
            "duration_s": 0.25,
            "namespace": "ns",
            "revision": "app",
            "pod": "p1",
            "address": "10.0.0.1:80",
            "pod_protocol": "HTTP/1.1",
            "request_bytes": 3,
            "response_bytes": 5,
            "first_byte_s": 0.25,
            "connect_s": 0.0,
            "request_id": "abc",
            "trace_id": "0123456789abcdef0123456789abcdef",
            "user_agent": "curl/8",
        }
    ]


def test_common() -> None:
    logged = Logged("common")
    logged.world.pod()
    head = request_head()
    head.target = b'/a"b\\c'
    exchange, _ = logged.world.begin(head)
    logged.world.answer(exchange)
    logged.log.flush()
    assert logged.writer.lines() == ['192.0.2.1 - - [21/Nov/2026:21:34:56 +0000] "GET /a\\"b\\\\c HTTP/1.1" 200 5']


def test_a_template() -> None:
    logged = Logged("{{{method}}} {target} {status} {reason} {cold}")
    logged.world.pod()
    exchange, _ = logged.world.begin()
    logged.world.answer(exchange)
    logged.log.flush()
    assert logged.writer.lines() == ["{GET} / 200 - false"]


@pytest.mark.parametrize("kind", ["json", "common", "{target}", "knative", "go:{{.Request.URL}}"])
def test_a_secret_in_the_target_is_masked(kind: str) -> None:
    logged = Logged(kind)
    logged.world.pod()
    head = request_head()
    head.target = b"/v1/models?api_key=s3cret&limit=20&%61ccess_token=0th3r"
    exchange, _ = logged.world.begin(head)
    logged.world.answer(exchange)
    logged.log.flush()
    (line,) = logged.writer.lines()
    shown = line.replace("\\u003D", "=").replace("\\u0026", "&")
    assert "/v1/models?api_key=***&limit=20&%61ccess_token=***" in shown


def test_refusals_and_those_who_leave() -> None:
    logged = Logged(queue=QueueSpec(depth=1, timeout_s=3.0))
    world = logged.world
    world.begin(request_head(host="nobody.test"))
    world.begin()  # waits
    world.begin()  # finds the line full
    world.clock.pass_time(4.0)
    third, _ = world.begin()
    third.client_gone()
    world.pod()
    fourth, _ = world.begin()
    at_pod(fourth).pod_failed(Reason.POD_CLOSED, "", False)
    entries = logged.entries()
    assert [(entry["status"], entry["reason"]) for entry in entries] == [
        (404, "no_route"),
        (503, "queue_full"),
        (504, "queue_timeout"),
        (499, "client_gone"),
        (502, "pod_closed"),
    ]
    assert "revision" not in entries[0] and "pod" not in entries[2]
    assert entries[2]["wait_s"] == pytest.approx(3.0, abs=0.1)
    assert entries[4]["pod"] == "p1"


def test_an_answer_that_is_cut_keeps_its_status() -> None:
    logged = Logged()
    logged.world.pod()
    exchange, client = logged.world.begin()
    at_pod(exchange).response_head(response_head(200, 10))
    at_pod(exchange).response_body(b"half")
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
    assert client.is_aborted()
    (entry,) = logged.entries()
    assert (entry["status"], entry["reason"], entry["response_bytes"]) == (200, "pod_closed", 4)


def test_a_cold_request_and_its_phases() -> None:
    logged = Logged()
    world = logged.world
    exchange, _ = world.begin()
    world.clock.pass_time(2.0)
    world.throttler.queue.pod_placed()
    world.clock.pass_time(1.0)
    world.throttler.queue.pod_ready()
    world.pod()
    world.clock.pass_time(0.5)
    world.answer(exchange)
    (entry,) = logged.entries()
    assert entry["cold"] is True
    assert [entry[name] for name in ("start_s", "ready_s", "wait_s", "first_byte_s")] == [2.0, 1.0, 3.0, 3.5]


def test_retries_are_counted_and_the_last_pod_named() -> None:
    logged = Logged()
    world = logged.world
    first = world.pod("p1", connects=False)
    world.pod("p2")
    exchange, _ = world.begin()
    assert [asked[0] for asked in first.asked] == [at_pod(exchange)]
    first.stop_waiting(at_pod(exchange))
    at_pod(exchange).connect_failed(Reason.CONNECT_FAILED)
    world.answer(exchange)
    (entry,) = logged.entries()
    assert (entry["retries"], entry["pod"], entry["status"]) == (1, "p2", 200)
    assert world.tracker("p1").state == READY


def test_a_request_that_another_revision_took_names_both() -> None:
    logged = Logged()
    world = logged.world
    world.pod()
    exchange, _ = world.begin()
    exchange.first_throttler, exchange.attempts = world.throttler, 1
    world.answer(exchange)
    (entry,) = logged.entries()
    assert (entry["first_revision"], entry["retries"], entry["revision"]) == ("ns/app", 1, "app")


def test_lines_are_written_in_batches() -> None:
    rest = "x" * 4_096  # so that a batch has few lines
    logged = Logged("{method}" + rest)
    world = logged.world
    world.pod(limit=10)
    for _ in range(3):
        exchange, _ = world.begin()
        world.answer(exchange)
    world.clock.turn()
    assert logged.writer.batches == []
    world.clock.pass_time(ACCESS_LOG_BATCH_S)
    assert logged.writer.batches == [3 * f"GET{rest}\n".encode()]
    world.clock.pass_time(1.0)
    assert len(logged.writer.batches) == 1
    for _ in range(ACCESS_LOG_BATCH_BYTES // len(rest) + 1):
        exchange, _ = world.begin()
        world.answer(exchange)
    assert len(logged.writer.batches) == 2, "a batch that is large enough does not wait"


def test_the_lines_of_a_turn_are_made_at_its_end_or_when_there_are_many() -> None:
    made: list[bytes] = []

    class Method(Client):
        def client_ip(self) -> str:
            made.append(b"line")
            return "192.0.2.1"

    logged = Logged("{client}")
    world = logged.world
    world.pod()

    def visit() -> None:
        exchange = world.proxy.open(request_head(), Method())
        exchange.request_end([])
        exchange.begin()
        world.answer(exchange)

    for _ in range(3):
        visit()
    assert not made, "the answers go first"
    world.clock.turn()
    assert len(made) == 3
    for _ in range(ACCESS_LOG_TURN_MAX):
        visit()
    assert len(made) == 3 + ACCESS_LOG_TURN_MAX, "one read may hold thousands of requests"
    world.clock.turn()
    visit()
    logged.log.flush()
    assert len(made) == len(logged.writer.lines()) == 4 + ACCESS_LOG_TURN_MAX


def test_what_nobody_takes_is_dropped_and_counted() -> None:
    logged = Logged("{method}", bytes_max=30)
    logged.world.pod()
    for _ in range(20):
        exchange, _ = logged.world.begin()
        logged.world.answer(exchange)
    logged.log.flush()
    assert 0 < len(logged.writer.lines()) < 20
    assert len(logged.writer.lines()) + logged.log.dropped_total == 20


class Nameless(Client):
    """Whose address cannot be told."""

    def client_ip(self) -> str:
        raise OSError("gone")


def test_a_failure_of_the_log_never_reaches_the_request() -> None:
    logged = Logged()
    logged.world.pod()
    client = Nameless()
    exchange = logged.world.proxy.open(request_head(), client)
    exchange.request_end([])
    exchange.begin()
    logged.world.answer(exchange)
    assert client.has_ended() and client.status == 200
    logged.log.flush()
    assert len(logged.world.errors) == logged.log.dropped_total == 1


def test_a_writer_that_raises_costs_its_lines_and_nothing_else() -> None:
    class Refusing(Lines):
        def write(self, batch: bytes | bytearray) -> None:
            raise RuntimeError("can't start new thread")

    logged = Logged(writer=Refusing())
    logged.world.pod()
    for _ in range(3):
        exchange, client = logged.world.begin()
        logged.world.answer(exchange)
        assert client.has_ended() and client.status == 200
    logged.log.flush()
    assert (len(logged.world.errors), logged.log.dropped_total) == (1, 3)


# --- one line, whatever is sent ---


WANTED = ["X-Request-Id", "Traceparent", "User-Agent", "Referer"]
UNWANTED = ["USER-AGENT", "referer", "User-Agents", "Refer", "X", "x-request-id", "X-Request_Id", "Te", "T", "Cookie"]

any_text = st.binary(max_size=60)


@given(any_text, any_text, any_text, st.sampled_from(["json", "common", ALL_FIELDS]))
@example(b"/\r\n127.0.0.1 - forged", b"\x1b[2J\x9b", "\u202e\u2028".encode(), "common")
def test_nothing_gets_out_of_its_line(target: bytes, agent: bytes, host: bytes, kind: str) -> None:
    logged = Logged(kind)
    logged.world.pod()
    head = request_head()
    exchange, _ = logged.world.begin(head)
    head.target = target
    head.authority = host
    head.headers = Fields.from_pairs([(b"User-Agent", agent.replace(b"\r\n", b"")), (b"Referer", target[:5])])
    logged.world.answer(exchange)
    logged.log.flush()
    assert not logged.world.errors
    (line,) = logged.writer.lines()
    assert line.isprintable()
    if kind == "json":
        entry = json.loads(line)
        assert entry.get("target", "") == printable(target)
        assert entry["status"] == 200
    elif kind == ALL_FIELDS:
        assert unescaped_quotes(line) == 2 * len(FIELDS)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["GET", 'PO"ST']), any_text, any_text, any_text, st.floats(0.0, 2.0), st.integers(0, 5)
        ),
        min_size=1,
        max_size=6,
    )
)
def test_json_says_what_there_is_to_say(requests: list[tuple[str, bytes, bytes, bytes, float, int]]) -> None:
    """Several of one log, since it remembers pieces of lines."""
    logged = Logged()
    logged.world.pod(limit=9)
    expected = []
    for method, target, host, agent, took_s, kind in requests:
        head = request_head()
        if kind > 3:
            head.takes_trailers = True
            head.headers = head.headers.with_line(b"Content-Type", b"application/grpc")
        exchange, client = logged.world.begin(head)
        head.method, head.target, head.authority = method.encode(), target, host
        head.headers = Fields.from_pairs([(b"User-Agent", agent.replace(b"\r\n", b"")), (b"Referer", target[:1])])
        if kind in (
            2,
            3,
        ):  # as we write it, with a client's own hyphen; or whatever a client says
            name = agent[:3].hex().encode() + b"-" + agent[3:6].hex().encode()
            head.headers = head.headers.with_line(b"X-Request-Id", name if kind == 2 else agent.replace(b"\r\n", b""))
        if kind == 1:
            head.headers = head.headers.with_line(b"X-Request-Id", b"first")
            head.headers = head.headers.with_line(b"X-Request-Id", b"second")
        logged.world.clock.pass_time(took_s)
        if kind == 5:
            head.headers = head.headers.with_line(b"Content-Type", b"application/grpc")
        if kind in (0, 5):
            exchange.client_gone()
        elif kind == 1:
            at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
        elif not exchange.over:
            logged.world.answer(exchange, 404)
        entry = entry_of(exchange, client, "2026-11-21T21:34:56.062Z", True)
        expected.append(msgspec.json.decode(msgspec.json.encode(entry)))
    entries = logged.entries()
    for found, wanted in zip(entries, expected, strict=True):
        assert set(found) == set(wanted)
        for name, value in wanted.items():
            assert found[name] == (pytest.approx(value, abs=2e-6) if name.endswith("_s") else value)


@given(st.lists(st.tuples(st.sampled_from([*WANTED, *UNWANTED]), st.sampled_from(["", "1", "2"])), max_size=8))
def test_headers_are_found_in_one_walk(fields: list[tuple[str, str]]) -> None:
    block = Fields.from_pairs([(name.encode(), value.encode()) for name, value in fields]).block
    said = LoggedHeaders(block)
    found = [said.request_id, said.traceparent, said.user_agent, said.referer]
    assert found == [header_of(block, b"\r\n" + name.lower().encode() + b":") for name in WANTED]


@given(st.floats(0.0, 1e9))
@example(0.9999996)
@example(59.9999999)
def test_seconds_are_written_to_the_microsecond(value_s: float) -> None:
    text = seconds(value_s)
    assert json.loads(text) == pytest.approx(value_s, abs=1e-6)
    assert len(text.partition(".")[2]) == 6


def unescaped_quotes(line: str) -> int:
    count = place = 0
    while place < len(line):
        count += line[place] == '"'
        place += 2 if line[place] == "\\" else 1
    return count


@given(st.text().map(str.encode))
def test_what_can_be_printed_is_left_alone(value: bytes) -> None:
    text = printable(value)
    assert text.isprintable()
    if value.decode().isprintable():
        assert text.encode() == value


def test_long_fields_are_cut() -> None:
    assert printable(b"x" * 100_000) == "x" * ACCESS_LOG_FIELD_MAX


@pytest.mark.parametrize(
    ("value", "trace_id"),
    [
        (TRACEPARENT.encode(), "0123456789abcdef0123456789abcdef"),
        (b"", ""),
        (b"00-0123456789ABCDEF0123456789abcdef-0123456789abcdef-01", ""),
        (b"00-00000000000000000000000000000000-0123456789abcdef-01", ""),
        (b"00x0123456789abcdef0123456789abcdef-0123456789abcdef-01", ""),
        (b"00-0123", ""),
    ],
)
def test_trace_ids(value: bytes, trace_id: str) -> None:
    assert trace_id_of(value) == trace_id


# --- templates ---


def test_templates_are_read() -> None:
    assert template_fields("{{x}} {method}-{status}{status}") == ["method", "status", "status"]


@given(st.text(alphabet=string.ascii_letters + "{}.[]!:0 \n", max_size=20))
def test_a_template_is_refused_or_can_be_filled(template: str) -> None:
    try:
        template_fields(template)
    except TemplateError:
        return
    entry = Entry("2026-11-21T21:34:56.062Z", "192.0.2.1", "GET", "h", "/", "HTTP/1.1", 200, 0.1)
    assert LineFormat(template).text(entry).isprintable()


def test_every_field_is_an_entry_and_documented() -> None:
    assert set(FIELDS) == set(Entry.__struct_fields__)
    page = (ROOT / "docs/access-log.md").read_text("utf-8")
    for name, meaning in FIELDS.items():
        assert f"| `{name}` | {meaning} |" in page


# --- the writer ---


def test_the_switch_counts_what_was_lost_before(capfd: pytest.CaptureFixture[str]) -> None:
    world = World()
    switch = AccessLogSwitch(
        world.proxy, lambda: WALL_S, world.clock.defer, world.clock.call_later, world.errors.append
    )
    with closing(switch):
        for kind in ("json", "{method}", "{method}"):
            switch.set(kind)
            observer = world.proxy.observer
            assert isinstance(observer, AccessLog)
            observer.dropped_total += 1
        assert switch.lost_total == 3
        switch.set(False)
        assert world.proxy.observer is None
        assert switch.lost_total == 3
