"""The base of all messages, and the status that a source reports of a pod."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec


class PodStatus(Enum):
    """The status of a pod, as a source reports it."""

    PENDING = "pending"  # it exists
    READY = "ready"  # it answers
    NOT_READY = "not_ready"  # it has reported that it takes no requests now
    DRAINING = "draining"  # it is terminating


PUSH: Final = "push"  # the source of the pods' own reports; every other source lists pods


class Message(msgspec.Struct, frozen=True, tag=True):
    """The base of all messages, none of which has subclasses.

    In hot paths use `type(message) is …`: an `isinstance` that fails calls the metaclass of msgspec's structs and takes
    140 ns instead of a few.
    """
