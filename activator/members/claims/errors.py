"""How membership fails. None of these is retried by whoever raises it; a KubeError is, within bounds.

Rules
  1. Each message says what is wrong, where, and what to do about it.
"""

from __future__ import annotations


class MembershipError(Exception):
    """There is no index, and trying on does not help."""


class MembershipForbiddenError(MembershipError):
    """The API refuses a right (403): go on without membership, and say so once."""


class ForeignObjectError(MembershipError):
    """An object with the name of one of ours is not ours; it is left alone."""


class ClaimFailedError(MembershipError):
    """No index within the bounds: the API fails again and again, or the group is full."""


class GroupNameError(MembershipError, ValueError):
    """No name for a group."""
