"""What replicas of two versions of the program send each other about their data planes."""

from __future__ import annotations

import msgspec

from activator.data_plane.ownership.names import MemberName
from activator.members.messages import GroupView, Propose, Replica, decode, encode


class EarlierPropose(msgspec.Struct, frozen=True, tag="Propose", array_like=True):
    """A proposal as it was before it named the processes of unproven replicas."""

    view: GroupView


def test_a_data_plane_is_the_list_of_its_fields_as_in_version_3_of_the_protocol() -> None:
    written = ["Propose", [5, [[1, [[7, 2, 33, 44, True]], True, "machine", 3, 4, "uid"]], [9]]]
    replica = Replica(1, (MemberName(7, 2, 33, 44, True),), True, "machine", 3, 4, "uid")
    data = msgspec.msgpack.encode(written)
    assert decode(data) == Propose(GroupView(5, (replica,), (9,)))
    assert encode(Propose(GroupView(5, (replica,), (9,)))) == msgspec.msgpack.encode([*written, []])
    known = encode(Propose(GroupView(5, (replica,), (9,)), (replica,)))
    earlier = msgspec.msgpack.decode(known, type=EarlierPropose)
    assert earlier.view == GroupView(5, (replica,), (9,))


def test_fields_that_the_sender_or_this_replica_does_not_know_change_nothing_else() -> None:
    shorter = msgspec.msgpack.encode(["Propose", [5, [[1, [[7, 2]]]], []]])
    assert decode(shorter) == Propose(GroupView(5, (Replica(1, (MemberName(7, 2),)),), ()))
    longer = msgspec.msgpack.encode(["Propose", [5, [[1, [[7, 2, 0, 0, False, "later"]]]], []]])
    assert decode(longer) == decode(shorter)
