"""The body of one request, on its way from the client to a pod.

    client ──► held (it may be sent again) ──► more (gathered, beyond that) ──► pod

Rules
  1. Before a pod is there, what comes is held; at the bound the client is paused. A pod gets what is held with the
     head, and `more` a share in each turn, as fast as it reads.
  2. What may have to be sent again is kept until the answer begins, as long as it is small.
  3. Nothing overtakes: while `more` holds anything, what comes is put behind it.
  4. The client is paused for one reason at a time, and is resumed when that is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from activator.codec.message import Headers, RequestHead
from activator.data_plane.exchange import ClientStream, PodStream
from activator.data_plane.proxy.stalled import StalledResponses
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.held_bodies import BodyBuffer, HeldBody
from activator.runtime.units import KIB

SHARE_BYTES: Final = 128 * KIB  # of a buffer, that one request sends on in one turn

_NOTHING: Final[list[bytes]] = []
_NOBODY: Final = ClientStream()


class BodyBudgets:
    """What all bodies of one worker share.

    `held_body_bytes`: of a request's body, what is read before its revision is known; also what is kept to be sent
    again. `held`: the memory of all; `files`: their temporary files. `later` runs a callable in another turn.
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
    """Of one request; in a tunnel, the client's stream."""

    def __init__(self, budgets: BodyBudgets, client: ClientStream) -> None:
        self._budgets = budgets
        self._client = client
        self._pod: PodStream | None = None  # that has the request
        self._held: HeldBody | None = None  # what came before the pod was there, or may have to be sent again
        self._more: BodyBuffer | None = None  # … and what came behind it
        self._of_revision: HeldBudget | None = None
        self._gather_max: int = 0  # bytes that are gathered before a slot is asked for …
        self._file_max: int = 0  # … and of those beyond them, in a file
        self._done: bool = False  # it is here to its end
        self._trailers: Headers = []
        self._paused: bool = False  # the client
        self._pod_full: bool = False  # it reads more slowly than is written to it
        self.refused_for: str = ""  # whose budget was used up, where it was not the worker's

    # --- before a pod has the request ---

    def assign(self, of_revision: HeldBudget) -> bool:
        """The revision is known; False where its budget does not allow what is here."""
        self._of_revision = of_revision
        held = self._held
        if held is None or held.assign(of_revision):
            return True
        self.refused_for = held.refused_for
        return False

    def move(self, of_revision: HeldBudget) -> bool:
        """Another revision takes it; False where that one's budget does not allow what is here."""
        held, more = self._held, self._more
        if held is not None and not held.move(of_revision):
            return False
        if more is not None and not more.move(of_revision):
            return False
        self._of_revision = of_revision
        return True

    def pieces(self) -> list[bytes]:
        """What is held of it."""
        return _NOTHING if self._held is None else self._held.pieces

    def in_memory(self) -> bytes | None:
        """Return what is here of it; None if a part of it is in a file, or has gone to a pod."""
        if self._pod is not None:
            return None
        more = self._more
        behind = b"" if more is None else more.in_memory()
        return None if behind is None else b"".join([*self.pieces(), behind])

    def replace(self, start: int, end: int, data: bytes) -> bool:
        """Before the revision is known: other bytes in the place of some that are held. False: no budget allows it."""
        return self._held is not None and self._held.replace(start, end, data)

    def hold(self, data: bytes) -> bool:
        """Keep what has come; False where no budget allows it."""
        more = self._more
        if more is not None:
            more.append(data)
        elif not self._append_to_held(data):
            return False
        if not self._paused and not self._has_room():
            self._pause()
        return True

    def gather(self, gather_max: int, file_max: int) -> None:
        """Take so much before a slot is asked for."""
        self._gather_max = gather_max
        self._file_max = file_max
        if self._paused and self._has_room():
            self._resume()
        self._client.ask_for_body()

    def is_gathered(self) -> bool:
        """All of it is here, or as much as there may be."""
        if self._done or self.size >= self._gather_max + self._file_max:
            return True
        of_revision = self._of_revision
        if not self._budgets.held.has_spare() or (of_revision is not None and not of_revision.has_spare()):
            return True
        return not self._has_room()

    @property
    def size(self) -> int:
        """Bytes that are here."""
        size = 0
        if self._held is not None:
            size = self._held.size
        if self._more is not None:
            size += self._more.size
        return size

    def has_more(self) -> bool:
        """More is here than may be sent again."""
        return self._more is not None

    def is_whole(self) -> bool:
        """All of it is here."""
        return self._done

    def hand_over(self, client: ClientStream) -> None:
        """Another one than its client is answered from now on. All of it is here."""
        self._client = client
        self._paused = False

    # --- a pod has the request ---

    def start(self, pod: PodStream, head: RequestHead, is_idempotent: bool) -> bool:
        """Send the head and what is here; True: `feed` is to go on with it in another turn."""
        self._pod = pod
        self._pod_full = False
        held = self._held
        pod.send_request(head, _NOTHING if held is None else held.pieces)
        if self._more is not None:
            self._drop_held()
            return True
        if not pod.may_refuse and not (pod.reused and is_idempotent):
            self._drop_held()
        elif held is None:
            self._held = HeldBody(self._budgets.held)
        if self._done:
            pod.send_end(self._trailers)
        elif self._paused and not self._pod_full:
            self._resume()
        return False

    def send(self, pod: PodStream, data: bytes) -> None:
        """Send on what has come, behind what is here."""
        more = self._more
        if more is not None:
            more.append(data)
            if not self._paused and not more.has_room():
                self._pause()
            return
        held = self._held
        if held is not None and (held.size + len(data) > self._budgets.held_body_bytes or not held.append(data)):
            self._drop_held()  # too much to be sent again
        pod.send_body(data)

    def feed(self) -> bool:
        """Send on a share of what is here; True: there is more, and the pod takes it.

        Raises OSError where a temporary file cannot be read.
        """
        more = self._more
        pod = self._pod
        if more is None or pod is None or self._pod_full:
            return False
        pod.send_body(more.take(SHARE_BYTES))
        if more.size == 0:
            more.drop()
            self._more = None
            if self._done:
                pod.send_end(self._trailers)
                return False
            self._pause_for_pod()
        if self._paused and self._has_room() and (self._more is not None or not self._pod_full):
            self._resume()
        return self._more is not None and not self._pod_full

    def end(self, trailers: Headers) -> None:
        """The client has sent all of it."""
        self._done = True
        self._trailers = trailers
        if self._more is not None:
            self._more.ended()
        elif self._pod is not None:
            self._pod.send_end(trailers)

    def tunnels(self, pod: PodStream) -> None:
        """Carry the client's direction of a tunnel from now on, beginning with the bytes that came early."""
        self._pod = pod
        self._done = False
        for data in self.pieces():
            pod.send_body(data)
        self._drop_held()
        if self._paused:
            self._resume()

    def pod_failed(self) -> None:
        """The pod did nothing with it: another one is tried."""
        self._pod = None

    def is_sent(self) -> bool:
        """True if the pod has been sent all of it, as far as that is known here."""
        return self._done and self._more is None and not self._pod_full

    def is_repeatable(self) -> bool:
        """True if the bytes already sent are still buffered, so that the request can be retried."""
        return self._held is not None and self._more is None

    def pod_blocked(self) -> None:
        self._pod_full = True
        self._pause_for_pod()

    def pod_drained(self) -> bool:
        """True: `feed` is to go on."""
        self._pod_full = False
        if self._more is not None:
            return True
        if self._paused:
            self._resume()
        return False

    # --- ends ---

    def answered(self) -> None:
        """An answer has begun: the request is not sent again."""
        self._drop_held()

    def discard(self) -> None:
        """The pod wants no more of it: what the client still sends is read, and thrown away.

        Else a client that sends all before it reads would wait for us, and we for it.
        """
        if self._paused:
            self._resume()
        self.stop()

    def stop(self) -> None:
        """Nothing of it is wanted any more."""
        self._pod = None
        self._client = _NOBODY  # the stream refers to the exchange: no cycle is left for the collector
        self._drop_held()
        more = self._more
        if more is not None:
            self._more = None
            more.drop()

    # --- within ---

    def _append_to_held(self, data: bytes) -> bool:
        held = self._held
        if held is None:
            held = self._held = HeldBody(self._budgets.held)
            if self._of_revision is not None:
                held.assign(self._of_revision)  # nothing yet: it has room for that
        if held.size >= self._budgets.held_body_bytes and self._begin_more():
            assert self._more is not None
            self._more.append(data)
            return True
        if held.append(data):
            return True
        self.refused_for = held.refused_for
        return False

    def _begin_more(self) -> bool:
        """Whether what comes behind what is held has a place of its own."""
        of_revision = self._of_revision
        memory_max = self._gather_max - self._budgets.held_body_bytes
        if of_revision is None or (memory_max <= 0 and self._file_max == 0):
            return False
        more = BodyBuffer(memory_max, self._file_max, self._budgets.held, of_revision, self._budgets.files)
        if not more.has_room():
            return False
        self._more = more
        return True

    def _has_room(self) -> bool:
        """Whether one more read may come; a place for it is reserved then, where it needs one."""
        more = self._more
        if more is not None:
            return more.has_room()
        held = self._held
        if held is None or self._pod is not None or held.size < self._budgets.held_body_bytes:
            return True
        return self._begin_more()

    def _pause(self) -> None:
        self._paused = True
        self._client.pause_request()

    def _resume(self) -> None:
        self._paused = False
        self._client.resume_request()

    def _pause_for_pod(self) -> None:
        """Where the pod is full and nothing stands between it and the client."""
        if self._pod_full and not self._paused and not self._done and self._more is None:
            self._pause()

    def _drop_held(self) -> None:
        held = self._held
        if held is not None:
            self._held = None
            held.drop()
