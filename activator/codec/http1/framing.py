"""A stream of bytes cut into messages, and each piece fed to llhttp: what request and response parser share.

Rules
  1. Pieces are cut where a head ends, where a body of known length ends and where a chunked body ends, so that the
     boundary of a message is always a boundary between two calls of llhttp. Thus every limit is counted before llhttp
     sees the bytes, and it is known at any time which message a byte belongs to.
  2. Only what llhttp delivered is handed on. Where a message ends is computed twice, here and by llhttp; a message on
     which the two disagree is refused.
  3. The first line is judged by our own code before llhttp sees any of it: it is held until it is complete (bounded by
     the subclass); what follows is streamed, so that a bad byte or line is refused at once. The fields are judged when
     all are there: of a head that comes in pieces, what has come is held (bounded by `head_max`).
  4. The state moves on before a sink is called: the sink may look at it, or pause the parser.
  5. Body data reach the sink once per call and message, joined, however small its chunks are.
  6. One call parses no more than a bounded number of chunks. Where something is left `needs_turn` says so, and what is
     left is kept for `resume`.
  7. llhttp says where head and message end and delivers the body, nothing else. The fields' block is cut from the bytes
     between the first line's end and the head's, both found here; llhttp's head ends at the same byte or the message is
     refused. So nothing from behind a head can get into it.
  8. Where llhttp is stricter than HTTP, it is fed other bytes in the place of those that were judged here: first lines
     and repeated lengths (`_for_grammar`), chunk sizes without their extensions, no trailers, a body behind
     an upgrade.
"""

from __future__ import annotations

from typing import ClassVar, Final, TypeAlias

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser, HttpResponseParser
from mypy_extensions import mypyc_attr

from activator.codec.http1.chunks import ChunkTracker
from activator.codec.http1.fields import FieldJudge, end_of_line
from activator.codec.message import Headers
from activator.runtime.errors import WireError
from activator.runtime.reasons import Reason
from activator.runtime.units import KIB

TRAILERS_BYTES_MAX: Final = 8 * KIB

Grammar: TypeAlias = HttpRequestParser | HttpResponseParser

HEAD: Final = 0
LENGTH: Final = 1
CHUNKED: Final = 2
UNTIL_EOF: Final = 3

_LINE_END: Final = b"\r\n"
_LENGTH_NAME: Final = b"content-length:"
_HEAD_END: Final = b"\r\n\r\n"
_NOT_IN_LINE: Final = bytes(range(0x09)) + bytes(range(0x0A, 0x20)) + b"\x7f"  # a reason phrase may hold a HTAB


