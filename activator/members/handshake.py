"""The authentication of two members at the start of a connection, and the codes that sign all later frames.

Rules
  1. Both prove that they have the group's key, over fresh random numbers of both and everything that was sent. Before
     that, no received data has an effect, and no frame may be longer than GREETING_BYTES_MAX.
  2. The dialer proves first, and identifies itself last: Opening (dialer: a random number), Challenge (listener: a
     random number), Proof (dialer), Answer (listener: its identity, with its proof), Greeting (dialer: its identity),
     Welcome. Each is one frame. So a dialer without the key gets a random number and a refusal. A listener without the
     key gets one code to guess keys against, which the stretched key (key.py) makes expensive, and no identity.
  3. Each later frame carries a code (BLAKE2b, keyed; RFC 7693) of its bytes and its position: a frame that was changed,
     repeated or left out in transit is detected. Frames are not encrypted; they have names of revisions and addresses
     of pods.
  4. The two use the newest version of the protocol that both know. If there is none, each side gets the version of the
     other, and the connection ends.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

_T = TypeVar("_T")

PROTOCOL: Final = 4  # to be increased when two versions could misunderstand each other
OLDEST_PROTOCOL: Final = 4  # earlier versions close a link that carries the quotas of users
MAGIC: Final = "activator-members"
NONCE_BYTES: Final = 32
CODE_BYTES: Final = 16
GREETING_BYTES_MAX: Final = 1024
KEY_BYTES_MIN: Final = 16


class HandshakeError(Exception):
    """The other side is not a member of this group, or speaks another protocol. The text is the reason."""


class NotWantedError(HandshakeError):
    """The connection is not needed, for example because one exists already. This is not a fault."""


class Process(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a process on its machine, by which its end can be proven (proof.py)."""

    machine: str  # the boot ID, and the inode of the PID namespace
    process: int
    started: int  # in clock ticks since the boot


class PeerIdentity(msgspec.Struct, frozen=True, array_like=True):
    """The identity of one end. `data_plane` is the number of a data plane, or 0 for the replica as a whole."""

    group: str
    replica: int
    data_plane: int
    address: str  # its listening address
    process: Process


class Opening(msgspec.Struct, frozen=True, tag="greeting", array_like=True):
    """The first frame. Members of versions 1 and 2 can decode it, and refuse it with their version.

    `identity` and `wanted` are empty; only those versions use them.
    """

    magic: str
    version: int
    oldest: int
    nonce: bytes
    identity: PeerIdentity = PeerIdentity("", 0, 0, "", Process("", 0, 0))
    wanted: int = 0


class Challenge(msgspec.Struct, frozen=True, tag="challenge", array_like=True):
    """The second frame, of the listener. `version` is used from this frame on."""

    version: int
    nonce: bytes


class Proof(msgspec.Struct, frozen=True, tag="proof", array_like=True):
    """The third frame: proves that the dialer has the key."""

    proof: bytes


class Answer(msgspec.Struct, frozen=True, tag="answer", array_like=True):
    """The fourth frame: proves that the listener has the key and this identity."""

    identity: PeerIdentity
    proof: bytes


class Greeting(msgspec.Struct, frozen=True, tag="party", array_like=True):  # the tag is part of the protocol
    """The fifth frame: the identity of the dialer.

    `wanted` is the data plane of the listener that the connection is for, or 0 for the replica as a whole.
    """

    identity: PeerIdentity
    wanted: int
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, tag="welcome", array_like=True):
    """The last frame: the listener accepts the connection."""

    proof: bytes


class Refusal(msgspec.Struct, frozen=True, tag="refusal", array_like=True):
    """Sent instead of any frame of the listener; the connection ends."""

    version: int
    reason: str


_ENCODER: Final = msgspec.msgpack.Encoder()
_OPENING: Final = msgspec.msgpack.Decoder(Opening)
_CHALLENGE: Final = msgspec.msgpack.Decoder(Challenge | Refusal)
_PROOF: Final = msgspec.msgpack.Decoder(Proof)
_ANSWER: Final = msgspec.msgpack.Decoder(Answer | Refusal)
_GREETING: Final = msgspec.msgpack.Decoder(Greeting)
_WELCOME: Final = msgspec.msgpack.Decoder(Welcome | Refusal)

