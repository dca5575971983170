"""Questions to other data planes about answers that they keep, and their questions to this one.

Rules
  1. A body travels in parts of PART_BYTES, each when it is asked for, so a slow client holds up its own answer only.
  2. Of one data plane at most ASKS_AT_ONCE_MAX parts are asked for at a time; the others wait for their turn, so that
     answers never fill the link, which is there for slots.
  3. Every question ends once: answered, given up by whoever asked, or failed since the other side has gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from activator.codec.message import Fields
from activator.data_plane.answers.messages import AnswerMessage, AskAnswer, TellAnswer
from activator.data_plane.answers.store import AnswerStore
from activator.runtime.units import KIB

PART_BYTES: Final = 64 * KIB
ASKS_AT_ONCE_MAX: Final = 32
ENDED_MAX: Final = 1024  # data planes that have ended, of which that is known


@mypyc_attr(allow_interpreted_subclasses=True)
class Asker:
    """Who waits for a part."""

    def told(self, part: TellAnswer) -> None:
        raise NotImplementedError

    def unreachable(self) -> None:
        """The data plane that has it cannot be asked now."""
        raise NotImplementedError


class _Link:
    """To one data plane."""

    def __init__(self) -> None:
        self.asked: dict[int, None] = {}  # questions that have not been answered
        self.waiting: deque[AskAnswer] = deque()


class AnswerLinks:
    """`store` has this data plane's own answers."""

    def __init__(self, store: AnswerStore) -> None:
        self._store = store
        self._send: Callable[[int, AnswerMessage], None] = _nowhere
        self._is_joined: bool = False
        self._members: frozenset[int] = frozenset()
        self._ended: dict[int, None] = {}
        self._links: dict[int, _Link] = {}
        self._askers: dict[int, Asker] = {}
        self._numbers: int = 0

    def join(self, number: int, send: Callable[[int, AnswerMessage], None]) -> None:
        """This one has a number among several, to which `send` sends."""
        self._store.number = number
        self._send = send
        self._is_joined = True

    # --- who is there ---

    def keep(self, members: set[int]) -> None:
        """There are these data planes, and no others."""
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
        for number in [*link.asked, *(question.number for question in link.waiting)]:
            asker = self._askers.pop(number, None)
            if asker is not None:
                asker.unreachable()

    def has_ended(self, member: int) -> bool:
        """It was one of several, and is not any more: what it had is lost. Of one that this data plane has never heard
        of, that is not known: it may be new.
        """
        return not self._is_joined or member in self._ended

    # --- questions ---

    def ask(self, member: int, identity: str, method: str, offset: int, asker: Asker) -> int:
        """The number of the question; 0: there is no link now."""
        link = self._links.get(member)
        if link is None:
            return 0
        self._numbers += 1
        number = self._numbers
        self._askers[number] = asker
        link.waiting.append(AskAnswer(number, identity, method, offset))
        self._send_some(member, link)
        return number

    def give_up(self, member: int, number: int) -> None:
        """Nobody waits for it any more."""
        if self._askers.pop(number, None) is None:
            return
        link = self._links.get(member)
        if link is not None:
            link.asked.pop(number, None)
            self._send_some(member, link)

    def receive(self, member: int, message: AnswerMessage) -> None:
        """From another data plane."""
        if isinstance(message, AskAnswer):
            self._send(member, self._answered(message))
            return
        link = self._links.get(member)
        if link is not None:
            link.asked.pop(message.number, None)
            self._send_some(member, link)
        asker = self._askers.pop(message.number, None)
        if asker is not None:
            asker.told(message)

    # --- within ---

    def _send_some(self, member: int, link: _Link) -> None:
        while link.waiting and len(link.asked) < ASKS_AT_ONCE_MAX:
            question = link.waiting.popleft()
            if question.number in self._askers:
                link.asked[question.number] = None
                self._send(member, question)

    def _answered(self, question: AskAnswer) -> TellAnswer:
        store = self._store
        answer = store.find(question.identity)
        if question.method == "DELETE":
            if answer is not None:
                store.delete(answer)
                return TellAnswer(question.number, 204, b"No Content", b"", False, 0, b"", [])
            head, body = store.absent(question.identity)
        elif answer is None:
            if question.offset > 0:
                return TellAnswer(question.number, 0, b"", b"", False, 0, b"", [])
            head, body = store.absent(question.identity)
        elif not answer.is_done:
            head, body = store.state(answer)
        else:
            kept = answer.head
            assert kept is not None
            head, body = kept, bytes(answer.body[question.offset : question.offset + PART_BYTES])
            if question.offset == 0:
                store.read_begins(answer)
                store.read_ends(answer)
            length = len(answer.body)
            return TellAnswer(
                question.number,
                head.status,
                head.reason_phrase,
                head.headers.block,
                head.has_body,
                length,
                body,
                answer.trailers,
                True,
            )
        return TellAnswer(
            question.number, head.status, head.reason_phrase, head.headers.block, head.has_body, len(body), body, []
        )


def fields_of(part: TellAnswer) -> Fields:
    """The fields of the answer that a first part tells of."""
    return Fields(part.fields)


def _nowhere(member: int, message: AnswerMessage) -> None:
    raise AssertionError(f"there is no data plane {member}: {message!r}")
