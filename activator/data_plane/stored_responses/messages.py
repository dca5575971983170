"""Messages between data planes about stored responses (store.py).

A client may ask any data plane for its response, which then fetches it part by part from the one that stores it. The
tags are the names that replicas of former versions use on the wire.
"""

from __future__ import annotations

import msgspec


class StoredResponseQuery(msgspec.Struct, frozen=True, tag="AskAnswer", array_like=True):
    """A query for a part. `number`: chosen by the asker; `offset`: of the part in the body; 0: with the head.

    `method`: GET, or DELETE, which deletes the response.
    """

    number: int
    identity: str
    method: str
    offset: int


class StoredResponsePart(msgspec.Struct, frozen=True, tag="TellAnswer", array_like=True):
    """A part of a stored response, the reply to a query.

    `fields` as `Fields.block`; `length` of the whole body; `data`: the requested part; `trailers` with the first part;
    `status` 0: the body no longer exists; `is_kept`: the stored response itself, not a message about it.
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


AnswerMessage = StoredResponseQuery | StoredResponsePart
