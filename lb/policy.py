"""The base class of load-balancing policies: a policy picks the pod of the next request.

Rules
  1. `pick` returns a pod with room, or None if and only if no pod has room (in `table.structure`, if the policy picks
     from it): a policy ranks pods, and must not make a request wait while a pod has room. The table checks this; it
     replaces an invalid pick by the first pod with room, a near one if there is one, and counts it (`bad_picks`).
  2. `pick` changes only the policy's own state. The throttler reserves the pod immediately after, in the same turn.
  3. A policy belongs to one table and takes every random choice from the generator it was made with.
  4. A hook is called immediately after its event; a hook that a policy does not define costs nothing.

To write a policy, derive a class, plain or compiled. The simple way is to scan the slots:

    class Emptiest(Policy):
        name = "emptiest"

        def pick(self, table, key, now_s):
            free = [pod for pod in table.slots[:table.length] if pod.has_room and not pod.warming]
            return min(free, key=lambda pod: (pod.is_far, pod.in_flight / pod.limit), default=None)

A scan should rank pods that are `is_far` (in another zone) after all others; otherwise it ignores zones.

The fast way is to set `needs` to the class of the room structure to pick from (lb/structures.py lists them); the object
is `table.structure`. It contains the near pods; if `pick` returns None, the table calls it again with the far ones. A
policy that sets `wants_key` gets the key of each request: a hash of a header, a cookie or the client's address.
docs/policies.md has a complete package, and lb/testing.py the tests that every policy should pass.
"""

from __future__ import annotations

from typing import ClassVar

from mypy_extensions import i64, mypyc_attr

from lb.pod_table import PodTable
from lb.rng import Rng
from lb.rooms import RoomStructure
from lb.tracker import PodTracker


@mypyc_attr(allow_interpreted_subclasses=True)
class Policy:
    """The base class of all policies, which are constructed as `cls(rng)`."""

    name: ClassVar[str] = "policy"
    needs: ClassVar[type[RoomStructure]] = RoomStructure  # one of lb.structures.STRUCTURES
    wants_key: ClassVar[bool] = False

    def __init__(self, rng: Rng) -> None:
        self.rng = rng

    def pick(self, table: PodTable, key: i64, now_s: float) -> PodTracker | None:
        """Return the pod for the next request.

        `key` is 0 if the request has none or the policy wants none. `now_s` is in monotonic seconds. With slow start,
        the table itself gives requests to pods that are `warming`, and calls this only if another pod has room; a scan
        must skip warming pods.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no pick")

    def on_add(self, tracker: PodTracker) -> None:
        """Handle a pod that was added to the table, or that returned after it had begun to drain."""

    def on_remove(self, tracker: PodTracker) -> None:
        """Handle a pod that drains or is removed. Called once, while the slot still has the pod's identity."""

    def on_reserve(self, tracker: PodTracker) -> None:
        """Handle a request that was given to the pod."""

    def on_release(self, tracker: PodTracker, latency_s: float) -> None:
        """Handle a request that has ended at the pod, which may be draining.

        `latency_s` is its duration, negative if it ended after this time without a response, 0.0 if unknown.
        """

    def __repr__(self) -> str:
        return f"<policy {self.name}>"


def is_own(policy: Policy) -> bool:
    """Return True if the policy is one of this package's, whose picks the tests compare with an oracle."""
    return type(policy).__module__.startswith("lb.policies.")


def overrides(policy: Policy, hook: str) -> bool:
    """Return True if the policy defines the hook, so that a table can skip the calls of those that do nothing."""
    defined: object = getattr(type(policy), hook)
    default: object = getattr(Policy, hook)
    return defined is not default
