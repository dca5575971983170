"""Numbers of replicas and of their data planes, unique for each life of a process; and the epochs of views.

A replica's number has its seat (the index in the roster) and its life (drawn at its start, never 0); the number of one
of its data planes has the replica's number and that of the worker. Life 0 stands for all unknown lives of a seat.
"""

from __future__ import annotations

from typing import Final

from activator.data_plane.ownership.view import WORKER_BITS
from lb.rng import Rng

SEATS_MAX: Final = 256
WORKERS_PER_SEAT: Final = 256  # places of data planes in the hash
_LIFE_BITS: Final = 40
_SHORT_LIFE_BITS: Final = 24
_HALF_LIFE: Final = 1 << (_LIFE_BITS // 2)
_WORKERS: Final = 1 << WORKER_BITS
_EPOCH_SHIFT: Final = 32  # the low bits of an epoch name its proposer: the seat, and some bits of the life


def replica_number(seat: int, rng: Rng) -> int:
    """Return a new number for a replica that starts at this seat."""
    life = rng.below(_HALF_LIFE) * _HALF_LIFE + rng.below(_HALF_LIFE - 1) + 1
    return seat << _LIFE_BITS | life


def unmet(seat: int) -> int:
    """Return the number that stands for an unknown holder of this seat."""
    return seat << _LIFE_BITS


def seat_of(replica: int) -> int:
    """Return the seat of a replica."""
    return replica >> _LIFE_BITS


def worker_number(replica: int, worker: int) -> int:
    """Return the number of a data plane.

    `worker` counts up in one replica, and is taken modulo _WORKERS: that many in a row are not alive at the same time.
    """
    return replica << WORKER_BITS | worker % _WORKERS


def worker_place(seat: int, place: int) -> int:
    """Return the place of a data plane among those of all replicas (`data_plane.ownership.view`)."""
    return seat * WORKERS_PER_SEAT + place


def next_epoch(highest: int, proposer: int) -> int:
    """Return the epoch of a view that this replica proposes, above the highest known epoch.

    Two proposers never choose the same epoch, except for one pair of lives of a seat in 16 million.
    """
    short = seat_of(proposer) << _SHORT_LIFE_BITS | proposer & ((1 << _SHORT_LIFE_BITS) - 1)
    return (epoch_count(highest) + 1) << _EPOCH_SHIFT | short


def epoch_count(epoch: int) -> int:
    """Return the part of an epoch that counts up by one with each proposal."""
    return epoch >> _EPOCH_SHIFT


def follows_on(former: int, epoch: int) -> bool:
    """Return True if no replica can have been in a view between these two."""
    return epoch_count(epoch) == epoch_count(former) + 1
