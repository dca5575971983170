"""What data planes say to each other about answers that one of them keeps (store.py).

A client may ask any of them for the state of its request: the one that is asked asks the one that has it, part by part.
"""

from __future__ import annotations

import msgspec


class AskAnswer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`number`: of the question, the asker's own; `offset`: the part of the body from there on; 0: the head as well.

    `method`: GET, or DELETE, which forgets it.
    """

    number: int
    identity: str
    method: str
    offset: int


class TellAnswer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to that question. `fields` as `Fields.block`; `length` of the whole body; `data`: the part of it that
    was asked for; `trailers` with the first part; `status` 0: the body is not here any more; `is_kept`: it is the
    answer itself, and not something about it.
    """

    number: int
    status: int
    phrase: bytes
    fields: bytes
    has_body: bool
    length: int
    data: bytes
    trailers: list[tuple[bytes, bytes]]
    is_kept: bool = False


AnswerMessage = AskAnswer | TellAnswer
