"""What members say as bytes: both kinds of frames bring back what was said, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.data_plane.loads.messages import PodLoad, PodLoads
from activator.data_plane.ownership.messages import (
    Cancel,
    Granted,
    HeldSlot,
    Queued,
    Recall,
    Refused,
    Register,
    Registered,
    Released,
    Returned,
    Revoked,
    Suspected,
    TrialOver,
    WaitingRequest,
    Want,
)
from activator.data_plane.quotas.messages import (
    Decision,
    Level,
    OwnQuota,
    QuotaDecision,
    QuotaLevel,
    QuotaLevelAck,
    QuotaQuery,
    QuotaRelease,
    QuotaReleaseAck,
    QuotaRequest,
    QuotaState,
)
from activator.data_plane.stored_responses.messages import StoredResponsePart, StoredResponseQuery
from activator.workers.frames import DecodeError, decode, encode, pack, unpack

numbers = st.integers(0, 2**62)
times = st.floats(0.0, 1e9)
names = st.text(max_size=20)
common = (st.integers(0, 2**53), names)
ordinary = st.builds(WaitingRequest, numbers, st.just(0), times)
waiting = ordinary | st.builds(
    WaitingRequest,
    *(numbers, numbers, times, numbers, st.booleans(), st.integers(-9, 9), st.binary(max_size=9), st.integers(1, 9)),
    *(times | st.just(float("inf")), times, names),
)
held = st.builds(HeldSlot, numbers, names, names)
pairs = st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple)
levels = st.builds(Level, numbers, times, times, st.booleans())
decisions = st.builds(Decision, names, times, numbers, times, numbers, times)
quotas = st.builds(OwnQuota, names, st.none() | levels, pairs, st.lists(numbers, max_size=3).map(tuple), pairs)
said = st.one_of(
    st.builds(Register, *common, st.lists(held).map(tuple), st.lists(waiting).map(tuple)),
    st.builds(Registered, *common),
    st.builds(Want, *common, waiting),
    st.builds(Cancel, *common, numbers),
    st.builds(Released, *common, numbers, times, st.booleans()),
    st.builds(Returned, *common, st.lists(numbers).map(tuple)),
    st.builds(TrialOver, *common, numbers),
    st.builds(Suspected, *common, numbers),
    st.builds(Queued, *common, numbers, numbers),
    st.builds(Granted, *common, numbers, numbers, numbers, names, names, st.booleans(), st.booleans()),
    st.builds(Refused, *common, numbers, names, names),
    st.builds(Recall, *common),
    st.builds(Revoked, *common, numbers, names, names),
    st.builds(QuotaQuery, numbers, numbers),
    st.builds(QuotaState, numbers, numbers, st.lists(quotas, max_size=3).map(tuple)),
    st.builds(QuotaRequest, numbers, names, numbers, numbers),
    st.builds(QuotaDecision, numbers, names, numbers, decisions),
    st.builds(QuotaRelease, numbers, names, numbers, st.integers(-(2**40), 2**40)),
    st.builds(QuotaReleaseAck, numbers, names, numbers),
    st.builds(QuotaLevel, numbers, names, levels, times, times),
    st.builds(QuotaLevelAck, numbers, names, times, times),
    st.just(PodLoads("ns/a#0", True, (PodLoad("pod", 3),))),
    st.just(StoredResponseQuery(1, "place", "GET", 0)),
    st.just(StoredResponsePart(1, 200, b"OK", b"", True, 3, b"abc", [(b"a", b"b")])),
)


@given(st.lists(said))
def test_what_is_said_comes_back_in_its_order(batch: list[Any]) -> None:
    assert unpack(pack(batch)) == batch
    assert decode(encode(batch)) == batch


def test_replicas_of_former_versions_are_understood() -> None:
    """Frames as the former versions of the program write them."""
    infinite = float("inf")
    waits = [5, 0, 0.5, 0, False, 0, b"", 1, infinite, infinite, ""]
    frames: dict[str, tuple[list[Any], Any]] = {
        "Want": (["Want", 3, "ns/a", waits], Want(3, "ns/a", WaitingRequest(5, 0, 0.5))),
        "Granted": (
            ["Granted", 3, "ns/a", 5, 9, 7, "pod", "10.0.0.1:80", True, False],
            Granted(3, "ns/a", 5, 9, 7, "pod", "10.0.0.1:80", True, False),
        ),
        "Register": (
            ["Register", 3, "ns/a", [[7, "pod", "10.0.0.1:80"]], [waits]],
            Register(3, "ns/a", (HeldSlot(7, "pod", "10.0.0.1:80"),), (WaitingRequest(5, 0, 0.5),)),
        ),
        "AskAnswer": (["AskAnswer", 1, "place", "GET", 0], StoredResponseQuery(1, "place", "GET", 0)),
        "TellAnswer": (
            ["TellAnswer", 1, 200, b"OK", b"", True, 3, b"abc", [(b"a", b"b")], True],
            StoredResponsePart(1, 200, b"OK", b"", True, 3, b"abc", [(b"a", b"b")], True),
        ),
    }
    for written, meant in frames.values():
        data = msgspec.msgpack.encode([written])
        assert decode(data) == [meant]
        assert encode([meant]) == data


@pytest.mark.parametrize(
    "frame",
    [
        [],
        [[1]],
        [[1], [], [], []],  # it ends within a message
        [[4, 7], [], [], []],
        [[3, 1, 2, 3, 0], [], ["pod"], []],
        [[0, 1], [], [], []],
        [[6], [], [], []],
        [[9], [], [], []],
        [[-1], [], [], []],
        [[2, "a", 1], [], [], []],
        [[6], [], [], [["Cancel", 1, "a", "b"]]],
        [[6], [], [], [["Nothing", 1, "a"]]],
        [[6], [], [], [[]]],
        [[6], [], [], [[["Cancel"], 1, "a", 2]]],
    ],
    ids=repr,
)
def test_what_is_no_packed_frame_is_refused(frame: list[Any]) -> None:
    with pytest.raises(DecodeError):
        unpack(msgspec.msgpack.encode(frame))


@pytest.mark.parametrize("frame", [[1], [["Cancel", 1, "a"]], [["Cancel", "a", 1, 1]], [["No", 1, "a"]], {}], ids=repr)
def test_what_is_no_plain_frame_is_refused(frame: Any) -> None:
    with pytest.raises(DecodeError):
        decode(msgspec.msgpack.encode(frame))


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for take in (unpack, decode):
        try:
            take(data)
        except (DecodeError, UnicodeDecodeError):
            continue


@given(st.lists(said, min_size=1), st.data())
def test_no_changed_frame_raises_anything_else(batch: list[Any], data: st.DataObject) -> None:
    frame = bytearray(pack(batch))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    try:
        unpack(bytes(frame))
    except (DecodeError, UnicodeDecodeError):
        pass
