"""The replicas that hold limits together."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Duration, doc

STRICT: Final = "strict"
PROMPT: Final = "prompt"
PROOFS: Final = (STRICT, PROMPT)


class Members(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicas of this program that hold the limits of revisions together, each on a machine or a port of its own."""

    listen: Annotated[str, doc("Where the other members connect. Empty: this program is alone.", "0.0.0.0:8015")] = ""
    address: Annotated[
        str,
        doc(
            "How the other members reach this one. Empty: the one of `peers` that is an address of this machine, with "
            "the port of `listen`.",
            "10.0.0.1:8015",
        ),
    ] = ""
    peers: Annotated[
        list[str],
        doc(
            "All members, this one among them. The same list in the file of each.",
            ["10.0.0.1:8015", "10.0.0.2:8015", "10.0.0.3:8015"],
        ),
    ] = []
    group: Annotated[str, doc("The name of the group. Members of other groups are refused.", "edge")] = "activator"
    key_file: Annotated[
        str,
        doc(
            "A file with the key of the group, 16 bytes or more, the same for all members: who does not have it cannot "
            "take part.",
            "/etc/activator/members.key",
        ),
    ] = ""
    on_silence: Annotated[
        str,
        doc(
            "A member says nothing, and it is not known whether it has ended. `strict`: its slots stay taken until "
            "that is known. `prompt`: they are given on after `release`; a pod may then get more than its limit.",
            PROMPT,
            words=PROOFS,
        ),
    ] = STRICT
    on_partition: Annotated[
        str,
        doc(
            "A member does not reach a majority. `strict`: it grants no slots until it does. `prompt`: it goes on; a "
            "pod may then get its limit from each part of the group.",
            PROMPT,
            words=PROOFS,
        ),
    ] = STRICT
    silence: Annotated[
        Duration, doc("A member that has said nothing for this time is not reached, for the time being.", "3s")
    ] = Duration(1.0)
    release: Annotated[Duration, doc("With `on_silence: prompt`: the time after which slots are given on.", "30s")] = (
        Duration(10.0)
    )
