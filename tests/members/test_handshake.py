"""Who may take part: the handshake between members, and the signatures of what they say afterwards."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.members.handshake import (
    GREETING_BYTES_MAX,
    KEY_BYTES_MIN,
    Dialer,
    HandshakeError,
    Listener,
    NotWantedError,
    Party,
    Process,
    Seal,
    SessionKeys,
    refusal,
)
from activator.members.key import read_key
from activator.runtime.errors import StartError

KEY = b"k" * 32
ONE = Party("edge", 1, 0, "10.0.0.1:8015", Process("machine", 1, 2))
OTHER = Party("edge", 2, 0, "10.0.0.2:8015", Process("machine", 3, 4))


def dialer(key: bytes = KEY, party: Party = ONE, expected: int = 0) -> Dialer:
    return Dialer(key, party, 0, expected, os.urandom(32))


def answered(by: Dialer, key: bytes = KEY, party: Party = OTHER) -> tuple[Listener, bytes]:
    listener = Listener(key, party.group)
    listener.take_greeting(by.greeting)
    return listener, listener.answer(by.greeting, party, os.urandom(32))


def met() -> tuple[SessionKeys, SessionKeys]:
    one = dialer()
    listener, answer = answered(one)
    proof, party, keys = one.take_answer(answer)
    assert party == OTHER
    return keys, listener.take_proof(proof)


def test_both_get_the_same_keys_crossed() -> None:
    one, other = met()
    assert (one.sends, one.receives) == (other.receives, other.sends)
    assert one.sends != one.receives


def test_no_two_connections_have_the_same_keys() -> None:
    assert met()[0].sends != met()[0].sends


def test_all_frames_are_short() -> None:
    long = Party(
        "g" * 63, (1 << 48) - 1, (1 << 60) - 1, "[" + "f" * 39 + "]:65535", Process("m" * 60, 1 << 30, 1 << 60)
    )
    one = dialer(party=long)
    listener = Listener(KEY, long.group)
    listener.take_greeting(one.greeting)
    answer = listener.answer(one.greeting, long, os.urandom(32))
    assert max(len(one.greeting), len(answer)) < GREETING_BYTES_MAX


def test_a_listener_without_the_key_is_refused() -> None:
    one = dialer()
    _, answer = answered(one, key=b"x" * 32)
    with pytest.raises(HandshakeError, match="does not have the key"):
        one.take_answer(answer)


def test_a_dialer_without_the_key_is_refused() -> None:
    """It cannot make the proof; it could at most say back what the listener has said."""
    one = dialer(key=b"x" * 32)
    listener, answer = answered(one)
    with pytest.raises(HandshakeError):
        one.take_answer(answer)
    for attempt in (answer, one.greeting, b"", b"\x92\xa5proof\xc4\x20" + b"\0" * 32):
        with pytest.raises(HandshakeError):
            listener.take_proof(attempt)


def test_a_proof_is_good_for_one_connection() -> None:
    one = dialer()
    _, answer = answered(one)
    proof, _, _ = one.take_answer(answer)
    later, _ = answered(one)
    with pytest.raises(HandshakeError, match="does not have the key"):
        later.take_proof(proof)


def test_another_group_another_version_and_another_program_are_told_apart() -> None:
    with pytest.raises(HandshakeError, match="another group"):
        Listener(KEY, "core").take_greeting(dialer().greeting)
    with pytest.raises(HandshakeError, match="not what a member says"):
        Listener(KEY, "edge").take_greeting(b"GET / HTTP/1.1\r\n")
    newer = dialer().greeting.replace(b"activator-members\x02\x01", b"activator-members\x04\x03")
    with pytest.raises(HandshakeError, match="version 4 of the protocol is not spoken here"):
        Listener(KEY, "edge").take_greeting(newer)
    with pytest.raises(NotWantedError, match=r"version 3 of the protocol is not spoken here \(its version"):
        dialer().take_answer(refusal("version 3 of the protocol is not spoken here"))


@pytest.mark.parametrize(("newest", "spoken"), [(1, 1), (2, 2), (3, 2)])
def test_a_newer_member_speaks_as_the_older_one_does(newest: int, spoken: int) -> None:
    """So a group is upgraded one member after the other; both know which version it is."""
    newer = Dialer(KEY, ONE, 0, 0, os.urandom(32), newest=newest)
    listener, answer = answered(newer)
    proof, _, keys = newer.take_answer(answer)
    assert listener.take_proof(proof).receives == keys.sends
    assert (newer.version, listener.version) == (spoken, spoken)


def test_whoever_is_expected_must_answer() -> None:
    one = dialer(expected=7)
    _, answer = answered(one)
    with pytest.raises(HandshakeError, match="another replica has that address now"):
        one.take_answer(answer)


@given(place=st.integers(0, 400), change=st.integers(1, 255), whose=st.sampled_from(["greeting", "answer", "proof"]))
def test_whatever_is_changed_on_the_way_is_noticed(place: int, change: int, whose: str) -> None:
    one = dialer()

    def altered(frame: bytes, name: str) -> bytes:
        if name != whose:
            return frame
        at = place % len(frame)
        return frame[:at] + bytes([frame[at] ^ change]) + frame[at + 1 :]

    listener = Listener(KEY, "edge")
    greeting = altered(one.greeting, "greeting")

    def meet() -> None:
        listener.take_greeting(greeting)
        answer = altered(listener.answer(greeting, OTHER, os.urandom(32)), "answer")
        proof, _, _ = one.take_answer(answer)
        listener.take_proof(altered(proof, "proof"))

    with pytest.raises(HandshakeError):
        meet()


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
