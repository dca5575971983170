"""The names of a group's objects and the value of its label, within the bounds of the API.

Rules
  1. An index has exactly one name, and a name exactly one group and index: the index follows the last dash, so the
     Lease `a-1` is index 1 of group `a`, and index 0 of group `a-1` is `a-1-0`.
  2. A name that would be too long is cut, and ends with a digest of the whole name. The annotation GROUP_ANNOTATION has
     the whole name and decides: an object whose annotation names another group is not of this group.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, final

from activator.members.claims.errors import GroupNameError

GROUP_LABEL: Final = "activator.dev/group"
GROUP_ANNOTATION: Final = "activator.dev/group-name"
UID_ANNOTATION: Final = "activator.dev/uid"
ADDRESS_ANNOTATION: Final = "activator.dev/address"
ORIGIN_ANNOTATION: Final = "activator.dev/origin"

SEATS_MAX: Final = 1_000  # indexes of one group are below this

NAME_LENGTH_MAX: Final = 253  # characters of a DNS subdomain, which the name of an object must be
LABEL_LENGTH_MAX: Final = 63
_DIGEST_LENGTH: Final = 10
_INDEX_LENGTH_MAX: Final = len(str(SEATS_MAX - 1))
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_INDEX = re.compile(r"0|[1-9][0-9]*")


@final
class GroupNames:
    """The names of one group. `label` is the value of GROUP_LABEL. Raises GroupNameError."""

    def __init__(self, group: str) -> None:
        if not _NAME.fullmatch(group) or len(group) > NAME_LENGTH_MAX:
            raise GroupNameError(
                f"the group {group[:80]!r} is no name: use lower-case letters, digits, '-' and '.', begin and end with "
                f"a letter or digit, at most {NAME_LENGTH_MAX} characters (a DNS subdomain)"
            )
        self.group = group
        self.label = shortened(group, LABEL_LENGTH_MAX)
        self._stem = shortened(group, NAME_LENGTH_MAX - 1 - _INDEX_LENGTH_MAX)

    def lease(self, index: int) -> str:
        """Return the name of the Lease of this index."""
        return f"{self._stem}-{index}"

    def index(self, lease: str) -> int | None:
        """Return the index that a Lease of this name claims; None if it is no name of this group."""
        stem, _, digits = lease.rpartition("-")
        if stem != self._stem or not _INDEX.fullmatch(digits) or len(digits) > _INDEX_LENGTH_MAX:
            return None
        return int(digits)


def shortened(name: str, length_max: int) -> str:
    """Return `name`, or its beginning and a digest of all of it if it is too long."""
    if len(name) <= length_max:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{name[: length_max - _DIGEST_LENGTH - 1].rstrip('-.')}-{digest}"
