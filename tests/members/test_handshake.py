"""Who may take part: the handshake between members, and the signatures of what they say afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from activator.members.handshake import (
    GREETING_BYTES_MAX,
    KEY_BYTES_MIN,
    PROTOCOL,
    WITHOUT_KEY,
    HandshakeClient,
    HandshakeError,
    HandshakeServer,
    NotWantedError,
    PeerIdentity,
    Process,
    Seal,
    SessionKeys,
    refusal,
)
from activator.members.key import read_key, stretched
from activator.runtime.errors import StartError

KEY = b"k" * 32
ONE = PeerIdentity("edge", 1, 0, "10.0.0.1:8015", Process("machine", 1, 2))
OTHER = PeerIdentity("edge", 2, 0, "10.0.0.2:8015", Process("machine", 3, 4))


def dialer(key: bytes = KEY, identity: PeerIdentity = ONE, expected: int = 0) -> HandshakeClient:
    return HandshakeClient(key, identity, 9, expected, os.urandom(32))


def shake(
    one: HandshakeClient,
    listener: HandshakeServer,
    identity: PeerIdentity = OTHER,
    on_the_way: Callable[[str, bytes], bytes] = lambda _, frame: frame,
) -> tuple[SessionKeys, SessionKeys]:
    """Run the handshake; `on_the_way(name, frame)` is what arrives of a frame."""
    challenge = listener.take_opening(on_the_way("opening", one.opening), os.urandom(32))
    proof = one.take_challenge(on_the_way("challenge", challenge))
    answer = listener.take_proof(on_the_way("proof", proof), identity)
    greeting = one.take_answer(on_the_way("answer", answer))
    greeted = listener.take_greeting(on_the_way("greeting", greeting))
    welcome, theirs = listener.welcome()
    other, ours = one.take_welcome(on_the_way("welcome", welcome))
    assert (greeted.identity, greeted.wanted) == (ONE, 9) and other == replace(identity, data_plane=9)
    return ours, theirs


def met() -> tuple[SessionKeys, SessionKeys]:
    return shake(dialer(), HandshakeServer(KEY, "edge"))


def test_both_get_the_same_keys_crossed() -> None:
    one, other = met()
    assert (one.sends, one.receives) == (other.receives, other.sends)
    assert one.sends != one.receives


def test_no_two_connections_have_the_same_keys() -> None:
    assert met()[0].sends != met()[0].sends


def test_all_frames_are_short() -> None:
    long = PeerIdentity(
        "g" * 63, (1 << 48) - 1, (1 << 60) - 1, "[" + "f" * 39 + "]:65535", Process("m" * 60, 1 << 30, 1 << 60)
    )
    one = HandshakeClient(KEY, long, (1 << 60) - 1, 0, os.urandom(32))
    listener = HandshakeServer(KEY, long.group)
    frames = [one.opening]
    frames.append(listener.take_opening(one.opening, os.urandom(32)))
    frames.append(one.take_challenge(frames[-1]))
    frames.append(listener.take_proof(frames[-1], long))
    frames.append(one.take_answer(frames[-1]))
    listener.take_greeting(frames[-1])
    assert max(len(frame) for frame in frames) < GREETING_BYTES_MAX


SECRETS = (b"10.0.0.", b"machine", b"edge")


def test_a_stranger_who_connects_gets_a_random_number_and_a_refusal() -> None:
    """No name, and no code to guess keys against: whatever it sends, the answer waits for its proof."""
    one = dialer(key=b"x" * 32)
    nonce = os.urandom(32)
    listener = HandshakeServer(KEY, "edge")
    challenge = listener.take_opening(one.opening, nonce)
    assert challenge == msgspec.msgpack.encode(["challenge", PROTOCOL, nonce]), "nothing but these"
    for attempt in (one.take_challenge(challenge), challenge, one.opening, b"", b"\x92\xa5proof\xc4\x20" + b"\0" * 32):
        with pytest.raises(HandshakeError):
            listener.take_proof(attempt, OTHER)
    assert not any(secret in refusal(WITHOUT_KEY) for secret in SECRETS)


def test_a_stranger_who_listens_gets_one_code_and_no_name() -> None:
    one = dialer()
    stranger = HandshakeServer(b"x" * 32, "edge")
    proof = one.take_challenge(stranger.take_opening(one.opening, os.urandom(32)))
    assert not any(secret in frame for secret in SECRETS for frame in (one.opening, proof))
    with pytest.raises(HandshakeError):
        stranger.take_proof(proof, OTHER)
    fake = msgspec.msgpack.encode(["answer", OTHER, b"\0" * 32])
    with pytest.raises(HandshakeError, match="does not have the key"):
        one.take_answer(fake)


def test_frames_of_another_handshake_are_good_for_nothing() -> None:
    """Every frame that a member has sent is recorded, and sent again to each of the two."""
    recorded: dict[str, bytes] = {}

    def record(name: str, frame: bytes) -> bytes:
        recorded[name] = frame
        return frame

    shake(dialer(), HandshakeServer(KEY, "edge"), on_the_way=record)
    replayed = HandshakeServer(KEY, "edge")
    replayed.take_opening(recorded["opening"], os.urandom(32))
    with pytest.raises(HandshakeError, match="does not have the key"):
        replayed.take_proof(recorded["proof"], OTHER)
    for name in ("challenge", "answer", "greeting", "welcome", "proof"):

        def replay(one: str, frame: bytes, name: str = name) -> bytes:
            return recorded[one] if one == name else frame

        with pytest.raises(HandshakeError):
            shake(dialer(), HandshakeServer(KEY, "edge"), on_the_way=replay)


def test_what_one_side_has_sent_is_no_proof_of_the_other() -> None:
    """A stranger between two dialers cannot have them prove themselves to each other as listeners."""
    one, listener = dialer(), HandshakeServer(KEY, "edge")
    proof = one.take_challenge(listener.take_opening(one.opening, os.urandom(32)))
    with pytest.raises(HandshakeError):
        one.take_answer(proof)


def test_another_group_and_another_program_are_refused() -> None:
    with pytest.raises(HandshakeError, match="another group"):
        shake(dialer(), HandshakeServer(KEY, "core"))
    with pytest.raises(HandshakeError, match="does not have the key"):
        shake(dialer(stretched(KEY, "edge")), HandshakeServer(stretched(KEY, "core"), "edge"))
    with pytest.raises(HandshakeError, match="malformed frame"):
        HandshakeServer(KEY, "edge").take_opening(b"GET / HTTP/1.1\r\n", os.urandom(32))


def test_an_old_version_is_refused_and_both_sides_know_why() -> None:
    """The first frame of versions 1 and 2 named the replica; the answer had a code over it."""
    former = msgspec.msgpack.encode(["greeting", "activator-members", 2, 1, os.urandom(32), ONE, 0])
    with pytest.raises(HandshakeError, match="version 2 of the protocol is not spoken here, but 4 to 4: stop all"):
        HandshakeServer(KEY, "edge").take_opening(former, os.urandom(32))
    with pytest.raises(HandshakeError, match="version 2 of the protocol is not spoken here, but 4 to 4") as error:
        dialer().take_challenge(msgspec.msgpack.encode(["refusal", 2, "version 4 of the protocol is not spoken here"]))
    assert not isinstance(error.value, NotWantedError), "it is logged and counted"
    shown = msgspec.msgpack.decode(dialer().opening)
    assert shown[:4] == ["greeting", "activator-members", 4, 4] and len(shown) == 7, "a former version can read it"
    assert shown[5] == ["", 0, 0, "", ["", 0, 0]]


def test_a_newer_member_speaks_as_the_older_one_does() -> None:
    newer = HandshakeClient(KEY, ONE, 9, 0, os.urandom(32), newest=PROTOCOL + 1)
    shake(newer, HandshakeServer(KEY, "edge"))
    assert newer.version == PROTOCOL


def test_a_refusal_of_a_member_is_no_lasting_one() -> None:
    one = dialer()
    one.take_challenge(HandshakeServer(KEY, "edge").take_opening(one.opening, os.urandom(32)))
    with pytest.raises(NotWantedError, match="not in this view"):
        one.take_welcome(refusal("not in this view"))


def test_whoever_is_expected_must_answer() -> None:
    with pytest.raises(HandshakeError, match="another replica has that address now"):
        shake(dialer(expected=7), HandshakeServer(KEY, "edge"))


FRAMES = ["opening", "challenge", "proof", "answer", "greeting", "welcome"]


@given(place=st.integers(0, 400), change=st.integers(1, 255), whose=st.sampled_from(FRAMES))
def test_whatever_is_changed_on_the_way_is_noticed(place: int, change: int, whose: str) -> None:
    def altered(name: str, frame: bytes) -> bytes:
        if name != whose:
            return frame
        at = place % len(frame)
        return frame[:at] + bytes([frame[at] ^ change]) + frame[at + 1 :]

    with pytest.raises(HandshakeError):
        shake(dialer(), HandshakeServer(KEY, "edge"), on_the_way=altered)


@given(size=st.integers(0, 200), whose=st.sampled_from(FRAMES))
def test_whatever_is_cut_on_the_way_is_noticed(size: int, whose: str) -> None:
    def cut(name: str, frame: bytes) -> bytes:
        return frame if name != whose else frame[: size % len(frame)]

    with pytest.raises(HandshakeError):
        shake(dialer(), HandshakeServer(KEY, "edge"), on_the_way=cut)


def test_frames_are_good_once_and_in_order() -> None:
    one_keys, other_keys = met()
    one, other = Seal(one_keys), Seal(other_keys)
    frames = [(data, one.code(data)) for data in (b"a", b"b", b"")]
    assert all(other.fits(memoryview(data), memoryview(code)) for data, code in frames)
    again = Seal(other_keys)
    assert not again.fits(memoryview(frames[1][0]), memoryview(frames[1][1])), "the second one is not the first"
    back = Seal(one_keys)
    assert not back.fits(memoryview(frames[0][0]), memoryview(frames[0][1])), "its own words are not the other's"


def test_a_key_is_read_and_must_be_long_enough(tmp_path: object) -> None:
    path = f"{tmp_path}/key"
    with open(path, "wb") as file:
        file.write(b"  " + b"x" * KEY_BYTES_MIN + b"\n")
    assert read_key(path) == b"x" * KEY_BYTES_MIN
    with open(path, "wb") as file:
        file.write(b"short\n")
    with pytest.raises(StartError, match="has 5 bytes, and at least 16 are needed"):
        read_key(path)
    with pytest.raises(StartError, match="cannot be read: No such file"):
        read_key(f"{tmp_path}/none")
