"""The body of one request, on its way from the client to a pod.

    client ──► held (can be sent again) ──► overflow (gathered beyond the held part) ──► pod

Rules
  1. Before the request has a pod, the body is held, and the client is paused at the bound. The pod gets the held part
     with the head, and a share of `overflow` in each turn, as fast as it reads.
  2. The held part is kept for a retry until the response begins, up to a bound.
  3. The order is kept: while `overflow` is not empty, new data is appended to it.
  4. The client is paused for one reason at a time, and is resumed when that reason ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from activator.codec.json_edit import BodyEditor
from activator.codec.message import Headers, RequestHead
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.proxy.stalled import StalledResponses
from activator.data_plane.streams import ClientStream, PodStream
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.held_bodies import BodyBuffer, HeldBody
from activator.runtime.units import KIB

SHARE_BYTES: Final = 128 * KIB  # sent from one buffer in one turn

_NOTHING: Final[list[bytes]] = []
_NO_CLIENT: Final = ClientStream()


class BodyBudgets:
    """The buffer limits that all request and response bodies of one worker share.

    `held_body_bytes`: how much of a body is read before the revision is known, and how much is kept for a retry.
    `held`: the memory of all bodies; `files`: their temporary files. `later` runs a callable in another turn.
    """

    def __init__(
        self,
        held: HeldBudget,
        files: HeldBudget,
        held_body_bytes: int,
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self.held = held
        self.stalled = StalledResponses(held)
        self.files = files
        self.held_body_bytes = held_body_bytes
        self.later = later


class RequestBody:
    """The body of one request or, in a tunnel, the stream of the client."""

    def __init__(self, budgets: BodyBudgets, client: ClientStream) -> None:
        self._budgets = budgets
        self._client = client
        self._pod: PodStream | None = None  # the pod that has the request
        self._held: HeldBody | None = None  # arrived before the pod was known, or kept for a retry
        self._overflow: BodyBuffer | None = None  # arrived after the held part
        self._revision_budget: HeldBudget | None = None
        self._gather_max: int = 0  # bytes gathered in memory before a slot is requested
        self._file_max: int = 0  # bytes gathered beyond these in a file
        self._is_complete: bool = False  # the body has arrived completely
        self._trailers: Headers = []
        self.editor: BodyEditor | None = None  # changes what the client sends
        self._edits: HeadEdits | None = None  # the edits of the head that was sent to the pod
        self._paused: bool = False  # reading from the client is paused
        self._pod_full: bool = False  # the pod reads more slowly than the client sends
        self.refused_for: str = ""  # names the exhausted budget; empty: that of the worker

    # --- before a pod has the request ---

    def assign(self, revision_budget: HeldBudget) -> bool:
        """Charge the body to the budget of its revision; return False if that budget does not allow it."""
        self._revision_budget = revision_budget
        held = self._held
        if held is None or held.assign(revision_budget):
            return True
        self.refused_for = held.refused_for
        return False

    def move(self, revision_budget: HeldBudget) -> bool:
        """Move the body to the budget of another revision; return False if that budget does not allow it."""
        held, overflow = self._held, self._overflow
        if held is not None and not held.move(revision_budget):
            return False
        if overflow is not None and not overflow.move(revision_budget):
            return False
        self._revision_budget = revision_budget
        return True

    def pieces(self) -> list[bytes]:
        """Return the held part of the body."""
        return _NOTHING if self._held is None else self._held.pieces

    def in_memory(self) -> bytes | None:
        """Return the body as far as it has arrived; None if a part of it is in a file or was sent to a pod."""
        if self._pod is not None:
            return None
        overflow = self._overflow
        overflow_bytes = b"" if overflow is None else overflow.in_memory()
        return None if overflow_bytes is None else b"".join([*self.pieces(), overflow_bytes])

    def edit(self, editor: BodyEditor) -> bool:
        """Edit the body, before it is charged to a revision's budget; return False if the budget does not allow it."""
        self.editor = editor
        received = b"".join(self.pieces())
        edited = editor.feed(received)
        if self._is_complete:
            edited += editor.finish()
        return self._held is None or self._held.replace(0, len(received), edited)

    def edited(self, data: bytes) -> bytes:
        """Return the edited form of `data`, the next piece from the client."""
        return data if self.editor is None else self.editor.feed(data)

    def replace(self, start: int, end: int, data: bytes) -> bool:
        """Replace held bytes before the revision is known; return False if the budget does not allow it."""
        return self._held is not None and self._held.replace(start, end, data)

    def buffer(self, data: bytes) -> bool:
        """Buffer `data`; return False if no budget allows it."""
        overflow = self._overflow
        if overflow is not None and data:
            overflow.append(data)
        elif data and not self._append_to_held(data):
            return False
        if not self._paused and not self._has_room():
            self._pause_client()
        return True

    def gather(self, gather_max: int, file_max: int) -> None:
        """Set how much of the body is gathered before a slot is requested."""
        self._gather_max = gather_max
        self._file_max = file_max
        if self._paused and self._has_room():
            self._resume_client()
        self._client.ask_for_body()

    def is_gathered(self) -> bool:
        """Return True if the body has arrived completely, or as much of it as can be buffered."""
        if self._is_complete or self.size >= self._gather_max + self._file_max:
            return True
        revision_budget = self._revision_budget
        if not self._budgets.held.has_spare() or (revision_budget is not None and not revision_budget.has_spare()):
            return True
        return not self._has_room()

    @property
    def size(self) -> int:
        """The number of buffered bytes."""
        size = 0
        if self._held is not None:
            size = self._held.size
        if self._overflow is not None:
            size += self._overflow.size
        return size

    def has_overflow(self) -> bool:
        """Return True if data beyond the held part is buffered, so that the body cannot be sent again."""
        return self._overflow is not None

    def is_whole(self) -> bool:
        """Return True if the body has arrived completely."""
        return self._is_complete

    def has_trailers(self) -> bool:
        """Return True if trailers have followed the body."""
        return len(self._trailers) > 0

    def hand_over(self, client: ClientStream) -> None:
        """Move the complete body to the stream `client`, which receives the response from now on."""
        self._client = client
        self._paused = False

    # --- with a pod ---

    def start(self, pod: PodStream, head: RequestHead, edits: HeadEdits | None, may_be_sent_again: bool) -> bool:
        """Send the edited head and the held part; return True if the rest needs `send_share` in another turn."""
        self._pod = pod
        self._edits = edits
        self._pod_full = False
        held = self._held
        pod.send_request(head, _NOTHING if held is None else held.pieces)
        if self._overflow is not None:
            self._drop_held()
            return True
        if not pod.may_refuse and not may_be_sent_again:
            self._drop_held()
        elif held is None:
            self._held = HeldBody(self._budgets.held)
        if self._is_complete:
            self._send_end(pod)
        elif self._paused and not self._pod_full:
            self._resume_client()
        return False

    def send(self, pod: PodStream, data: bytes) -> None:
        """Send `data` to the pod, after the data that is still buffered."""
        overflow = self._overflow
        if not data:
            return
        if overflow is not None:
            overflow.append(data)
            if not self._paused and not overflow.has_room():
                self._pause_client()
            return
        held = self._held
        if held is not None and (held.size + len(data) > self._budgets.held_body_bytes or not held.append(data)):
            self._drop_held()  # too large to be sent again
        pod.send_body(data)

    def send_share(self) -> bool:
        """Send a share of the buffer to the pod; return True if there is more and the pod takes it.

        Raises OSError if a temporary file cannot be read.
        """
        overflow = self._overflow
        pod = self._pod
        if overflow is None or pod is None or self._pod_full:
            return False
        pod.send_body(overflow.take(SHARE_BYTES))
        if overflow.size == 0:
            overflow.drop()
            self._overflow = None
            if self._is_complete:
                self._send_end(pod)
                return False
            self._pause_for_pod()
        if self._paused and self._has_room() and (self._overflow is not None or not self._pod_full):
            self._resume_client()
        return self._overflow is not None and not self._pod_full

    def end(self, trailers: Headers) -> bool:
        """Mark the body as complete, and send its end after all data; return False if no budget allows the last part.

        The last part is what the editor returns at the end.
        """
        rest = b"" if self.editor is None else self.editor.finish()
        if rest and self._pod is not None:
            self.send(self._pod, rest)
        elif rest and not self.buffer(rest):
            return False
        self._is_complete = True
        self._trailers = trailers
        if self._overflow is not None:
            self._overflow.ended()
        elif self._pod is not None:
            self._send_end(self._pod)
        return True

    def begin_tunnel(self, pod: PodStream) -> None:
        """Forward the client's direction of a tunnel to `pod` from now on, beginning with the bytes held so far."""
        self._pod = pod
        self._is_complete = False
        for data in self.pieces():
            pod.send_body(data)
        self._drop_held()
        if self._paused:
            self._resume_client()

    def pod_failed(self) -> None:
        """Detach the body from a pod that did nothing with it, so that it can be sent to another one."""
        self._pod = None

    def is_sent(self) -> bool:
        """Return True if the whole body has been written to the connection of the pod."""
        return self._is_complete and self._overflow is None and not self._pod_full

    def is_repeatable(self) -> bool:
        """Return True if the bytes already sent are still buffered, so that the request can be retried."""
        return self._held is not None and self._overflow is None

    def pod_blocked(self) -> None:
        self._pod_full = True
        self._pause_for_pod()

    def pod_drained(self) -> bool:
        """Resume after the pod has taken its data; return True if `send_share` must be called."""
        self._pod_full = False
        if self._overflow is not None:
            return True
        if self._paused:
            self._resume_client()
        return False

    # --- ends ---

    def response_begun(self) -> None:
        """Drop the held part: a response has begun, and the request is not sent again."""
        self._drop_held()

    def discard(self) -> None:
        """Read and discard the rest of the body, because the pod reads no more of it.

        A client that sends its whole request before it reads would otherwise wait for the activator, and block both.
        """
        if self._paused:
            self._resume_client()
        self.stop()

    def stop(self) -> None:
        """Release all buffers at the end of the request."""
        self._pod = None
        self._client = _NO_CLIENT  # the stream refers to the exchange: avoid a reference cycle
        self._drop_held()
        overflow = self._overflow
        if overflow is not None:
            self._overflow = None
            overflow.drop()

    # --- within ---

    def _send_end(self, pod: PodStream) -> None:
        trailers = self._trailers
        if trailers and self._edits is not None:
            trailers = self._edits.trailers(trailers)
        pod.send_end(trailers)

    def _append_to_held(self, data: bytes) -> bool:
        """Append to the held part or, beyond its bound, to the overflow; return False if no budget allows it."""
        held = self._held
        if held is None:
            held = self._held = HeldBody(self._budgets.held)
            if self._revision_budget is not None:
                held.assign(self._revision_budget)  # nothing is held yet, so the budget allows it
        if held.size >= self._budgets.held_body_bytes and self._begin_overflow():
            assert self._overflow is not None
            self._overflow.append(data)
            return True
        if held.append(data):
            return True
        self.refused_for = held.refused_for
        return False

    def _begin_overflow(self) -> bool:
        """Create the buffer for data beyond the held part; return False if it has no room."""
        revision_budget = self._revision_budget
        memory_max = self._gather_max - self._budgets.held_body_bytes
        if revision_budget is None or (memory_max <= 0 and self._file_max == 0):
            return False
        overflow = BodyBuffer(memory_max, self._file_max, self._budgets.held, revision_budget, self._budgets.files)
        if not overflow.has_room():
            return False
        self._overflow = overflow
        return True

    def _has_room(self) -> bool:
        """Return True if another read fits; create the overflow buffer if that is needed."""
        overflow = self._overflow
        if overflow is not None:
            return overflow.has_room()
        held = self._held
        if held is None or self._pod is not None or held.size < self._budgets.held_body_bytes:
            return True
        return self._begin_overflow()

    def _pause_client(self) -> None:
        self._paused = True
        self._client.pause_request()

    def _resume_client(self) -> None:
        self._paused = False
        self._client.resume_request()

    def _pause_for_pod(self) -> None:
        """Pause the client if the pod is full and there is no buffer between them."""
        if self._pod_full and not self._paused and not self._is_complete and self._overflow is None:
            self._pause_client()

    def _drop_held(self) -> None:
        held = self._held
        if held is not None:
            self._held = None
            held.drop()
