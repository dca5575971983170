"""A gRPC service for tests and the cases of gRPC's interop document, without a library and without protobuf.

A message is a line of JSON and a payload. Requests say what they want back: `answers` (sizes of the messages), `status`
(code and text), `sleep_s`; a stream with a message that is `watched` is counted once it has ended, in whatever way.
What is in the metadata under ECHO_INITIAL and ECHO_TRAILING comes back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

SERVICE: Final = "test.Interop"
UNARY, CLIENT_STREAM, SERVER_STREAM, DUPLEX = "Unary", "ClientStream", "ServerStream", "Duplex"
ENDED: Final = "Ended"  # answers how many streams that are watched have ended

ECHO_INITIAL: Final = "x-grpc-test-echo-initial"
ECHO_TRAILING: Final = "x-grpc-test-echo-trailing-bin"
INITIAL_VALUE: Final = "test_initial_metadata_value"
TRAILING_VALUE: Final = b"\xab\xab\xab"

REQUEST_SIZES: Final = (27_182, 8, 1_828, 45_904)
ANSWER_SIZES: Final = (31_415, 9, 2_653, 58_979)
LARGE_REQUEST, LARGE_ANSWER = 271_828, 314_159
CALLS_AT_ONCE: Final = 100

OK, CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED = 0, 1, 2, 4, 12
PLAIN_STATUS: Final = (UNKNOWN, "test status message")
SPECIAL_STATUS: Final = (UNKNOWN, "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n")

CASES: Final = (
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "cancel_after_begin",
    "cancel_after_first_response",
    "timeout_on_sleeping_server",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
    "custom_metadata",
    # Not of that document:
    "many_at_once",  # a hundred calls on one connection
    "cancellation_reaches_server",
)


def path(method: str, service: str = SERVICE) -> str:
    return f"/{service}/{method}"


def message(size: int = 0, **head: Any) -> bytes:
    return json.dumps(head).encode() + b"\n" + bytes(size)


@dataclass(frozen=True)
class Message:
    head: dict[str, Any]
    size: int  # of the payload

    @property
    def answers(self) -> list[bytes]:
        return [message(size) for size in self.head.get("answers", [])]

    @property
    def status(self) -> tuple[int, str] | None:
        found = self.head.get("status")
        return None if found is None else (found[0], found[1])

    @property
    def watched(self) -> bool:
        return bool(self.head.get("watched"))

    @property
    def sleep_s(self) -> float:
        return float(self.head.get("sleep_s", 0))


def parsed(data: bytes) -> Message:
    """An empty message is one that wants nothing."""
    if not data:
        return Message({}, 0)
    head, _, payload = data.partition(b"\n")
    return Message(json.loads(head), len(payload))


def size_of(data: bytes) -> int:
    return parsed(data).size


def count_in(data: bytes) -> int:
    return int(parsed(data).head["count"])


class WrongError(Exception):
    """A case went otherwise than it must."""


def must(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise WrongError(f"{what}: {found!r} instead of {wanted!r}")


def must_be_sizes(answers: Iterable[bytes], sizes: Iterable[int]) -> None:
    must([size_of(one) for one in answers], list(sizes), "sizes of the answers")
