"""One pod of one revision: a slot of the table, used in place for one pod after another.

Rules
  1. A slot object is made once and never replaced or moved; `slot` is its fixed place in the table.
  2. `generation` says which use of the slot this is. It moves on when the slot is given to a pod and again when it is
     freed, and no two uses within one table share a number. A lease keeps the generation it was granted under.
  3. All code may read; only the table writes, except `attachment`, `leases` and `epoch`, which are the data path's.
  4. The fields under "room structure" belong to the structures (lb/rooms.py and its kin), those under "slow start" to
     lb/warming.py, those under "policy" to the policy of the table. They are fields of the pod (an intrusive structure)
     so that a pick, a reserve and a release neither allocate nor look anything up.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i32, i64

from lb.ring import NO_LEASE, NO_LOAD, NO_NEWCOMER, NOWHERE, LeaseNode, Load, Newcomer, RoomNode, forget

EMPTY: Final = 0  # no pod in the slot
PENDING: Final = 1  # known, not proven
READY: Final = 2
NOT_READY: Final = 3  # was or claims not ready; keeps its ledger
RECOVERING: Final = 4  # was quarantined; picked again, one trial request at a time
QUARANTINED: Final = 5
DRAINING: Final = 6  # leaves when its last request ends

STATE_NAMES: Final = ("empty", "pending", "ready", "not_ready", "recovering", "quarantined", "draining")

UNLIMITED: Final = 1 << 30  # the limit of a pod of a revision without container_concurrency
FOREVER: Final = float("inf")  # of a suspicion


@final
class PodTracker(RoomNode):
    """A slot: its pod, the pod's limit and its load."""

    # Saves an interpreted process a dictionary per slot; compiled, the class has no dictionary anyhow.
    __slots__ = (
        "address",
        "attachment",
        "elsewhere",
        "epoch",
        "generation",
        "has_room",
        "identity",
        "in_flight",
        "latency_at_s",
        "latency_s",
        "leases",
        "limit",
        "newcomer",
        "older_at_address",
        "older_of_identity",
        "own_limit",
        "room_index",
        "room_load",
        "room_point",
        "state",
        "suspect_until_s",
        "trials",
        "warming",
        "weight",
    )

    def __init__(self, slot: i64, generation: i64) -> None:
        super().__init__(slot)
        self.room_next = NOWHERE
        self.room_prev = NOWHERE
        # Per use of the slot.
        self.generation: i64 = generation
        self.identity: str = ""
        self.address: str = ""  # canonical ip:port, or unix:/path
        self.state: i64 = EMPTY
        self.limit: i64 = 0  # less than its own while older slots at its address have requests in flight (lb/table.py)
        self.own_limit: i64 = 0
        self.in_flight: i64 = 0
        self.weight: i64 = 1  # the share it should have, where the policy is `weighted`
        self.suspect_until_s: float = 0.0  # 0.0: not suspected; FOREVER: it takes no more requests in its life
        self.attachment: object | None = None  # what the data path hangs on the pod; dropped when the slot is freed
        self.leases: LeaseNode = NO_LEASE  # the newest of the requests at the pod; the data path's, as `attachment` is
        self.epoch: i64 = 0  # which of the pod's states this is, as whoever decides about it counts them
        # The next older slot of the same address, of the same identity (lb/roster.py).
        self.older_at_address: PodTracker | None = None
        self.older_of_identity: PodTracker | None = None
        # Room structure.
        self.has_room: bool = False  # a pick could return it; exactly then it stands in the table's room structure
        self.warming: bool = False  # slow start: it stands among the newcomers instead
        # Trials in flight; the next one waits for their end. 32 bits beside the two flags save 16 bytes a slot.
        self.trials: i32 = 0
        self.elsewhere: i64 = 0  # what others have in flight at the pod, as they said last; 0 where nobody else serves
        self.room_index: i64 = 0
        self.room_load: Load = NO_LOAD  # its load in lb/buckets.py
        self.room_point: i64 = 0  # where it stands in lb/circle.py, by its address; 0: not worked out yet
        self.newcomer: Newcomer = NO_NEWCOMER  # of slow start; NO_NEWCOMER unless `warming`
        # Policy: what `ewma` has learnt of the pod.
        self.latency_s: float = 0.0  # 0.0: nothing yet
        self.latency_at_s: float = 0.0

    def is_routable(self) -> bool:
        """Whether its state allows picking it, room or not."""
        return self.state == READY or self.state == RECOVERING

    def may_take_one(self) -> bool:
        """Whether the pod may be given a request now, from its own fields: what `has_room` must always equal."""
        if self.state != READY and (self.state != RECOVERING or self.trials > 0):
            return False
        return self.in_flight < self.limit and self.suspect_until_s == 0.0

    def capacity(self) -> i64:
        """What the pod adds to the revision's capacity; suspicion is a matter of seconds and does not change it."""
        if self.state == READY:
            return self.limit
        return min(self.limit, 1) if self.state == RECOVERING else 0

    def vacate(self, generation: i64) -> None:
        """Forget the pod. The table has taken the slot out of everything before."""
        self.generation = generation
        self.identity = ""
        self.address = ""
        self.state = EMPTY
        self.limit = 0
        self.own_limit = 0
        self.in_flight = 0
        self.elsewhere = 0
        self.trials = 0
        self.weight = 1
        self.suspect_until_s = 0.0
        self.attachment = None
        self.leases = NO_LEASE
        self.epoch = 0
        self.warming = False
        self.newcomer = NO_NEWCOMER
        self.room_point = 0
        self.forget_latency()
        self.forget_room()

    def forget_room(self) -> None:
        """Drop what the fields of the room structure refer to."""
        forget(self)
        self.room_load = NO_LOAD

    def forget_latency(self) -> None:
        self.latency_s = 0.0
        self.latency_at_s = 0.0

    def is_vacant(self) -> bool:
        """Whether nothing of a pod is left in the slot."""
        names = self.identity == "" and self.address == "" and self.attachment is None and self.epoch == 0
        links = self.room_next is NOWHERE and self.room_prev is NOWHERE and self.room_load is NO_LOAD
        older = self.older_at_address is None and self.older_of_identity is None
        learnt = self.latency_s == 0.0 and self.room_point == 0 and self.weight == 1 and not self.warming
        links = links and self.leases is NO_LEASE
        loads = self.in_flight == 0 and self.elsewhere == 0 and self.trials == 0
        return names and links and older and learnt and loads and not self.has_room

    def __repr__(self) -> str:
        if self.state == EMPTY:
            return f"<PodTracker {self.slot} empty>"
        limit = "unlimited" if self.limit >= UNLIMITED else str(self.limit)
        suspected = f", suspect until {self.suspect_until_s:.3f} s" if self.suspect_until_s != 0.0 else ""
        return (
            f"<PodTracker {self.slot}.{self.generation} {self.identity} at {self.address} "
            f"{STATE_NAMES[self.state]}, {self.in_flight} of {limit} in flight{suspected}>"
        )
