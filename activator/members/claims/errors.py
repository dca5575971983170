"""The errors of membership. The code that raises one does not retry; it retries a KubeError, within bounds.

Rules
  1. Each message has the fault, the place, and what to do about it.
"""

from __future__ import annotations


class MembershipError(Exception):
    """The replica has no index, and a retry does not help."""


class MembershipForbiddenError(MembershipError):
    """The API denied a permission (403). The caller decides whether the replica may run without membership."""


class ForeignObjectError(MembershipError):
    """An object that is not of this group has the name of one of its Leases. It is not changed."""


class ClaimFailedError(MembershipError):
    """The claim has exceeded its bounds: the API has failed too often in a row, or the group is full."""


class GroupNameError(MembershipError, ValueError):
    """An invalid name of a group."""
