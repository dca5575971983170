"""Queries between data planes about stored responses.

Rules
  1. A body is transferred in parts of PART_BYTES on request, so a slow client only delays its own response.
  2. At most ASKS_AT_ONCE_MAX parts are requested of one data plane at a time, and further queries wait, so that
     responses do not block the link, which serves slots first of all.
  3. Every query ends once: answered, given up by the request that needs it, or failed because the link has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from activator.codec.message import Fields
from activator.data_plane.stored_responses.messages import AnswerMessage, StoredResponsePart, StoredResponseQuery
from activator.data_plane.stored_responses.store import ResponseStore
from activator.runtime.units import KIB

PART_BYTES: Final = 64 * KIB
ASKS_AT_ONCE_MAX: Final = 32
ENDED_MAX: Final = 1024  # how many ended data planes are remembered


@mypyc_attr(allow_interpreted_subclasses=True)
class PartReceiver:
    """The recipient of a part."""

    def part_received(self, part: StoredResponsePart) -> None:
        raise NotImplementedError

    def unreachable(self) -> None:
        """Handle a data plane that cannot be reached now."""
        raise NotImplementedError


class _Link:
    """The queries to one data plane."""

    def __init__(self) -> None:
        self.sent: dict[int, None] = {}  # numbers of the queries without a reply
        self.waiting: deque[StoredResponseQuery] = deque()  # not sent yet


class StoredResponseLinks:
    """The queries of one data plane; `store` has its own stored responses."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._send: Callable[[int, AnswerMessage], None] = _send_nothing
        self._is_joined: bool = False
        self._members: frozenset[int] = frozenset()
        self._ended: dict[int, None] = {}  # former data planes, the oldest first
        self._links: dict[int, _Link] = {}  # by data plane
        self._receivers: dict[int, PartReceiver] = {}  # by the number of the query
        self._numbers: int = 0  # number of the last query

    def join(self, number: int, send: Callable[[int, AnswerMessage], None]) -> None:
        """Join a group of data planes with this number; `send` sends to them."""
        self._store.number = number
        self._send = send
        self._is_joined = True

    # --- data planes ---

    def set_members(self, members: set[int]) -> None:
        """Set the data planes that exist."""
        for member in self._members - members:
            self._ended[member] = None
            if len(self._ended) > ENDED_MAX:
                del self._ended[next(iter(self._ended))]
        self._members = frozenset(members)

    def linked(self, member: int) -> None:
        self._links[member] = _Link()

    def unlinked(self, member: int) -> None:
        link = self._links.pop(member, None)
        if link is None:
            return
        for number in [*link.sent, *(query.number for query in link.waiting)]:
            receiver = self._receivers.pop(number, None)
            if receiver is not None:
                receiver.unreachable()

    def has_ended(self, member: int) -> bool:
        """Return True if the data plane was a member and has ended, so that its responses are lost.

        False if this data plane has never known it, because it may be new.
        """
        return not self._is_joined or member in self._ended

    # --- queries ---

    def ask(self, member: int, identity: str, method: str, offset: int, receiver: PartReceiver) -> int:
        """Send a query, and return its number; 0 if there is no link."""
        link = self._links.get(member)
        if link is None:
            return 0
        self._numbers += 1
        number = self._numbers
        self._receivers[number] = receiver
        link.waiting.append(StoredResponseQuery(number, identity, method, offset))
        self._send_waiting(member, link)
        return number

    def give_up(self, member: int, number: int) -> None:
        """Drop a query that no request waits for."""
        if self._receivers.pop(number, None) is None:
            return
        link = self._links.get(member)
        if link is not None:
            link.sent.pop(number, None)
            self._send_waiting(member, link)

    def receive(self, member: int, message: AnswerMessage) -> None:
        """Handle a message of another data plane."""
        if isinstance(message, StoredResponseQuery):
            self._send(member, self._reply_to(message))
            return
        link = self._links.get(member)
        if link is not None:
            link.sent.pop(message.number, None)
            self._send_waiting(member, link)
        receiver = self._receivers.pop(message.number, None)
        if receiver is not None:
            receiver.part_received(message)

    # --- within ---

    def _send_waiting(self, member: int, link: _Link) -> None:
        """Send waiting queries, as far as ASKS_AT_ONCE_MAX allows."""
        while link.waiting and len(link.sent) < ASKS_AT_ONCE_MAX:
            query = link.waiting.popleft()
            if query.number in self._receivers:
                link.sent[query.number] = None
                self._send(member, query)

    def _reply_to(self, query: StoredResponseQuery) -> StoredResponsePart:
        """Return the reply to a query of another data plane."""
        store = self._store
        answer = store.find(query.identity)
        if query.method == "DELETE":
            if answer is not None:
                store.delete(answer)
                return StoredResponsePart(query.number, 204, b"No Content", b"", False, 0, b"", [])
            head, body = store.absence_response(query.identity)
        elif answer is None:
            if query.offset > 0:
                return StoredResponsePart(query.number, 0, b"", b"", False, 0, b"", [])
            head, body = store.absence_response(query.identity)
        elif not answer.is_done:
            head, body = store.pending_response(answer)
        else:
            stored_head = answer.head
            assert stored_head is not None
            head, body = stored_head, bytes(answer.body[query.offset : query.offset + PART_BYTES])
            if query.offset == 0:
                store.read_begins(answer)
                store.read_ends(answer)
            length = len(answer.body)
            return StoredResponsePart(
                query.number,
                head.status,
                head.reason_phrase,
                head.headers.block,
                head.has_body,
                length,
                body,
                answer.trailers,
                True,
            )
        return StoredResponsePart(
            query.number, head.status, head.reason_phrase, head.headers.block, head.has_body, len(body), body, []
        )


def fields_of(part: StoredResponsePart) -> Fields:
    """Return the header fields in a first part."""
    return Fields(part.fields)


def _send_nothing(member: int, message: AnswerMessage) -> None:
    raise AssertionError(f"there is no data plane {member}: {message!r}")
