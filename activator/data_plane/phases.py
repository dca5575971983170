"""The phases of a request's life, and a table of all legal steps between them.

Rules
  1. A request is in exactly one phase. Only `ProxiedExchange.enter` changes it, after checking `is_legal`.
  2. A step that is not in the table is an error: it is counted and logged, and the request ends.
  3. The numbers follow the order of a request's life, so that code can compare: `phase >= SENT`.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.runtime.transitions import PHASE_BITS, IllegalTransitionError, Transition, legal_steps

ARRIVED: Final = 0  # its head has been read; earlier requests of its connection are in progress
ROUTING: Final = 1  # its turn has come: its revision is looked up and asked for a slot
SCANNING: Final = 2  # its revision depends on its body, which is incomplete
HELD: Final = 3  # a filter holds it before it asks for a slot
GATHERING: Final = 4  # its body is received before it asks for a slot
WAITING: Final = 5  # it waits for a slot
CONNECTING: Final = 6  # it has a slot, and waits for a connection to the pod
SENT: Final = 7  # a pod has it, and has not begun to respond
ANSWERING: Final = 8  # the head of the response has been sent to the client
DELIVERING: Final = 9  # the pod has finished and its slot is free; the client still takes the rest of the response
TUNNEL: Final = 10  # after a 101: both directions are open, and each ends separately
LINKED_TUNNEL: Final = 11  # a tunnel over a connection that cannot half-close: the first end is the end of both
CLIENT_ENDED: Final = 12  # a tunnel in which only the pod may still send
POD_ENDED: Final = 13  # a tunnel in which only the client may still send
OVER: Final = 14

PHASE_NAMES: Final = (
    "arrived",
    "routing",
    "scanning",
    "held",
    "gathering",
    "waiting",
    "connecting",
    "sent",
    "answering",
    "delivering",
    "tunnel",
    "linked tunnel",
    "client ended",
    "pod ended",
    "over",
)


TRANSITIONS: Final = (
    Transition(ARRIVED, ROUTING, "its turn has come"),
    Transition(ARRIVED, OVER, "its client disconnected, or its body was refused, before its turn"),
    Transition(ROUTING, SCANNING, "its revision depends on its body"),
    Transition(ROUTING, HELD, "a filter holds it"),
    Transition(SCANNING, HELD, "it is routed, and a filter holds it"),
    Transition(GATHERING, HELD, "its body is complete, and a filter holds it"),
    Transition(WAITING, HELD, "it falls back to a revision whose filter holds it"),
    Transition(HELD, GATHERING, "its filter releases it, and its body is gathered first"),
    Transition(HELD, WAITING, "its filter releases it, and no slot is free"),
    Transition(HELD, CONNECTING, "its filter releases it, and a slot is free"),
    Transition(HELD, OVER, "it is refused, or its client disconnected"),
    Transition(WAITING, GATHERING, "it falls back, and its body is gathered first"),
    Transition(ROUTING, GATHERING, "its body is gathered first"),
    Transition(ROUTING, WAITING, "no slot is free"),
    Transition(ROUTING, CONNECTING, "a slot is free"),
    Transition(ROUTING, OVER, "it is refused, or a filter responds"),
    Transition(SCANNING, GATHERING, "it is routed, and its body is gathered first"),
    Transition(SCANNING, WAITING, "it is routed, and no slot is free"),
    Transition(SCANNING, CONNECTING, "it is routed, and a slot is free"),
    Transition(SCANNING, OVER, "no revision takes it, its body times out, or its client disconnected"),
    Transition(GATHERING, WAITING, "its body is complete, and no slot is free"),
    Transition(GATHERING, CONNECTING, "its body is complete, and a slot is free"),
    Transition(GATHERING, OVER, "it is refused, its body times out, or its client disconnected"),
    Transition(WAITING, CONNECTING, "a slot was granted"),
    Transition(WAITING, OVER, "it is refused, or its client disconnected"),
    Transition(CONNECTING, SENT, "the connection is established"),
    Transition(CONNECTING, WAITING, "the connection failed: retry at another pod"),
    Transition(CONNECTING, OVER, "the connection failed or timed out, or its client disconnected"),
    Transition(SENT, ANSWERING, "the head of the response has arrived"),
    Transition(SENT, TUNNEL, "the response is a 101"),
    Transition(SENT, LINKED_TUNNEL, "the response is a 101, and one of the connections cannot half-close"),
    Transition(SENT, WAITING, "a kept connection closed during the request: retry at another pod"),
    Transition(SENT, OVER, "it failed, or its client disconnected"),
    Transition(ANSWERING, DELIVERING, "the response is complete, and its client has not taken all of it"),
    Transition(ANSWERING, OVER, "the response is complete, or cut short"),
    Transition(DELIVERING, OVER, "the client has taken the response, takes no more, or disconnected"),
    Transition(TUNNEL, CLIENT_ENDED, "the client has ended its direction"),
    Transition(TUNNEL, POD_ENDED, "the pod has ended its direction"),
    Transition(TUNNEL, OVER, "it is aborted"),
    Transition(LINKED_TUNNEL, OVER, "one side has ended it, or it is aborted"),
    Transition(CLIENT_ENDED, OVER, "the pod has ended its direction, too, or it is aborted"),
    Transition(POD_ENDED, OVER, "the client has ended its direction, too, or it is aborted"),
)

_LEGAL: Final[bytes] = legal_steps(TRANSITIONS)  # used five times per request


def is_legal(phase: i64, to: i64) -> bool:
    """Return True if the table has a step from `phase` to `to`."""
    return _LEGAL[(phase << PHASE_BITS) | to] != 0


def illegal(phase: int, to: int) -> IllegalTransitionError:
    """Return the error for a step from `phase` to `to`."""
    return IllegalTransitionError("a request", PHASE_NAMES[phase], PHASE_NAMES[to])
