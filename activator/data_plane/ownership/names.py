"""The name of a member: one type for views and for the messages of replicas about their data planes.

This module is not compiled, because mypyc would drop the options of the struct.
"""

from __future__ import annotations

import msgspec


class MemberName(msgspec.Struct, frozen=True, array_like=True):
    """The name of a data plane as a member of a view, and its process (members/proof.py).

    `number`: unique per process life; `place`: its index, by which owners are computed (view.py); `process` and
    `started`: PID and start time of a worker in a group, else 0; `drains`: it takes no new clients, and owns nothing.

    Replicas send it as the list of its fields, also to versions that know fewer of them: fields are only appended.
    """

    number: int
    place: int
    process: int = 0
    started: int = 0
    drains: bool = False
