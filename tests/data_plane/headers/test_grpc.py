"""gRPC's deadlines and refusals."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.codec.message import UNKNOWN_LENGTH, Fields, Headers, RequestHead, ResponseHead
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.headers.grpc import (
    STATUS_NAMES,
    edit_timeout,
    is_grpc,
    refusal,
    status_of,
    timeout_of,
)
from activator.runtime.reasons import GrpcStatus, Reason


def head(*pairs: tuple[bytes, bytes]) -> RequestHead:
    return RequestHead(b"POST", b"/s/m", b"app.test", Fields.from_pairs(list(pairs)), -1, True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"4m", 0.004),
        (b"5u", 5e-6),
        (b"6n", 6e-9),
        (b"99999999S", 99_999_999.0),
        (b"0S", 0.0),
        (b"007S", 7.0),
        (b" 1S ", 1.0),
        *((bad, None) for bad in (b"", b"S", b"1", b"1s", b"1h", b"-1S", b"+1S", b"1.5S", b"1 S", b"100000000S")),
        *((bad, None) for bad in (b"1SS", b"\xb2S", b"1\xc2\xb2S", b"0x1S", b"1_0S", b"infS", b"1S, 2S")),
    ],
)
def test_timeouts(value: bytes, seconds: float | None) -> None:
    found = timeout_of(head((b"grpc-timeout", value)))
    assert found is None if seconds is None else found == pytest.approx(seconds)


def test_no_timeout() -> None:
    assert timeout_of(head()) is None
    assert timeout_of(head((b"x-grpc-timeout", b"1S"))) is None


@given(st.floats(-10.0, 1e12), st.sampled_from([b"grpc-timeout", b"Grpc-Timeout"]), st.booleans(), st.booleans())
def test_the_rest_is_told_in_the_same_place(left_s: float, name: bytes, first: bool, last: bool) -> None:
    before = [(b"a", b"grpc-timeout: 9S")] if not first else []
    behind = [(b"b", b"2")] if not last else []
    it = head(*before, (name, b"10S"), *behind)
    edits = HeadEdits()
    edit_timeout(edits, left_s)
    it = edits.apply(it)
    pairs = it.headers.pairs()
    assert pairs[: len(before)] == before and pairs[len(before) + 1 :] == behind
    told = timeout_of(it)
    assert told is not None and len(pairs) == len(before) + 1 + len(behind)
    if left_s > 99_999.0:
        assert told <= left_s or told == pytest.approx(left_s, abs=1e-3)
    elif left_s > 1e-6:
        assert left_s - 1e-3 <= told <= left_s + 1e-9
    else:
        assert told == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"Application/GRPC;charset=x", True),
        (b"application/grpc-web", False),
        (b"application/grpc-web+proto", False),
        (b"application/grpcx", False),
        (b"application/json", False),
        (b"", False),
    ],
)
def test_what_is_grpc(value: bytes, expected: bool) -> None:
    assert is_grpc(head((b"content-type", value))) is expected
    assert not is_grpc(head())


def answered(status: int, *pairs: tuple[bytes, bytes]) -> ResponseHead:
    return ResponseHead(status, b"", Fields.from_pairs(list(pairs)), UNKNOWN_LENGTH, True)


@pytest.mark.parametrize(
    ("answer", "trailers", "expected"),
    [
        (answered(200), [(b"grpc-status", b"0")], "OK"),
        (answered(200), [(b"x", b"1"), (b"Grpc-Status", b" 5 ")], "NOT_FOUND"),
        (answered(200, (b"grpc-status", b"13")), [], "INTERNAL"),
        (answered(200, (b"grpc-status", b"13")), [(b"grpc-status", b"16")], "UNAUTHENTICATED"),
        (answered(200), [], "UNKNOWN"),
        (answered(503), [], "UNAVAILABLE"),
        (answered(404), [(b"x", b"1")], "UNIMPLEMENTED"),
        (answered(200), [(b"grpc-status", b"17")], "UNKNOWN"),
        (answered(200), [(b"grpc-status", b"-1")], "UNKNOWN"),
        (answered(200), [(b"grpc-status", b"0" * 5_000)], "UNKNOWN"),
        (answered(200), [(b"grpc-status", b"")], "UNKNOWN"),
        (answered(200), [(b"grpc-status", "\u0665".encode())], "UNKNOWN"),
        (None, [], "UNKNOWN"),
    ],
)
def test_what_a_call_came_to(answer: ResponseHead | None, trailers: Headers, expected: str) -> None:
    assert STATUS_NAMES[status_of(answer, trailers)] == expected


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_status(reason: Reason) -> None:
    assert 0 < reason.grpc_status <= 16
    answer = refusal(reason, b"because\n", 3)
    fields = dict(answer.headers.pairs())
    assert answer.status == 200 and not answer.has_body and answer.content_length < 0
    assert fields[b"grpc-status"] == b"%d" % reason.grpc_status and fields[b"grpc-message"] == b"because"
    assert fields[b"activator-reason"] == reason.value.encode() and fields[b"content-type"] == b"application/grpc"
    assert fields.get(b"grpc-retry-pushback-ms") == (b"3000" if reason.grpc_status == GrpcStatus.UNAVAILABLE else None)
    assert b"grpc-retry-pushback-ms" not in dict(refusal(reason, b"", 0).headers.pairs())


def test_what_the_documentation_says_of_statuses() -> None:
    assert Reason.QUEUE_FULL.grpc_status == Reason.DRAINING.grpc_status == GrpcStatus.UNAVAILABLE
    assert Reason.QUEUE_TIMEOUT.grpc_status == Reason.FIRST_BYTE_TIMEOUT.grpc_status == GrpcStatus.DEADLINE_EXCEEDED
    assert Reason.NO_ROUTE.grpc_status == 12 and Reason.BODY_TOO_LARGE.grpc_status == 8
    assert Reason.BAD_REQUEST.grpc_status == Reason.BAD_RESPONSE.grpc_status == 13


@given(st.binary(max_size=30))
def test_messages_are_percent_encoded(message: bytes) -> None:
    fields = dict(refusal(Reason.INTERNAL, message, 0).headers.pairs())
    told = fields[b"grpc-message"]
    assert all(0x20 <= byte <= 0x7E for byte in told)
    assert unquote_to_bytes(told) == message.strip()
