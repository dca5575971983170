"""How two members make sure of each other before anything else is said on a connection, and how they sign what follows.

Rules
  1. Both prove that they have the group's key, over fresh random numbers of both and everything that was said. Nothing
     that is said before is acted on, or is longer than GREETING_BYTES_MAX.
  2. Each frame carries a code (BLAKE2b, keyed; RFC 7693) of its bytes and its place in the order: nobody on the way can
     change, repeat, or leave out one. What is said is not encrypted: it has names of revisions and addresses of pods.
  3. The steps: Greeting (dialer), Answer (listener, with its proof), Proof (dialer). Each is one frame.
  4. The two speak the newest version of the protocol that both know, so that the members of a group can be upgraded one
     after the other. Where there is none, the other side is told ours, and the connection ends.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, TypeVar

import msgspec

_T = TypeVar("_T")

PROTOCOL: Final = 2  # goes up where two versions could misunderstand each other …
OLDEST_PROTOCOL: Final = 1  # … and this, a release later, where the former one is not spoken any more
MAGIC: Final = "activator-members"
NONCE_BYTES: Final = 32
CODE_BYTES: Final = 16
GREETING_BYTES_MAX: Final = 1024
KEY_BYTES_MIN: Final = 16


class HandshakeError(Exception):
    """The other side is not a member of this group, or cannot be spoken with; says why."""


class NotWantedError(HandshakeError):
    """One of the two sides does not want this connection just now, which may be as it should be."""


class Process(msgspec.Struct, frozen=True, array_like=True):
    """A process as its machine knows it: enough to see whether it has ended (proof.py)."""

    machine: str  # the boot and the namespace of processes
    process: int
    started: int  # in clock ticks since the boot


class Party(msgspec.Struct, frozen=True, array_like=True):
    """One end. `data_plane`: 0 for the replica as a whole, else the number of one of its data planes."""

    group: str
    replica: int
    data_plane: int
    address: str  # where it listens
    process: Process


class Greeting(msgspec.Struct, frozen=True, tag="greeting", array_like=True):
    """The first frame. `wanted`: the data plane that is to be spoken with, 0 for the replica as a whole."""

    magic: str
    version: int
    oldest: int
    nonce: bytes
    party: Party
    wanted: int


class Answer(msgspec.Struct, frozen=True, tag="answer", array_like=True):
    """The second one. `version`: the one that is spoken from here on."""

    version: int
    nonce: bytes
    party: Party
    proof: bytes


class Proof(msgspec.Struct, frozen=True, tag="proof", array_like=True):
    """The third one."""

    proof: bytes


class Refusal(msgspec.Struct, frozen=True, tag="refusal", array_like=True):
    """Instead of an answer."""

    version: int
    reason: str


_ENCODER: Final = msgspec.msgpack.Encoder()
_GREETING: Final = msgspec.msgpack.Decoder(Greeting)
_ANSWER: Final = msgspec.msgpack.Decoder(Answer | Refusal)
_PROOF: Final = msgspec.msgpack.Decoder(Proof)


class SessionKeys(msgspec.Struct, frozen=True, array_like=True):
    """Of one connection: what its two ends sign with. `sends`, `receives` are as this end does."""

    sends: bytes
    receives: bytes


class Dialer:
    """The side that has connected. `expected`: the replica that must answer, 0 for whoever has the address.

    `version`: that is spoken, once there is an answer.
    """

    def __init__(
        self, key: bytes, party: Party, wanted: int, expected: int, nonce: bytes, newest: int = PROTOCOL
    ) -> None:
        self._key = key
        self._party = party
        self._expected = expected
        self._newest = newest
        self.version = 0
        self.greeting = _ENCODER.encode(Greeting(MAGIC, newest, OLDEST_PROTOCOL, nonce, party, wanted))

    def take_answer(self, frame: bytes) -> tuple[bytes, Party, SessionKeys]:
        """The proof to send, who the other one is, and the keys. Raises HandshakeError."""
        answer = _decoded(_ANSWER, frame)
        if isinstance(answer, Refusal):
            raise NotWantedError(f"{answer.reason} (its version of the protocol is {answer.version})")
        if not OLDEST_PROTOCOL <= answer.version <= self._newest:
            raise HandshakeError(f"it speaks version {answer.version} of the protocol, which nobody here does")
        said = _said(self.greeting, answer)
        if not hmac.compare_digest(answer.proof, _code(self._key, b"listener", said)):
            raise HandshakeError("it does not have the key of this group")
        if answer.party.group != self._party.group:
            raise HandshakeError(f"it is of the group {answer.party.group!r}")
        if self._expected and answer.party.replica != self._expected:
            raise HandshakeError("another replica has that address now")
        keys = SessionKeys(_code(self._key, b"to listener", said), _code(self._key, b"to dialer", said))
        self.version = answer.version
        return _ENCODER.encode(Proof(_code(self._key, b"dialer", said))), answer.party, keys


class Listener:
    """The side that was connected to. `party` is as it answers; `version`: that is spoken, once there is a greeting."""

    def __init__(self, key: bytes, group: str) -> None:
        self._key = key
        self._group = group
        self.version = PROTOCOL
        self._said = b""

    def take_greeting(self, frame: bytes) -> Greeting:
        """Raises HandshakeError, whose words may be said to the other side."""
        greeting = _decoded(_GREETING, frame)
        if greeting.magic != MAGIC:
            raise HandshakeError("not a member")
        self.version = min(greeting.version, PROTOCOL)
        if self.version < max(greeting.oldest, OLDEST_PROTOCOL):
            raise HandshakeError(f"version {greeting.version} of the protocol is not spoken here")
        if greeting.party.group != self._group:
            raise HandshakeError("another group")
        return greeting

    def answer(self, greeting_frame: bytes, party: Party, nonce: bytes) -> bytes:
        bare = Answer(self.version, nonce, party, b"")
        self._said = _said(greeting_frame, bare)
        return _ENCODER.encode(Answer(self.version, nonce, party, _code(self._key, b"listener", self._said)))

    def take_proof(self, frame: bytes) -> SessionKeys:
        """Raises HandshakeError."""
        proof = _decoded(_PROOF, frame)
        if not hmac.compare_digest(proof.proof, _code(self._key, b"dialer", self._said)):
            raise HandshakeError("it does not have the key of this group")
        return SessionKeys(_code(self._key, b"to dialer", self._said), _code(self._key, b"to listener", self._said))


class Seal:
    """Signs the frames of one connection, and checks those that come."""

    def __init__(self, keys: SessionKeys) -> None:
        self._keys = keys
        self._sent = 0
        self._received = 0

    def code(self, data: bytes) -> bytes:
        """Of the next frame to be sent. Some 1.2 us for 100 bytes."""
        self._sent += 1
        return _frame_code(self._keys.sends, self._sent, data)

    def fits(self, data: memoryview, code: memoryview) -> bool:
        """Whether this is the next frame of the other side."""
        self._received += 1
        return hmac.compare_digest(_frame_code(self._keys.receives, self._received, data), code)


def refusal(reason: str) -> bytes:
    return _ENCODER.encode(Refusal(PROTOCOL, reason))


def _frame_code(key: bytes, number: int, data: bytes | memoryview) -> bytes:
    made = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=CODE_BYTES, key=key)
    made.update(data)
    return made.digest()


def _said(greeting: bytes, answer: Answer) -> bytes:
    bare = _ENCODER.encode(Answer(answer.version, answer.nonce, answer.party, b""))
    return hashlib.sha256(greeting).digest() + hashlib.sha256(bare).digest()


def _code(key: bytes, purpose: bytes, said: bytes) -> bytes:
    return hmac.digest(key, purpose + b"\0" + said, "sha256")


def _decoded(decoder: msgspec.msgpack.Decoder[_T], frame: bytes) -> _T:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HandshakeError("not what a member says") from error
