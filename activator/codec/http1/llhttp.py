"""The parsers of llhttp, by `httptools`, and their callbacks."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from httptools import HttpRequestParser, HttpResponseParser

Grammar: TypeAlias = HttpRequestParser | HttpResponseParser


class Delivery:
    """The object whose methods llhttp calls while it parses."""

    # httptools looks up each of these when a parser is made. None disables the callback; a missing attribute does so
    # too, but costs an AttributeError (1.3 instead of 0.6 us per parser).
    on_url: ClassVar[None] = None
    on_header: ClassVar[None] = None
    on_status: ClassVar[None] = None
    on_message_begin: ClassVar[None] = None
    on_chunk_header: ClassVar[None] = None
    on_chunk_complete: ClassVar[None] = None

    def __init__(self) -> None:
        self.head_complete: bool = False
        self.message_complete: bool = False
        self.pieces: list[bytes] = []  # body data that `MessageParser` has not taken yet

    def on_headers_complete(self) -> None:
        self.head_complete = True

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        self.message_complete = True