WITHOUT_KEY: Final = "it does not have the key of this group"


class SessionKeys(msgspec.Struct, frozen=True, array_like=True):
    """The signing keys of one connection: for the frames that this end sends, and for those that it receives."""

    sends: bytes
    receives: bytes


class _Transcript:
    """The frames that both sides have sent, and codes over them with the group's key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._sent = hashlib.sha256()

    def add(self, frame: bytes) -> None:
        """Append a frame that one of the two sides has sent."""
        self._sent.update(len(frame).to_bytes(4, "big") + frame)

    def code(self, purpose: bytes, *more: bytes) -> bytes:
        """Return the code of all frames so far, and of `more`."""
        return hmac.digest(self._key, b"\0".join([purpose, self._sent.digest(), *more]), "sha256")

    def check(self, code: bytes, purpose: bytes, *more: bytes) -> None:
        """Verify the authentication code over all frames so far and `more`. Raises HandshakeError if it differs."""
        if not hmac.compare_digest(code, self.code(purpose, *more)):
            raise HandshakeError(WITHOUT_KEY)


class HandshakeClient:
    """The side that has connected. `expected` is the replica that must answer, or 0 for any.

    To be used in the order `opening`, `take_challenge`, `take_answer`, `take_welcome`. `version` is the protocol in
    use, valid after `take_challenge`.
    """

    def __init__(
        self, key: bytes, identity: PeerIdentity, wanted: int, expected: int, nonce: bytes, newest: int = PROTOCOL
    ) -> None:
        self._identity = identity
        self._wanted = wanted
        self._expected = expected
        self._newest = newest
        self._other = identity  # the listener's identity, after `take_answer`
        self._transcript = _Transcript(key)
        self.version = 0
        self.opening = _ENCODER.encode(Opening(MAGIC, newest, OLDEST_PROTOCOL, nonce))
        self._transcript.add(self.opening)

    def take_challenge(self, frame: bytes) -> bytes:
        """Check the challenge, and return the proof to send. Raises HandshakeError."""
        challenge = _decoded(_CHALLENGE, frame)
        if isinstance(challenge, Refusal):
            raise _refused(challenge)
        if not OLDEST_PROTOCOL <= challenge.version <= self._newest:
            raise HandshakeError(_other_version(challenge.version))
        if len(challenge.nonce) != NONCE_BYTES:
            raise HandshakeError("malformed frame")
        self.version = challenge.version
        self._transcript.add(frame)
        proof = _ENCODER.encode(Proof(self._transcript.code(b"dialer")))
        self._transcript.add(proof)
        return proof

    def take_answer(self, frame: bytes) -> bytes:
        """Check the answer, and return the greeting to send. Raises HandshakeError."""
        answer = _decoded(_ANSWER, frame)
        if isinstance(answer, Refusal):
            raise _refused(answer)
        self._transcript.check(answer.proof, b"listener", _ENCODER.encode(answer.identity))
        if answer.identity.group != self._identity.group:
            raise HandshakeError(f"it is of the group {answer.identity.group!r}")
        if self._expected and answer.identity.replica != self._expected:
            raise HandshakeError("another replica has that address now")
        self._other = answer.identity
        self._transcript.add(frame)
        code = self._transcript.code(b"party", _ENCODER.encode(self._identity), str(self._wanted).encode())
        greeting = _ENCODER.encode(Greeting(self._identity, self._wanted, code))
        self._transcript.add(greeting)
        return greeting

    def take_welcome(self, frame: bytes) -> tuple[PeerIdentity, SessionKeys]:
        """Check the welcome; return the identity of the other side, and the keys. Raises HandshakeError."""
        welcome = _decoded(_WELCOME, frame)
        if isinstance(welcome, Refusal):
            raise _refused(welcome)
        self._transcript.check(welcome.proof, b"welcome")
        keys = SessionKeys(self._transcript.code(b"to listener"), self._transcript.code(b"to dialer"))
        return replace(self._other, data_plane=self._wanted), keys


class HandshakeServer:
    """The side that was connected to.

    To be called in the order `take_opening`, `take_proof`, `take_greeting`, `welcome`. `version` is the protocol in
    use, valid after `take_opening`.
    """

    def __init__(self, key: bytes, group: str) -> None:
        self._group = group
        self._transcript = _Transcript(key)
        self.version = PROTOCOL

    def take_opening(self, frame: bytes, nonce: bytes) -> bytes:
        """Check the opening; return the challenge to send. Raises HandshakeError; an unknown peer may get its text."""
        opening = _decoded(_OPENING, frame)
        if opening.magic != MAGIC:
            raise HandshakeError("not a member")
        self.version = min(opening.version, PROTOCOL)
        if self.version < max(opening.oldest, OLDEST_PROTOCOL):
            raise HandshakeError(_other_version(opening.version))
        if len(opening.nonce) != NONCE_BYTES:
            raise HandshakeError("malformed frame")
        self._transcript.add(frame)
        challenge = _ENCODER.encode(Challenge(self.version, nonce))
        self._transcript.add(challenge)
        return challenge

    def take_proof(self, frame: bytes, identity: PeerIdentity) -> bytes:
        """Check the proof; return the answer that identifies this side. Raises HandshakeError; its text may be sent."""
        self._transcript.check(_decoded(_PROOF, frame).proof, b"dialer")
        self._transcript.add(frame)
        answer = _ENCODER.encode(Answer(identity, self._transcript.code(b"listener", _ENCODER.encode(identity))))
        self._transcript.add(answer)
        return answer

    def take_greeting(self, frame: bytes) -> Greeting:
        """Check the greeting, and return it with the dialer's identity. Raises HandshakeError; its text may be sent."""
        greeting = _decoded(_GREETING, frame)
        named = _ENCODER.encode(greeting.identity)
        self._transcript.check(greeting.proof, b"party", named, str(greeting.wanted).encode())
        if greeting.identity.group != self._group:
            raise HandshakeError("another group")
        self._transcript.add(frame)
        return greeting

    def welcome(self) -> tuple[bytes, SessionKeys]:
        """Return the last frame to send, and the keys."""
        keys = SessionKeys(self._transcript.code(b"to dialer"), self._transcript.code(b"to listener"))
        return _ENCODER.encode(Welcome(self._transcript.code(b"welcome"))), keys


