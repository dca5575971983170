"""The base of the request and response parsers: it cuts a byte stream into messages and feeds each piece to llhttp.

Rules
  1. The stream is cut where a head ends, where a body of known length ends and where a chunked body ends, so that the
     boundary of a message is always a boundary between two calls of llhttp. Every limit is therefore checked before
     llhttp sees the bytes, and the parser always knows which message a byte belongs to.
  2. Only bytes that llhttp delivered are passed to the sink. The end of a message is computed twice, here and by
     llhttp; a message on which the two disagree is refused. The exception is a head whose bytes repeat those of the
     last one on the connection: both have accepted it, so neither reads it again (`_read_again`). If only its first
     line differs, both read that line.
  3. This code checks the first line before llhttp sees any of it: the line is buffered until it is complete (bounded by
     the subclass). The bytes behind it are streamed to llhttp, so that an invalid byte or line is refused at once. The
     fields are classified when all are received: an incomplete head is buffered (bounded by `head_max`).
  4. The state is updated before a sink is called: the sink may read it, or pause the parser.
  5. A sink receives at most one piece of body data per call and message: chunks are joined.
  6. One call parses a bounded number of chunks. If data are left, it sets `needs_turn` and keeps them for `resume`.
  7. llhttp only reports the end of the head and of the message, and delivers the body. The block of fields is the bytes
     between the end of the first line and the end of the head, both found here; if llhttp's head ends at another byte,
     the message is refused. So no bytes from behind a head can get into it.
  8. Where llhttp is stricter than HTTP, it is fed replacements for bytes that were checked here: first lines and
     repeated lengths (`_for_grammar`), chunk sizes without extensions, no trailers, the body of an upgrade request.
"""

from __future__ import annotations

from typing import Final

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade
from mypy_extensions import mypyc_attr

from activator.codec.http1.chunks import ChunkTracker
from activator.codec.http1.fields import FieldValidator, end_of_line, lengths_in, without_lengths
from activator.codec.http1.llhttp import Delivery, Grammar
from activator.codec.message import Headers
from activator.runtime.errors import WireError
from activator.runtime.reasons import Reason
from activator.runtime.units import KIB

TRAILERS_BYTES_MAX: Final = 8 * KIB
LAST_HEAD_BYTES_MAX: Final = 2 * KIB  # the longest head that is kept to recognise the next one by it

HEAD: Final = 0
LENGTH: Final = 1
CHUNKED: Final = 2
UNTIL_EOF: Final = 3

