"""The replicas that enforce limits together."""

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Duration, doc

STRICT: Final = "strict"
PROMPT: Final = "prompt"
PROOFS: Final = (STRICT, PROMPT)


class Members(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicas of the activator that enforce the limits of revisions together, each on its own machine or port."""

    listen: Annotated[
        str, doc("The address to listen on for the other members. Empty: there are none.", "0.0.0.0:8015")
    ] = ""
    address: Annotated[
        str,
        doc(
            "The address at which the other members reach this one. Empty: the one of `peers` that this machine has, "
            "with the port of `listen`.",
            "10.0.0.1:8015",
        ),
    ] = ""
    peers: Annotated[
        list[str],
        doc(
            "All members, including this one; the same list for every member.",
            ["10.0.0.1:8015", "10.0.0.2:8015", "10.0.0.3:8015"],
        ),
    ] = []
    group: Annotated[str, doc("The name of the group. Members of other groups are rejected.", "edge")] = "activator"
    key_file: Annotated[
        str,
        doc(
            "A file with the key of the group, at least 16 bytes, the same for all members. A replica without it is "
            "rejected.",
            "/etc/activator/members.key",
        ),
    ] = ""
    on_silence: Annotated[
        str,
        doc(
            "The slots of a silent member that may still run. `strict`: they stay taken until it is known to have "
            "ended. `prompt`: they are released after `release`; a pod may then exceed its limit.",
            PROMPT,
            words=PROOFS,
        ),
    ] = STRICT
    on_partition: Annotated[
        str,
        doc(
            "A member that cannot reach a majority. `strict`: it grants no slots until it can. `prompt`: it "
            "continues; a pod may then get its limit from each part of the group.",
            PROMPT,
            words=PROOFS,
        ),
    ] = STRICT
    silence: Annotated[
        Duration, doc("A member without a message for this time counts as unreachable, until one arrives.", "3s")
    ] = Duration(1.0)
    release: Annotated[Duration, doc("With `on_silence: prompt`: the time after which slots are released.", "30s")] = (
        Duration(10.0)
    )
