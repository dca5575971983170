"""What a policy is: one method that names the pod a request should go to.

Rules
  1. `pick` returns a pod with room, or None exactly when no pod has room: a policy ranks pods, it never withholds one
     from a waiting request. The table checks that; in the place of another pick it takes the first pod with room, and
     counts it (`bad_picks`).
  2. `pick` changes nothing but the policy's own memory. The throttler reserves right after, in the same turn.
  3. A policy belongs to one table and takes every random choice from the generator it was made with.
  4. A hook is called right after its event; a hook that a policy does not define costs nothing.

A policy of your own is a subclass, plain Python or compiled. The plain way looks at the slots itself:

    class Emptiest(Policy):
        name = "emptiest"

        def pick(self, table, key, now_s):
            free = [pod for pod in table.slots[:table.length] if pod.has_room and not pod.warming]
            return min(free, key=lambda pod: pod.in_flight / pod.limit, default=None)

The quick way sets `needs` to the class of the structure that it picks from (lb/structures.py lists them), and finds its
table's one in `table.structure`. One that sets `wants_key` is given the key of each request: a number that stands for a
header, a cookie or the client's address. docs/policies.md has a whole package, and lb/testing.py the tests that every
policy should pass.
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
    """The base of all policies, made as `cls(rng)`."""

    name: ClassVar[str] = "policy"
    needs: ClassVar[type[RoomStructure]] = RoomStructure  # one of lb.structures.STRUCTURES
    wants_key: ClassVar[bool] = False

    def __init__(self, rng: Rng) -> None:
        self.rng = rng

    def pick(self, table: PodTable, key: i64, now_s: float) -> PodTracker | None:
        """The pod for the next request. `key` is 0 unless the policy wants keys, and for a request without one.

        `now_s`: monotonic seconds. With slow start, some pods with room are `warming`: the table gives them what they
        should get, and the others have room when this is called. A scan passes them over.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no pick")

    def on_add(self, tracker: PodTracker) -> None:
        """The pod was added to the table, or came back after it began to drain."""

    def on_remove(self, tracker: PodTracker) -> None:
        """The pod leaves: it drains or is gone, and is not picked again. Called once, while it still has its name."""

    def on_reserve(self, tracker: PodTracker) -> None:
        """A request has been given to the pod."""

    def on_release(self, tracker: PodTracker, latency_s: float) -> None:
        """A request has ended at the pod, also at one that drains.

        `latency_s`: its duration; negative: it ended after so long without an answer; 0.0: unknown.
        """

    def __repr__(self) -> str:
        return f"<policy {self.name}>"


def is_own(policy: Policy) -> bool:
    """Whether the policy is one of this package's, whose picks the tests compare with an oracle."""
    return type(policy).__module__.startswith("lb.policies.")


def overrides(policy: Policy, hook: str) -> bool:
    """Whether the policy defines the hook itself, so that a table calls only those that do something."""
    defined: object = getattr(type(policy), hook)
    default: object = getattr(Policy, hook)
    return defined is not default