_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_NOT_IN_LINE: Final = bytes(range(0x09)) + bytes(range(0x0A, 0x20)) + b"\x7f"  # a reason phrase may hold a HTAB


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageParser:
    """A parser that cuts the stream into messages; its subclasses validate and deliver them."""

    def __init__(
        self,
        bad: Reason,
        too_large: Reason,
        coding: Reason,
        head_max: int,
        fields_max: int,
        blank_max: int,
        chunks: ChunkTracker,
        is_request: bool,
        streams_bytes: bool,
    ) -> None:
        self._bad = bad
        self._streams_bytes = streams_bytes  # feed an incomplete head to llhttp as it comes; otherwise line by line
        self._too_large = too_large
        self._head_max = head_max
        self._blank_max = blank_max  # bytes of empty lines before a head
        self._line_ends_max = fields_max + 2  # per head: of the first line, the fields and the empty line
        self._fields = FieldValidator(bad, too_large, coding, fields_max, is_request)
        self._delivery = Delivery()
        self._chunks = chunks
        self._grammar: Grammar = self._new_grammar()
        self.in_head: bool = False  # a part of a head has come, its end has not
        self.in_message: bool = False  # a message has begun and has not ended
        self.body_remaining: int = 0  # bytes of the body still to come; -1 if the length is not declared
        self._state: int = HEAD
        self._stopped: bool = False  # this call parses nothing more
        self.needs_turn: bool = False  # the share of this turn is used up, and unparsed data are left
        self._grammar_spoilt: bool = False  # llhttp does not expect another message
        self._grammar_used: bool = False  # llhttp takes no further message: the next head needs a new parser
        self._error: WireError | None = None  # why the connection is unusable
        # Data that were fed and not parsed, while the parser is paused or needs a turn.
        self._kept: bytes = b""
        self._kept_from: int = 0  # offset of the unparsed rest
        # The last head, if one with the same bytes would mean the same; `_fields` holds its fields.
        self._last_head: bytes = b""
        self._last_line_end: int = 0
        # The incomplete head.
        self._begun: bytearray = bytearray()
        self._fed: int = 0  # how many of these bytes llhttp was fed; 0 until the first line is checked
        self._line_validated: bool = False
        self._line_ends: int = 0
        # Empty lines before a head.
        self._blank_bytes: int = 0
        self._blank_begun: bool = False  # a CR was received, its LF was not

    # --- implemented by the subclass ---

    def _new_grammar(self) -> Grammar:
        raise NotImplementedError

    def _validate_line(self, line: bytes) -> None:
        """Validate the first line, which is complete."""
        raise NotImplementedError

    def _validate_line_begun(self, line: bytes) -> None:
        """Validate the bytes received so far of a first line that is not complete."""
        raise NotImplementedError

    def _for_grammar(self, head: bytes, line_end: int) -> bytes:
        """Return the bytes that llhttp is fed for a head. `line_end` is the end of its first line, which is valid."""
        raise NotImplementedError

    def _judge_head(self) -> None:
        """Validate the complete head. Set `_state` and `body_remaining` to the kind of its body (HEAD: none)."""
        raise NotImplementedError

    def _ends_with_head(self) -> bool:
        """Return True if the message validated last has no body, even if llhttp expects one because of its fields."""
        raise NotImplementedError

    def _is_repeatable(self) -> bool:
        """Return True if another head with the same bytes has a body of the same length, or none. The head is valid."""
        raise NotImplementedError

    def _repeats_fields(self) -> bool:
        """Return True if fields that repeat those of a repeatable head mean the same behind the line validated last.

        Called after `_validate_line`.
        """
        return False

    def _deliver_head(self) -> None:
        raise NotImplementedError

    def _deliver_body(self, data: bytes) -> None:
        raise NotImplementedError

    def _deliver_end(self, trailers: Headers, bytes_left: int) -> None:
        """Deliver the end of the message; `bytes_left` bytes of this call follow it."""
        raise NotImplementedError

    def _take_rest(self, data: bytes, pos: int) -> WireError | None:
        """Keep the data from `pos` on, which this call did not parse, or return why they are an error."""
        raise NotImplementedError

    def _forget_sink(self) -> None:
        """Deliver nothing more."""
        raise NotImplementedError

    # --- unparsed data ---

    def has_unparsed(self) -> bool:
        """Return True if data were fed that have not been parsed."""
        return len(self._kept) > 0

    def take_unparsed(self) -> bytes:
        """Remove and return the data that were fed and not parsed."""
        data = self._kept[self._kept_from :]
        self._kept = b""
        self._kept_from = 0
        return data

    def retire(self) -> None:
        """Release the data and the sink of a closed connection, so that no reference cycle is left to collect."""
        self._kept = b""
        self._begun = bytearray()
        self._delivery.pieces = []
        self._forget_sink()

    def _keep(self, data: bytes, pos: int) -> None:
        """Keep `data` from `pos` on; it is copied only if at least half is parsed, so that all copies are linear."""
        if 2 * pos > len(data):
            data = data[pos:]
            pos = 0
        self._kept = data
        self._kept_from = pos

    def _keep_more(self, data: bytes) -> None:
        """Append `data` to the data that are kept already."""
        self._kept = self.take_unparsed() + data

    def _feed_kept(self) -> WireError | None:
        """Parse the data that were kept, if there are any."""
        data = self._kept
        if not data or self._error is not None:
            return self._error
        pos = self._kept_from
        self._kept = b""
        self._kept_from = 0
        return self._feed_from(data, pos)

    def _feed_from(self, data: bytes, pos: int) -> WireError | None:
        """Parse `data` from `pos` on. Return an error if the connection has become unusable."""
        try:
            pos = self._parse(data, pos)
        except WireError as error:
            return self._spoil(error.with_traceback(None))  # the frames of the traceback refer to the parser: a cycle
        return self._take_rest(data, pos) if pos < len(data) else None

    def _spoil(self, error: WireError) -> WireError:
        """Mark the connection as unusable: nothing of it is parsed any more. Return `error`."""
        self._error = error
        return error

    # --- cutting ---

    def _parse(self, data: bytes, pos: int) -> int:
        """Parse from `pos` until the data end or `_stopped` is set. Return the position reached."""
        size = len(data)
        while pos < size and not self._stopped:
            if self._state == HEAD:
                pos = self._read_head(data, pos)
            else:
                pos = self._read_body(data, pos)
        return pos

    def _read_head(self, data: bytes, pos: int) -> int:
        """Read a head, or its part in `data`. Return the position after it, or the end of `data`."""
        if self.in_head:
            return self._read_head_piece(data, pos)
        if self._blank_begun or data[pos] <= 13:
            pos = self._skip_blank_lines(data, pos)
            if pos == len(data):
                return pos
        self._blank_bytes = 0
        self.in_message = True
        last_head = self._last_head
        if last_head:
            end = self._read_again(data, pos, last_head)
            if end >= 0:
                return end
            self._last_head = b""
        self.in_head = True
        if self._grammar_used:
            self._grammar = self._new_grammar()
            self._grammar_used = False
        self._grammar_spoilt = False
        self._delivery.head_complete = False
        self._delivery.message_complete = False
        stop = min(len(data), pos + self._head_max)
        line_end = end_of_line(data, pos, stop)
        if line_end >= 0:
            self._validate_line(data[pos:line_end])
            if last_head:
                end = line_end + len(last_head) - self._last_line_end
                if end <= stop and data[line_end:end] == last_head[self._last_line_end :] and self._repeats_fields():
                    self._feed(self._for_grammar(data[pos:line_end] + _HEAD_END, line_end - pos))
                    self._end_head(data[pos:end], line_end - pos, len(data) - end)
                    return end
            try:
                end = self._fields.read(data, line_end, stop)
            except WireError:
                if data.find(_HEAD_END, line_end, stop) >= 0:
                    raise
                end = -1  # the error is reported when the head is complete, as if it had come byte by byte
            if end >= 0:  # the common case: a whole head in one read
                head = data if end == len(data) and pos == 0 else data[pos:end]
                self._feed(self._for_grammar(head, line_end - pos))
                self._end_head(head, line_end - pos, len(data) - end)
                return end
        self._begun = bytearray()
        self._fed = 0
        self._line_validated = False
        self._line_ends = 0
        return self._read_head_piece(data, pos)

    def _read_again(self, data: bytes, pos: int, last_head: bytes) -> int:
        """Read the message at `pos` if its head is `last_head` and its body is complete. Return its end, or -1."""
        repeats = data.startswith(last_head) if pos == 0 else data[pos : pos + len(last_head)] == last_head
        if not repeats:
            return -1
        start = pos + len(last_head)
        end = start + max(self._fields.content_length, 0)
        if end > len(data):
            return -1
        self._judge_head()
        self._deliver_head()
        if end > start:
            self.body_remaining = 0
            self._deliver_body(data[start:end])
        self._end_message([], len(data) - end)
        return end

    def _read_head_piece(self, data: bytes, pos: int) -> int:
        """Append to the incomplete head. Return the position after the head, or the end of `data`."""
        begun = self._begun
        known = len(begun)
        room = self._head_max - known
        begun += data[pos : pos + room]
        end = begun.find(_HEAD_END, max(known - 3, 0)) + 4
        if end < 4:
            self._feed_begun(known)  # first, because an error at the beginning takes precedence over the size
            self._line_ends += begun.count(b"\n", known)
            if self._line_ends > self._line_ends_max:
                raise WireError(self._too_large, "too many header fields")
            if len(data) - pos > room:
                raise WireError(self._too_large, "the head is too large")
            return len(data)
        head = bytes(begun[:end])
        self._begun = bytearray()
        line_end = head.find(_LINE_END)
        if not self._line_validated:
            self._validate_line(head[:line_end])
        if self._fields.read(head, line_end, end) != end:
            raise WireError(self._bad, "the head does not end where it should")
        self._feed(self._rest_for_grammar(head) if self._fed > 0 else self._for_grammar(head, line_end))
        stop = pos + end - known
        self._end_head(head, line_end, len(data) - stop)
        return stop

    def _rest_for_grammar(self, head: bytes) -> bytes:
        """Return the bytes that llhttp is fed for the rest of a head whose beginning it has been fed."""
        rest = head[self._fed :]
        if self._streams_bytes:
            return rest
        length = self._fields.content_length
        rest = without_lengths(rest)
        return rest if length < 0 else b"Content-Length: %d\r\n%b" % (length, rest)

    def _skip_blank_lines(self, data: bytes, pos: int) -> int:
        """Skip empty lines (RFC 9112 2.2): some clients send a superfluous line end after a body."""
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
        """Validate and feed the bytes of an incomplete head that follow its first `known` bytes."""
        begun = self._begun
        end = -1
        if not self._line_validated:
            end = begun.find(_LINE_END, max(known - 1, 0))
            if end < 0:
                self._check_line_begun(bytes(begun[max(known - 1, 0) :]))
                self._validate_line_begun(bytes(begun))
                return
            self._validate_line(bytes(begun[:end]))
            self._line_validated = True
        if not self._streams_bytes:
            self._feed_lines(begun, known)
            return
        piece = bytes(begun[self._fed :]) if self._fed > 0 else self._for_grammar(bytes(begun), end)
        self._fed = len(begun)
        self._feed(piece)

    def _feed_lines(self, begun: bytearray, known: int) -> None:
        """Feed the complete lines except Content-Length, of which one is fed when the head is complete."""
        ends = begun.count(b"\n", known)
        if ends == 0:
            return  # early, because a pod may send a long line byte by byte
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
        """Refuse a first line with a control byte at once: the peer uses another protocol or other line ends."""
        if new.endswith(b"\r"):
            new = new[:-1]
        if len(new.translate(None, _NOT_IN_LINE)) != len(new):
            raise WireError(self._bad, _line_problem(new))

    def _end_head(self, head: bytes, line_end: int, bytes_left: int) -> None:
        """Validate and deliver a complete head that llhttp was fed; `bytes_left` bytes of this call follow it."""
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
        if len(head) <= LAST_HEAD_BYTES_MAX and not self._grammar_spoilt and self._is_repeatable():
            self._last_head = head
            self._last_line_end = line_end
        self._deliver_head()
        if self._state == HEAD:
            self._end_message([], bytes_left)

    def _feed_new_grammar(self) -> None:
        """Replace llhttp's parser after the head of an upgrade request with a body.

        After such a head llhttp expects another protocol, so the new parser is fed a head with the same framing.
        """
        self._grammar = self._new_grammar()
        self._grammar_spoilt = False
        self._delivery.message_complete = False
        framing = b"Content-Length: %d" % self.body_remaining
        if self._state == CHUNKED:
            framing = b"Transfer-Encoding: chunked"
        self._feed(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)

    def _read_body(self, data: bytes, pos: int) -> int:
        """Read the body's part in `data`. Return the position after it."""
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
        """Feed data[pos:stop] to llhttp, without the ranges in `cuts`."""
        pieces: list[bytes] = []
        for start, end in cuts:
            pieces.append(data[pos:start])
            pos = end
        pieces.append(data[pos:stop])
        if self._chunks.hides_end():
            pieces.append(_LINE_END)
        self._feed(b"".join(pieces))

    def _end_message(self, trailers: Headers, bytes_left: int) -> None:
        """Prepare for the next message, and deliver the end of this one; `bytes_left` bytes of this call follow."""
        fields = self._fields
        if self._grammar_spoilt or fields.proxy_connection or fields.has_close or not self._delivery.message_complete:
            self._grammar_used = True
        self._state = HEAD
        self.in_message = False
        self.body_remaining = 0
        self._deliver_end(trailers, bytes_left)

    def _feed(self, piece: bytes) -> None:
        """Feed a piece to llhttp. Raises WireError if llhttp refuses it."""
        if not piece:
            return  # llhttp takes an empty piece for the end of the stream
        problem = ""
        try:
            self._grammar.feed_data(piece)
        except HttpParserUpgrade:
            self._grammar_spoilt = True  # raised only at the end of a head, which is the end of the piece
        except HttpParserCallbackError:
            raise  # a defect of this program: the callbacks must not raise
        except HttpParserError as error:
            problem = str(error) or "not HTTP"
        if problem:
            raise WireError(self._bad, problem)


def _line_problem(line: bytes) -> str:
    """Return the error text for a first line, or a part of it, that contains a forbidden byte."""
    if b"\n" in line:
        return "a bare LF as the end of the first line"
    if b"\r" in line:
        return "a bare CR in the first line"
    return "a control byte in the first line"
