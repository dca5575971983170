"""The tracker of one pod of a revision: a slot of the table, which is reused for one pod after another.

Rules
  1. A slot object is made once and never replaced or moved; `slot` is its fixed place in the table.
  2. `generation` identifies a use of the slot. It changes when the slot is given to a pod and when it is freed, and is
     unique within a table. A lease keeps the generation that it was granted under.
  3. All code may read; only the table writes, except `attachment`, `leases` and `epoch`, which the data path writes.
  4. The fields under "Room structure" belong to the structures (lb/rooms.py and others) and to slow start
     (lb/warming.py), those under "Policy" to the policy of the table. They are fields of the pod (an intrusive
     structure) so that a pick, a reserve and a release neither allocate nor look anything up.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i32, i64

from lb.ring import NO_LEASE, NO_LOAD, NO_WARMING_NODE, NOWHERE, LeaseNode, Load, RoomNode, WarmingNode, clear_links

EMPTY: Final = 0  # no pod in the slot
PENDING: Final = 1  # known, but not shown to be ready
READY: Final = 2
NOT_READY: Final = 3  # reported or found not ready; its requests in flight stay counted
RECOVERING: Final = 4  # after quarantine; picked for one trial request at a time
QUARANTINED: Final = 5
DRAINING: Final = 6  # removed when its last request ends

STATE_NAMES: Final = ("empty", "pending", "ready", "not_ready", "recovering", "quarantined", "draining")

UNLIMITED: Final = 1 << 30  # the limit of a pod of a revision without container_concurrency
FOREVER: Final = float("inf")  # suspect_until_s of a suspicion that only `end_suspicion` ends


@final
class PodTracker(RoomNode):
    """A slot: its pod, the pod's limit and its load."""

    # Saves a dictionary per slot in plain Python; the compiled class has none.
    __slots__ = (
        "address",
        "attachment",
        "elsewhere",
        "epoch",
        "generation",
        "has_room",
        "identity",
        "in_flight",
        "is_far",
        "latency_at_s",
        "latency_s",
        "leases",
        "limit",
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
        "warming_node",
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
        self.limit: i64 = 0  # `own_limit` minus the requests in flight in older slots at its address (lb/addresses.py)
        self.own_limit: i64 = 0
        self.in_flight: i64 = 0
        self.weight: i64 = 1  # the relative share under the policy `weighted`
        self.suspect_until_s: float = 0.0  # 0.0: not suspected; FOREVER: no decision of the state worker ends it
        self.attachment: object | None = None  # the data path's object for the pod; cleared when the slot is freed
        self.leases: LeaseNode = NO_LEASE  # the newest lease of the pod; written by the data path
        self.epoch: i64 = 0  # the number of the pod's last state change, as the state worker counts them
        # The next older slots with the same address and with the same identity (lb/slot_indexes.py).
        self.older_at_address: PodTracker | None = None
        self.older_of_identity: PodTracker | None = None
        # Room structure.
        self.has_room: bool = False  # a pick could return it; if and only if set, it is in a room structure
        self.warming: bool = False  # in slow start, and therefore in the structure of lb/warming.py instead
        self.is_far: bool = False  # in another zone, and therefore in the table's second structure, `far`
        # Trials in flight; the next one waits for their end. 32 bits beside the three flags save 16 bytes per slot.
        self.trials: i32 = 0
        self.elsewhere: i64 = 0  # requests in flight that other members last reported for the pod
        self.room_index: i64 = 0  # its index in a `RoomArray`
        self.room_load: Load = NO_LOAD  # its load in lb/buckets.py
        self.room_point: i64 = 0  # its point in lb/circle.py, computed from its address; 0: not computed yet
        self.warming_node: WarmingNode = NO_WARMING_NODE  # NO_WARMING_NODE unless `warming`
        # Policy: the state of `ewma`.
        self.latency_s: float = 0.0  # 0.0: not measured
        self.latency_at_s: float = 0.0

    def is_routable(self) -> bool:
        """Return True if the pod's state allows a pick, whether it has room or not."""
        return self.state == READY or self.state == RECOVERING

    def may_take_one(self) -> bool:
        """Return True if the pod may get a request now, computed from its fields; `has_room` must always equal this."""
        if self.state != READY and (self.state != RECOVERING or self.trials > 0):
            return False
        return self.in_flight < self.limit and self.suspect_until_s == 0.0

    def capacity(self) -> i64:
        """Return the pod's part of the revision's capacity, which a suspicion, lasting seconds, does not change."""
        if self.state == READY:
            return self.limit
        return min(self.limit, 1) if self.state == RECOVERING else 0

    def vacate(self, generation: i64) -> None:
        """Clear the slot, which the table must have removed from all structures."""
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
        self.warming_node = NO_WARMING_NODE
        self.is_far = False
        self.room_point = 0
        self.forget_latency()
        self.forget_room()

    def forget_room(self) -> None:
        """Clear the references of the room structure."""
        clear_links(self)
        self.room_load = NO_LOAD

    def forget_latency(self) -> None:
        self.latency_s = 0.0
        self.latency_at_s = 0.0

    def is_vacant(self) -> bool:
        """Return True if no data of a pod are left in the slot."""
        no_pod = self.identity == "" and self.address == "" and self.attachment is None and self.epoch == 0
        no_links = self.room_next is NOWHERE and self.room_prev is NOWHERE and self.room_load is NO_LOAD
        no_older = self.older_at_address is None and self.older_of_identity is None
        as_made = self.latency_s == 0.0 and self.room_point == 0 and self.weight == 1 and not self.warming
        no_links = no_links and self.leases is NO_LEASE and not self.is_far
        no_load = self.in_flight == 0 and self.elsewhere == 0 and self.trials == 0
        return no_pod and no_links and no_older and as_made and no_load and not self.has_room

    def __repr__(self) -> str:
        if self.state == EMPTY:
            return f"<PodTracker {self.slot} empty>"
        limit = "unlimited" if self.limit >= UNLIMITED else str(self.limit)
        suspected = f", suspect until {self.suspect_until_s:.3f} s" if self.suspect_until_s != 0.0 else ""
        return (
            f"<PodTracker {self.slot}.{self.generation} {self.identity} at {self.address} "
            f"{STATE_NAMES[self.state]}, {self.in_flight} of {limit} in flight{suspected}>"
        )