class Seal:
    """The codes of the frames of one connection, in both directions."""

    def __init__(self, keys: SessionKeys) -> None:
        self._keys = keys
        self._sent = 0  # the number of the last frame
        self._received = 0  # the number of the last frame

    def code(self, data: bytes) -> bytes:
        """Return the code of the next frame to send. Takes some 1.2 us for 100 bytes."""
        self._sent += 1
        return _frame_code(self._keys.sends, self._sent, data)

    def fits(self, data: memoryview, code: memoryview) -> bool:
        """Return True if this is the code of the next frame of the other side."""
        self._received += 1
        return hmac.compare_digest(_frame_code(self._keys.receives, self._received, data), code)


def refusal(reason: str) -> bytes:
    """Return a frame that refuses the connection."""
    return _ENCODER.encode(Refusal(PROTOCOL, reason))


def _frame_code(key: bytes, number: int, data: bytes | memoryview) -> bytes:
    frame_code = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=CODE_BYTES, key=key)
    frame_code.update(data)
    return frame_code.digest()


def _refused(refusal: Refusal) -> HandshakeError:
    """Return the error of a refusal; NotWantedError unless the version or the key is the reason."""
    if not OLDEST_PROTOCOL <= refusal.version <= PROTOCOL:
        return HandshakeError(_other_version(refusal.version))
    if refusal.reason == WITHOUT_KEY:
        return HandshakeError("it reports that we do not have the key of its group: is the key the same for all?")
    return NotWantedError(refusal.reason)


def _other_version(version: int) -> str:
    return (
        f"version {version} of the protocol is not spoken here, but {OLDEST_PROTOCOL} to {PROTOCOL}: stop all members, "
        "and start them with one version of the program"
    )


def _decoded(decoder: msgspec.msgpack.Decoder[_T], frame: bytes) -> _T:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HandshakeError("malformed frame") from error