class Delivery:
    """The callbacks that llhttp is given."""

    # httptools asks for each of these when a parser is made: a plain None is found at once and switches the call off,
    # whereas a missing name costs an AttributeError each (0.6 instead of 1.3 us per parser).
    on_url: ClassVar[None] = None
    on_header: ClassVar[None] = None
    on_status: ClassVar[None] = None
    on_message_begin: ClassVar[None] = None
    on_chunk_header: ClassVar[None] = None
    on_chunk_complete: ClassVar[None] = None

    def __init__(self) -> None:
        self.head_complete: bool = False
        self.message_complete: bool = False
        self.pieces: list[bytes] = []  # of the body, since they were last taken

    def on_headers_complete(self) -> None:
        self.head_complete = True

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        self.message_complete = True


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageParser:
    """Cuts the stream; the subclass judges and delivers."""

    def __init__(
        self,
        bad: Reason,
        too_large: Reason,
        coding: Reason,
        head_max: int,
        fields_max: int,
        blank_max: int,
        chunks: ChunkTracker,
        takes_claims: bool,
        streams_bytes: bool,
    ) -> None:
        self._bad = bad
        self._streams_bytes = streams_bytes  # a head that is not complete is fed as it comes; else line by line
        self._too_large = too_large
        self._head_max = head_max
        self._blank_max = blank_max  # bytes of empty lines before a head
        self._line_ends_max = fields_max + 2  # of a head: after its first line, its fields and the empty line
        self._fields = FieldJudge(bad, too_large, coding, fields_max, takes_claims)
        self._delivery = Delivery()
        self._chunks = chunks
        self._grammar: Grammar = self._new_grammar()
        self.in_head: bool = False  # a part of a head has come, its end has not
        self.in_message: bool = False  # a message has begun and has not ended
        self.body_remaining: int = 0  # bytes of the body still to come; -1 where only the stream shows it
        self._state: int = HEAD
        self._stopped: bool = False  # nothing more is to be parsed in this call
        self.needs_turn: bool = False  # it has had its share of this turn, and something is left to be parsed
        self._grammar_spoilt: bool = False  # llhttp does not believe that a next message follows
        self._error: WireError | None = None  # the connection is spoilt
        # what has been fed and not been parsed, while the parser is paused or needs a turn
        self._kept: bytes = b""
        self._kept_from: int = 0  # the rest begins here
        # of a head that comes in several pieces
        self._begun: bytearray = bytearray()
        self._fed: int = 0  # of these bytes, to llhttp; none before the first line is judged
        self._line_judged: bool = False
        self._line_ends: int = 0
        # of empty lines before a head
        self._blank_bytes: int = 0
        self._blank_begun: bool = False  # the CR is in, the LF is not

    # --- for the subclass to say ---

    def _new_grammar(self) -> Grammar:
        raise NotImplementedError

    def _judge_line(self, line: bytes) -> None:
        """The first line is complete."""
        raise NotImplementedError

    def _judge_line_begun(self, line: bytes) -> None:
        """The first line has grown to these bytes and is not complete."""
        raise NotImplementedError

    def _for_grammar(self, head: bytes, line_end: int) -> bytes:
        """What llhttp is fed of a head, the end of whose first line is given; the line has been judged."""
        raise NotImplementedError

    def _judge_head(self) -> None:
        """The head is complete: judge it, say by `_state` and `body_remaining` what follows (HEAD: nothing)."""
        raise NotImplementedError

    def _ends_with_head(self) -> bool:
        """The message judged last has no body, whatever llhttp takes from its fields."""
        raise NotImplementedError

    def _deliver_head(self) -> None:
        raise NotImplementedError

    def _deliver_body(self, data: bytes) -> None:
        raise NotImplementedError

    def _deliver_end(self, trailers: Headers, bytes_left: int) -> None:
        """The message has ended, and so many bytes of this call stand after it."""
        raise NotImplementedError

    def _take_rest(self, data: bytes, pos: int) -> WireError | None:
        """The call has ended before the data: keep the rest of them from `pos` on, or say what is wrong with it."""
        raise NotImplementedError

    def _forget_sink(self) -> None:
        """Deliver nothing from here on."""
        raise NotImplementedError

    # --- what is left for later ---

    def has_unparsed(self) -> bool:
        """Something was fed that has not been parsed."""
        return len(self._kept) > 0

    def take_unparsed(self) -> bytes:
        """What was fed and not parsed; from here on it is the caller's."""
        data = self._kept[self._kept_from :]
        self._kept = b""
        self._kept_from = 0
        return data

    def retire(self) -> None:
        """The connection is gone: keep nothing of it, and refer to it no more (no cycle is left for the collector)."""
        self._kept = b""
        self._begun = bytearray()
        self._delivery.pieces = []
        self._forget_sink()

    def _keep(self, data: bytes, pos: int) -> None:
        """Keep the rest of `data` from `pos` on; copied only when half of it is done, so that all copies are linear."""
        if 2 * pos > len(data):
            data = data[pos:]
            pos = 0
        self._kept = data
        self._kept_from = pos

    def _keep_more(self, data: bytes) -> None:
        """Keep what has come meanwhile behind what is kept already."""
        self._kept = self.take_unparsed() + data

    def _feed_kept(self) -> WireError | None:
        """Go on with what was kept, if there is anything."""
        data = self._kept
        if not data or self._error is not None:
            return self._error
        pos = self._kept_from
        self._kept = b""
        self._kept_from = 0
        return self._feed_from(data, pos)

    def _feed_from(self, data: bytes, pos: int) -> WireError | None:
        """Parse `data` from `pos` on; None unless the connection is spoilt."""
        try:
            pos = self._parse(data, pos)
        except WireError as error:
            return self._spoil(error.with_traceback(None))  # its frames hold the parser: a cycle
        return self._take_rest(data, pos) if pos < len(data) else None

    def _spoil(self, error: WireError) -> WireError:
        """The connection is spoilt: nothing of it is parsed any more."""
        self._error = error
        return error

    # --- cutting ---

    def _parse(self, data: bytes, pos: int) -> int:
        """Parse from `pos` until the data end or `_stopped`; the position reached."""
        size = len(data)
        while pos < size and not self._stopped:
            if self._state == HEAD:
                pos = self._read_head(data, pos)
            else:
                pos = self._read_body(data, pos)
        return pos

    def _read_head(self, data: bytes, pos: int) -> int:
        if self.in_head:
            return self._read_head_piece(data, pos)
        if self._blank_begun or data[pos] <= 13:
            pos = self._skip_blank_lines(data, pos)
            if pos == len(data):
                return pos
        self.in_head = True
        self.in_message = True
        self._blank_bytes = 0
        self._grammar_spoilt = False
        self._delivery.head_complete = False
        self._delivery.message_complete = False
        stop = min(len(data), pos + self._head_max)
        line_end = end_of_line(data, pos, stop)
        if line_end >= 0:
            self._judge_line(data[pos:line_end])
            try:
                end = self._fields.read(data, line_end, stop)
            except WireError:
                if data.find(_HEAD_END, line_end, stop) >= 0:
                    raise
                end = -1  # reported when the head is complete, as if it had come byte by byte
            if end >= 0:  # the usual case: a whole head in one read
                head = data if end == len(data) and pos == 0 else data[pos:end]
                self._feed(self._for_grammar(head, line_end - pos))
                self._end_head(len(data) - end)
                return end
        self._begun = bytearray()
        self._fed = 0
        self._line_judged = False
        self._line_ends = 0
        return self._read_head_piece(data, pos)

    def _read_head_piece(self, data: bytes, pos: int) -> int:
        begun = self._begun
        known = len(begun)
        room = self._head_max - known
        begun += data[pos : pos + room]
        end = begun.find(_HEAD_END, max(known - 3, 0)) + 4
        if end < 4:
            self._feed_begun(known)  # what is wrong with the beginning is reported rather
            self._line_ends += begun.count(b"\n", known)
            if self._line_ends > self._line_ends_max:
                raise WireError(self._too_large, "too many header fields")
            if len(data) - pos > room:
                raise WireError(self._too_large, "the head is too large")
            return len(data)
        head = bytes(begun[:end])
        self._begun = bytearray()
        line_end = head.find(_LINE_END)
        if not self._line_judged:
            self._judge_line(head[:line_end])
        if self._fields.read(head, line_end, end) != end:
            raise WireError(self._bad, "the head does not end where it should")
        self._feed(self._rest_for_grammar(head) if self._fed > 0 else self._for_grammar(head, line_end))
        stop = pos + end - known
        self._end_head(len(data) - stop)
        return stop

    def _rest_for_grammar(self, head: bytes) -> bytes:
        """What llhttp is fed of a head, the beginning of which it has been fed."""
        rest = head[self._fed :]
        if self._streams_bytes:
            return rest
        length = self._fields.content_length
        rest = without_lengths(rest)
        return rest if length < 0 else b"Content-Length: %d\r\n%b" % (length, rest)

    def _skip_blank_lines(self, data: bytes, pos: int) -> int:
        """RFC 9112 2.2: some clients send a line end too many after a body. No message has begun with it."""
        size = len(data)
        while pos < size:
            byte = data[pos]
            if byte != 13 and byte != 10 and not self._blank_begun:
                return pos
            if self._blank_begun != (byte == 10):
                raise WireError(self._bad, "a bare CR or LF before the message")
            self._blank_begun = byte == 13
            self._blank_bytes += 1
            if self._blank_bytes > self._blank_max:
                raise WireError(self._too_large, "too many empty lines before the message")
            pos += 1
        return pos

    def _feed_begun(self, known: int) -> None:
        """Judge and feed what came after the `known` bytes of a head that is not complete."""
        begun = self._begun
        end = -1
        if not self._line_judged:
            end = begun.find(_LINE_END, max(known - 1, 0))
            if end < 0:
                self._check_line_begun(bytes(begun[max(known - 1, 0) :]))
                self._judge_line_begun(bytes(begun))
                return
            self._judge_line(bytes(begun[:end]))
            self._line_judged = True
        if not self._streams_bytes:
            self._feed_lines(begun, known)
            return
        piece = bytes(begun[self._fed :]) if self._fed > 0 else self._for_grammar(bytes(begun), end)
        self._fed = len(begun)
        self._feed(piece)

    def _feed_lines(self, begun: bytearray, known: int) -> None:
        """Feed the lines that are complete, but no lengths: one of them is fed at the end."""
        ends = begun.count(b"\n", known)
        if ends == 0:
            return  # at once: a pod may send a long line byte by byte
        if ends != begun.count(_LINE_END, max(known - 1, 0)):
            raise WireError(self._bad, "a bare LF in the head")
        end = begun.rfind(_LINE_END) + 2
        if end > self._fed:
            if len({int(length) for length in lengths_in(bytes(begun[:end])) if length.isdigit()}) > 1:
                raise WireError(self._bad, "Content-Length more than once")
            piece = without_lengths(bytes(begun[self._fed : end]))
            self._fed = end
            self._feed(piece)

    def _check_line_begun(self, new: bytes) -> None:
        """A peer of another protocol, or with other line ends, is answered at once."""
        if new.endswith(b"\r"):
            new = new[:-1]
        if len(new.translate(None, _NOT_IN_LINE)) != len(new):
            raise WireError(self._bad, _what_is_wrong(new))

    def _end_head(self, bytes_left: int) -> None:
        self.in_head = False
        if not self._delivery.head_complete:
            raise WireError(self._bad, "the head does not end where it should")
        self._judge_head()
        if self._grammar_spoilt and self._state in (LENGTH, CHUNKED):
            self._feed_new_grammar()
        if self._delivery.message_complete != (self._state == HEAD) and not self._ends_with_head():
            raise WireError(self._bad, "it is not certain whether a body follows")
        if self._state == CHUNKED:
            self._chunks.start()
        self._deliver_head()
        if self._state == HEAD:
            self._end_message([], bytes_left)

    def _feed_new_grammar(self) -> None:
        """An upgrade was offered, behind which llhttp expects another protocol; but a body follows."""
        self._grammar = self._new_grammar()
        self._grammar_spoilt = False
        self._delivery.message_complete = False
        framing = b"Content-Length: %d" % self.body_remaining
        if self._state == CHUNKED:
            framing = b"Transfer-Encoding: chunked"
        self._feed(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)

    def _read_body(self, data: bytes, pos: int) -> int:
        delivery = self._delivery
        size = len(data)
        stop = size
        ended = False
        if self._state == LENGTH:
            if size - pos >= self.body_remaining:
                stop = pos + self.body_remaining
                ended = True
            self.body_remaining -= stop - pos
        elif self._state == CHUNKED:
            stop = self._chunks.advance(data, pos)
            ended = self._chunks.done
            if self._chunks.spent:
                self.needs_turn = True
                self._stopped = True
        if self._state == CHUNKED and self._chunks.cuts:
            self._feed_without(self._chunks.cuts, data, pos, stop)
        else:
            self._feed(data if pos == 0 and stop == size else data[pos:stop])
        if delivery.message_complete != ended:
            raise WireError(self._bad, "it is not certain where the body ends")
        trailers: Headers = []
        if ended and self._state == CHUNKED:
            trailers = self._fields.trailers(self._chunks.trailers)
        pieces = delivery.pieces
        if pieces:
            delivery.pieces = []
            self._deliver_body(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ended:
            self._end_message(trailers, size - stop)
        return stop

    def _feed_without(self, cuts: list[tuple[int, int]], data: bytes, pos: int, stop: int) -> None:
        pieces: list[bytes] = []
        for start, end in cuts:
            pieces.append(data[pos:start])
            pos = end
        pieces.append(data[pos:stop])
        if self._chunks.hides_end():
            pieces.append(_LINE_END)
        self._feed(b"".join(pieces))

    def _end_message(self, trailers: Headers, bytes_left: int) -> None:
        if self._grammar_spoilt or self._fields.proxy_connection or not self._delivery.message_complete:
            self._grammar = self._new_grammar()
        self._state = HEAD
        self.in_message = False
        self.body_remaining = 0
        self._deliver_end(trailers, bytes_left)

    def _feed(self, piece: bytes) -> None:
        if not piece:
            return  # to llhttp, no bytes are the end of the stream
        refusal = ""
        try:
            self._grammar.feed_data(piece)
        except HttpParserUpgrade:
            self._grammar_spoilt = True  # only ever at the end of a head, which is the end of the piece
        except HttpParserCallbackError:
            raise  # ours: the callbacks do not raise
        except HttpParserError as error:
            refusal = str(error) or "not HTTP"
        if refusal:
            raise WireError(self._bad, refusal)


def _what_is_wrong(line: bytes) -> str:
    """Of a first line, or a part of it, with a byte that cannot stand there."""
    if b"\n" in line:
        return "a bare LF as the end of the first line"
    if b"\r" in line:
        return "a bare CR in the first line"
    return "a control byte in the first line"


def without_lengths(lines: bytes) -> bytes:
    """Lines of a head, each with its end, but those of Content-Length."""
    if not lengths_in(lines):
        return lines
    return _LINE_END.join([line for line in lines.split(_LINE_END) if not line.lower().startswith(_LENGTH_NAME)])


def lengths_in(lines: bytes) -> list[bytes]:
    """The values of Content-Length in lines of a head, each with its end."""
    if _LENGTH_NAME not in lines.lower():
        return []
    found = [line for line in lines.split(_LINE_END) if line.lower().startswith(_LENGTH_NAME)]
    return [line[len(_LENGTH_NAME) :].strip(b" \t") for line in found]
