"""Members in one process and one time: real throttlers, tables and ownership; made-up pods, clients, links and faults.

Everything random comes from one seed, so a failure happens again. Rules that must hold are looked at in each step
(`Pod.arrived`, `World.check`), and once more when all is calm (`World.check_calm`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from activator.config.specs import QueueSpec, RevisionSpec
from activator.data_plane.ownership.member import Member
from activator.data_plane.ownership.messages import MemberMessage, Want
from activator.data_plane.ownership.names import MemberName
from activator.data_plane.ownership.view import View
from activator.data_plane.tables.rebuild import Rebuild, highest_generation
from activator.data_plane.throttle.interfaces import SlotEvents
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.verdict import SUSPECT_S
from activator.data_plane.throttle.waiters import Waiter
from activator.messages import PlacePod
from activator.runtime.reasons import Reason
from activator.workers.trace import Recorder
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import DRAINING, READY, UNLIMITED
from tests.simulation.audit import check_left
from tests.simulation.checker import Checker
from tests.simulation.network import Link, Network, Timeline
from tests.simulation.rules import RuleError
from tests.simulation.trace_events import Left, Used

TICK_S: Final = 0.25
DROP_LAG_S: Final = 0.11  # more than what was sent to a member before a revision was dropped may take
CALM_S: Final = 14.0  # what is kept for UNKNOWN_KEPT_S is gone by then, also where a clock goes at half the rate


def life_of(throttler: RevisionThrottler) -> int:
    """How often its revision had been dropped when it was made."""
    return int(throttler.common_name.rpartition("#")[2])


class Pod:
    """Counts the requests that are at it."""

    def __init__(self, key: str, identity: str, address: str, limit: int, life: int) -> None:
        self.key = key
        self.life = life  # of its revision
        self.identity = identity
        self.address = address
        self.limit = limit
        self.requests: set[Request] = set()
        self.free_since_s = deque([0.0] * limit)  # of each free slot; the one that has been free for longest goes first

    def arrived(self, request: Request) -> None:
        self.requests.add(request)
        request.node.world.used(request.node, self)
        if self.free_since_s:
            self.free_since_s.popleft()
        if len(self.requests) > self.limit:
            request.node.world.excuse()
            count = sum(not one.is_excused for one in self.requests)
            if count > self.limit:
                raise RuleError(f"{self.identity} has {count} requests, and its limit is {self.limit}")

    def left(self, request: Request) -> None:
        self.requests.discard(request)
        request.node.world.left(request.node, self)
        self.free_since_s.append(request.node.world.now())


class Request(Waiter):
    """Of one client, at one member: waits, is at a pod for a while, and ends once."""

    def __init__(self, node: Node, key: str, name: int, takes_s: float, retries: int) -> None:
        super().__init__()
        self.node = node
        self.key = key
        self.name = name
        self.takes_s = takes_s
        self.retries = retries
        self.throttler: RevisionThrottler | None = None
        self.lease: Lease | None = None
        self.pod: Pod | None = None
        self.end: str = ""
        self.came_s = self.waits_since_s = node.world.now()
        self.was_tried = False  # or was to go to a pod that its member did not know
        self.ended_s: float = 0.0
        self.is_excused = False  # its slot may have been given to another one, and that is allowed

    def ask(self) -> None:
        throttler = self.throttler = self.node.throttlers.get(self.key)
        if throttler is None:  # it was dropped here meanwhile
            self._end("no_route")
            return
        lease = throttler.try_acquire(self, self.node.now())
        if lease is not None:
            self.granted(lease)
            return
        refusal = throttler.queue.enqueue(self)
        if refusal is not None:
            self.refused(refusal, "")

    def granted(self, lease: Lease) -> None:
        if self.end or self.lease is not None:
            raise RuleError(f"request {self.name} was granted a slot twice, or after its end ({self.end})")
        self.lease = lease
        world = self.node.world
        self.pod = world.pods[lease.identity]
        self.is_excused = self.node.is_excused
        self.pod.arrived(self)
        if world.order_bound_s and world.is_of_one_view():
            world.timeline.later(world.order_bound_s, self.check_order)
        self.node.later(self.takes_s, self.served)

    def check_order(self) -> None:
        """A while after the grant: nobody who came long before this request still waits."""
        world = self.node.world
        for other in world.open:
            is_comparable = other.key == self.key and other.pod is None and not other.was_tried
            if is_comparable and not self.was_tried and other.came_s < self.came_s - world.order_bound_s:
                raise RuleError(f"request {self.name} was granted a slot, and {other.name}, which came before, was not")

    def refused(self, reason: Reason, detail: str) -> None:
        self._end(reason.value)

    def revoked(self, reason: Reason, detail: str) -> None:
        self._end(reason.value)
        self._release()

    def leave(self) -> None:
        """Its client goes, if it waits."""
        if not self.end and self.lease is None:
            self._end("left")
            assert self.throttler is not None
            self.throttler.queue.cancel(self)

    def served(self) -> None:
        if self.end:
            return
        if self.retries:
            self.retries -= 1
            self._try_again()
            return
        self._end("served")
        self._release()

    def _try_again(self) -> None:
        """As the proxy does: into the line first, then the slot is given back."""
        lease, pod = self.lease, self.pod
        assert lease is not None and pod is not None
        self.was_tried = True
        world = self.node.world
        throttler = self.throttler
        assert throttler is not None
        self.lease = self.pod = None
        self.waits_since_s = world.now()
        pod.left(self)
        reason = Reason.CONNECT_FAILED if world.random.random() < world.suspicions else Reason.CONNECT_TIMEOUT
        if reason is Reason.CONNECT_FAILED:
            throttler.pod_failed(lease, reason)
        refusal = throttler.requeue(self, lease, reason)
        throttler.release(lease, 0.0, False)
        if refusal is not None:
            self.refused(refusal, "")

    def _release(self) -> None:
        lease, pod = self.lease, self.pod
        assert lease is not None and pod is not None
        self.lease = self.pod = None
        pod.left(self)
        assert self.throttler is not None
        self.throttler.release(lease, self.takes_s, True)

    def _end(self, how: str) -> None:
        if self.end:
            raise RuleError(f"request {self.name} ended twice: {self.end}, {how}")
        self.end = how
        self.ended_s = self.node.world.now()
        self.node.world.open.pop(self, None)
        self.node.world.ends[how] = self.node.world.ends.get(how, 0) + 1


class Wants(Request):
    """One that says all that a request may want of the line."""

    def __init__(self, node: Node, key: str) -> None:
        super().__init__(node, key, 0, 1.0, 0)
        self.pick_key = 7
        self.level = 2
        self.share = b"share"
        self.charge = 3
        self.own_timeout_s = 30.0
        self.own_deadline_s = 40.0

    def stand_in_line(self) -> None:
        """As one that is tried again: with what is written here, not with what the discipline makes of it."""
        throttler = self.throttler = self.node.throttlers[self.key]
        throttler.try_acquire(self, self.node.now())
        self.is_classified = True
        throttler.rejoin(self)


def spec_of(key: str, limit: int) -> RevisionSpec:
    return RevisionSpec(key=key, queue=QueueSpec(depth=1_000_000), container_concurrency=limit)


class Events(SlotEvents):
    """What the control plane would be told; slots whose drain has ended are freed after a while."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def activated(self, key: str) -> None:
        pass

    def queue_formed(self, key: str) -> None:
        self._node.wanted += 1

    def drained(self, key: str, slot: int, generation: int) -> None:
        throttler = self._node.throttlers.get(key)
        if throttler is not None:
            self._node.later(self._node.world.lag_s(), lambda: self._node.free(throttler, slot, generation))

    def departed(self, key: str, identity: str) -> None:
        pass

    def taken(self, key: str, identity: str, is_over: bool, failure: str) -> None:
        if is_over:
            self._node.taken.append(identity)

    def trial_ended(self, key: str, identity: str, epoch: int, succeeded: bool) -> None:
        pass

    def refused(self, key: str, identity: str, epoch: int, dead: bool, reason: str) -> None:
        self._node.suspected(key, identity)

    def suspected(self, key: str, identity: str) -> None:
        self._node.suspected(key, identity)

    def served(self, key: str, identity: str, epoch: int) -> None:
        pass

    def failed(self, key: str, error: Exception) -> None:
        raise error


class Node:
    """One member with its throttlers. While it is paused nothing happens in it; when it is dead, nothing ever will."""

    def __init__(self, world: World, name: MemberName, first_slot: int = 0) -> None:
        self.world = world
        self.name = name
        self.is_excused = False  # what it grants may exceed the limits
        self.alive = True
        self.paused = False
        self.leaves = False
        self.taken: list[str] = []  # pods of one request that have had theirs
        self.wanted = 0  # how often its control plane was asked for pods
        self.sends_left: int = -1  # messages until it is killed in the midst of a turn; below 0: it is not
        self.clock_rate: float = 1.0
        self._began_s: float = 0.0
        self._held: list[Callable[[], None]] = []
        self._links: dict[int, Link] = {}
        self.throttlers: dict[str, RevisionThrottler] = {}
        self.dropped: list[RevisionThrottler] = []
        self.member = Member(
            name.number,
            self._send,
            self._drop,
            self.now,
            self.later,
            first_slot,
        )
        self.recorder: Recorder | None = None
        if world.checker is not None:
            self.recorder = Recorder(self.member, world.now, world.checker.take)

    def now(self) -> float:
        """Of its own clock, which began at another time and goes a little faster or slower than others."""
        return self._began_s + self.world.timeline.now_s * self.clock_rate

    def run(self, happens: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.paused:
            self._held.append(happens)
        else:
            happens()

    def drift(self, rate: float) -> None:
        """From now on its clock goes at this rate; what it reads does not jump."""
        self._began_s += (self.clock_rate - rate) * self.world.timeline.now_s
        self.clock_rate = rate

    def later(self, delay_s: float, happens: Callable[[], None]) -> None:
        """After so long by its own clock."""
        self.world.timeline.later(delay_s / self.clock_rate, lambda: self.run(happens))

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        held, self._held = self._held, []
        for happens in held:
            self.run(happens)

    def new_table(self, after: int = 0) -> TrackerTable:
        """`after`: the generation that it goes on from."""
        policy = create("least-connections", Rng(self.name.number))
        return TrackerTable(policy, 64, 0.5, first_generation=after)

    def add_revision(self, key: str, limit: int, life: int) -> None:
        table = self.new_table()
        spec = spec_of(key, limit)
        defer = lambda happens: self.later(0.0, happens)  # noqa: E731
        throttler = RevisionThrottler(spec, table, self.now, defer, Events(self), 256)
        throttler.common_name = f"{key}#{life}"
        self.throttlers[key] = throttler
        self.member.revision_set(throttler)

    def drop_revision(self, key: str, life: int) -> None:
        """As `RevisionTables` does: the one before this life."""
        throttler = self.throttlers.get(key)
        if throttler is None or life_of(throttler) >= life:
            return
        del self.throttlers[key]
        self.member.revision_dropped(throttler.common_name)
        throttler.remove()
        for tracker in throttler.table.slots[: throttler.table.length]:
            if tracker.identity and tracker.state != DRAINING:
                throttler.table.drain(tracker)
        self.dropped.append(throttler)

    def set_limit(self, key: str, limit: int) -> None:
        """A reload; 0: none. Pods first: what is granted before they have the limit is granted without one."""
        throttler = self.throttlers.get(key)
        if throttler is None:
            return
        throttler.reconfigure(spec_of(key, limit))
        for tracker in throttler.table.slots[: throttler.table.length]:
            if tracker.identity and tracker.state != DRAINING:
                throttler.table.set_limit(tracker, limit or UNLIMITED)
        if limit:
            self.member.revision_set(throttler)
        else:
            self.member.limit_removed(throttler.common_name)
        throttler.pump()

    def rebuild(self, key: str) -> None:
        """The table is made anew, as after an error of ours."""
        throttler = self.throttlers.get(key)
        if throttler is None:
            return
        old = throttler.table
        rebuild = Rebuild(throttler, self.new_table(highest_generation(old)), throttler.spec, "", 0.0)
        there = [one for one in old.slots[: old.length] if one.identity and one.state != DRAINING]
        rebuild.make_slots(len(there))
        for one in there:
            rebuild.place(PlacePod(key, one.identity, one.address, READY, int(one.own_limit), 1, 0))
        removal = rebuild.finish()
        for tracker in removal.leaving:
            throttler.table.drain(tracker)
        throttler.pump()

    def suspected(self, key: str, identity: str) -> None:
        """Nobody decides about it, and its time passes."""
        throttler = self.throttlers.get(key)
        tracker = None if throttler is None else throttler.table.find_identity(identity)
        if throttler is None or tracker is None:
            return
        table, generation = throttler.table, int(tracker.generation)

        def ended() -> None:
            if table is not throttler.table or tracker.generation != generation:
                return
            left_s = tracker.suspect_until_s - self.now()
            if left_s > 0.0:  # it was suspected again, or the clock is slower now
                self.later(left_s + 0.001, ended)
            elif table.end_suspicion(tracker, generation, self.now()):
                throttler.pump()

        self.later(SUSPECT_S + 0.001, ended)

    def add_pod(self, key: str, pod: Pod) -> None:
        throttler = self.throttlers.get(key)
        if throttler is None or pod not in self.world.here[key]:
            return  # it is told of all pods when it has its first view
        if life_of(throttler) < pod.life:  # a control plane's messages are in order: the revision is dropped first
            self.later(DROP_LAG_S, lambda: self.add_pod(key, pod))
            return
        limit = throttler.spec.container_concurrency or UNLIMITED
        throttler.queue.pod_placed(throttler.table.add(pod.identity, pod.address, limit, READY))
        throttler.queue.pod_ready()
        throttler.pump()

    def remove_pod(self, key: str, pod: Pod) -> None:
        throttler = self.throttlers.get(key)
        if throttler is None:
            return
        table = throttler.table
        tracker = table.find_identity(pod.identity)
        if tracker is not None and tracker.state != DRAINING:
            table.drain(tracker)

    def free(self, throttler: RevisionThrottler, slot: int, generation: int) -> None:
        table = throttler.table
        if slot >= len(table.slots):
            return
        tracker = table.slots[slot]
        if tracker.generation == generation and tracker.state == DRAINING and tracker.in_flight == 0:
            table.free(tracker)

    def linked(self, other: int, link: Link) -> None:
        self._links[other] = link
        if self.recorder is not None:
            self.recorder.linked(other)
        self.member.linked(other)

    def unlinked(self, other: int) -> None:
        del self._links[other]
        if self.recorder is not None:
            self.recorder.unlinked(other)
        self.member.unlinked(other)

    def adopt(self, view: View) -> None:
        if self.recorder is not None:
            self.recorder.adopted(view)
        self.member.adopt(view)

    def heard(self, sender: int, message: MemberMessage) -> None:
        if self.recorder is not None:
            self.recorder.received(sender, message)
        self.member.receive(sender, message)

    def _send(self, receiver: int, message: MemberMessage) -> None:
        link = self._links.get(receiver)
        if type(message) is Want and message.waiting.failed_at:
            self._lost_its_turn(message)
        if self.sends_left == 0:
            return  # it is dead already, in the midst of what it does
        self.sends_left -= 1
        if self.sends_left == 0:
            self.world.timeline.at(0.0, lambda: self.world.kill(self))  # before anything else happens
        if link is not None:
            if self.recorder is not None:
                self.recorder.sent(receiver, message)
            link.send(receiver, message)

    def _lost_its_turn(self, want: Want) -> None:
        """It was granted a slot of a pod that is not known here yet: others go first until it is."""
        request = self.member.borrowed[want.key].borrowing.wanted.get(want.waiting.request)
        if isinstance(request, Request):
            request.was_tried = True

    def _drop(self, peer: int) -> None:
        self.world.network.cut(self.name.number, peer)

    def tick(self) -> None:
        self.member.tick()
        self.later(TICK_S, self.tick)


class World:
    """`revisions`: by key, the limit of each pod and how many there are."""

    def __init__(self, seed: int, members: int, revisions: dict[str, tuple[int, int]], checked: bool = True) -> None:
        self.random = random.Random(seed)
        self.timeline = Timeline()
        self.network = Network(self.timeline, self.random)
        self.network.deliver = self._deliver
        self.network.linked = self._linked
        self.network.unlinked = self._unlinked
        self.revisions = revisions
        self.pods: dict[str, Pod] = {}
        self.here: dict[str, list[Pod]] = {key: [] for key in revisions}  # that have not been removed
        self.nodes: dict[int, Node] = {}
        self.open: dict[Request, None] = {}
        self.ends: dict[str, int] = {}
        self.requests = 0
        self.checker = Checker() if checked else None  # of all that members say
        self.suspicions: float = 0.0  # the share of retries whose pod has taken no connection
        self.order_bound_s: float = 0.0  # by how much a later request may come before an earlier one; 0: not looked at
        self.lives: dict[str, int] = {}  # how often a revision was dropped
        self.unlimited: set[str] = set()  # revisions that have no limit for a while
        self._numbers = 0
        self._epoch = 0
        self._names: list[MemberName] = []
        self._leaving: set[int] = set()
        self._heard_s: dict[int, float] = {}  # until when each node has been told of views
        for key, (limit, count) in revisions.items():
            for _ in range(count):
                self.new_pod(key, limit)
        self._begin(members)

    def _begin(self, members: int) -> None:
        """The first ones."""
        for place in range(members):
            self._names.append(self._new_name(place))
        for name in self._names:
            self._start(name)
        self._publish()
        self.connect_all()

    def now(self) -> float:
        return self.timeline.now_s

    def used(self, node: Node, pod: Pod) -> None:
        if self.checker is not None:
            self.checker.take(Used(self.now(), node.name.number, pod.identity, pod.limit))

    def left(self, node: Node, pod: Pod) -> None:
        if self.checker is not None:
            self.checker.take(Left(self.now(), node.name.number, pod.identity))

    def lag_s(self) -> float:
        """Of a message of a control plane."""
        return self.random.random() ** 3 * 0.05

    def excuse(self) -> None:
        """Mark the requests that may exceed limits: none here."""

    def is_of_one_view(self) -> bool:
        """Else grants to members that are in a later view than the owner are void, and others go first."""
        return len({node.member.view.epoch for node in self.live()}) == 1

    def serving(self) -> list[Node]:
        """Those to which clients come."""
        return [node for node in self.live() if not node.leaves]

    def live(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.alive]

    # --- what happens ---

    def ask(self, node: Node, key: str, takes_s: float = 0.0) -> Request:
        """A client's request comes to this member."""
        self.requests += 1
        retries = 1 if self.random.random() < 0.05 else 0
        request = Request(node, key, self.requests, takes_s or self.random.expovariate(20.0), 0 if takes_s else retries)
        self.open[request] = None
        node.run(request.ask)
        return request

    def kill(self, node: Node) -> None:
        """The process is gone; the kernel closes its connections, and then that is known. Another takes its place."""
        if not node.alive:
            return
        self._end(node)
        for pod in self.pods.values():
            for request in [request for request in pod.requests if request.node is node]:
                pod.left(request)
        for request in [request for request in self.open if request.node is node]:
            del self.open[request]
            self.ends["killed"] = self.ends.get("killed", 0) + 1
        if node.leaves:
            self._leaving.discard(node.name.number)
            self.timeline.later(self.lag_s(), self._publish)
        else:
            self._names.remove(node.name)
            self.timeline.later(self.lag_s(), lambda: self._replace(node.name.place))

    def join(self) -> None:
        """One member more."""
        taken = {name.place for name in self._names}
        name = self._new_name(next(place for place in range(len(taken) + 1) if place not in taken))
        self._names.append(name)
        self._start(name)
        self._publish()
        self.connect_all()

    def drain(self, node: Node, seconds: float) -> None:
        """It owns nothing from now on, and leaves after so long; until then clients come to it as before."""
        place = self._names.index(node.name)
        node.name = self._names[place] = replace(node.name, drains=True)
        self._publish()
        self.timeline.later(seconds, lambda: self._drained(node))

    def _drained(self, node: Node) -> None:
        if node.alive and not node.leaves:
            if len(self.serving()) > 1:
                self.leave(node)
            else:
                self.timeline.later(0.1, lambda: self._drained(node))

    def leave(self, node: Node) -> None:
        """A member ends in order: it gets no more requests, and goes when its last one has ended."""
        self._names.remove(node.name)
        self._leaving.add(node.name.number)
        node.leaves = True
        self._publish()

        def gone() -> None:
            if not node.alive:
                return  # killed meanwhile
            if node.paused or any(request.node is node for request in self.open):
                self.timeline.later(0.05, gone)
                return
            self._leaving.discard(node.name.number)
            self._end(node)
            self._publish()

        self.timeline.later(0.05, gone)

    def new_pod(self, key: str, limit: int) -> Pod:
        """That no member knows yet."""
        number = len(self.pods)
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:80"
        pod = Pod(key, f"pod-{number}", address, limit, self.lives.get(key, 0))
        if key in self.unlimited:
            pod.limit = UNLIMITED
        self.pods[pod.identity] = pod
        self.here[key].append(pod)
        return pod

    def add_pod(self, key: str) -> None:
        pod = self.new_pod(key, self.revisions[key][0])
        for node in self.live():
            node.later(self.lag_s(), lambda node=node: node.add_pod(key, pod))  # type: ignore[misc]

    def remove_pod(self, key: str) -> None:
        pod = self.random.choice(self.here[key])
        self.here[key].remove(pod)
        for node in self.live():  # behind its coming, which takes no longer
            node.later(0.05 + self.lag_s(), lambda node=node: node.remove_pod(key, pod))  # type: ignore[misc]

    def common_name(self, key: str) -> str:
        return f"{key}#{self.lives.get(key, 0)}"

    def drop(self, key: str) -> None:
        """The revision is gone, and its pods; a new one of the same name comes, with new pods."""
        limit, count = self.revisions[key]
        life = self.lives[key] = self.lives.get(key, 0) + 1
        self.here[key] = []
        pods = [self.new_pod(key, limit) for _ in range(count)]
        for node in self.live():
            # As one message after the other: each comes at a time of its own, and behind what was said before.
            lag_s = DROP_LAG_S + self.lag_s()
            node.later(lag_s, lambda node=node: node.drop_revision(key, life))  # type: ignore[misc]
            node.later(lag_s + 0.001, lambda node=node: self._made_anew(node, key, life, pods))  # type: ignore[misc]

    def set_limit(self, key: str, limit: int) -> None:
        """A reload reaches each member at a time of its own; 0: no limit. Pods stop to look, or begin to."""
        for node in self.live():
            node.later(self.lag_s(), lambda node=node: node.set_limit(key, limit))  # type: ignore[misc]

    def watch(self, key: str, limit: int) -> None:
        """From now on the pods of this revision look whether they have more than this."""
        for pod in self.pods.values():
            if pod.key == key:
                pod.limit = limit

    def limit_goes(self, key: str, seconds: float) -> None:
        """The limit comes back after so long. Pods look again when all members have it, and all that was sent to them
        before has ended.
        """
        if key in self.unlimited:
            return
        self.unlimited.add(key)
        self.watch(key, UNLIMITED)
        self.set_limit(key, 0)
        self.timeline.later(0.05 + seconds, lambda: self._limit_comes(key))

    def _limit_comes(self, key: str) -> None:
        waited_for = set(self.live())

        def told(node: Node) -> None:
            node.set_limit(key, self.revisions[key][0])
            waited_for.discard(node)

        for node in self.live():
            node.later(self.lag_s(), lambda node=node: told(node))  # type: ignore[misc]
        self.timeline.later(0.06, lambda: self._watch_again(key, waited_for, None))

    def _watch_again(self, key: str, waited_for: set[Node], sent_before: list[Request] | None) -> None:
        if sent_before is None and not any(node.alive for node in waited_for):
            sent_before = [request for request in self.open if request.key == key and request.pod is not None]
        if sent_before is not None and not any(request in self.open for request in sent_before):
            self.unlimited.discard(key)
            self.watch(key, self.revisions[key][0])
        else:
            self.timeline.later(0.05, lambda: self._watch_again(key, waited_for, sent_before))

    def run(self, seconds: float) -> None:
        until_s = self.now() + seconds
        while self.timeline.next_s() <= until_s:
            self.timeline.step()
        self.timeline.now_s = until_s

    def calm_down(self) -> None:
        """Faults end, and requests go on until none is open."""
        for node in self.live():
            if node.paused:
                node.resume()
        self.network.stopped_until_s.clear()
        for _ in range(600):
            self.connect_all()
            self.run(0.1)
            if not self.open:
                break
        self.run(CALM_S)
        self.connect_all()  # a link may have been ended by a member that was asked about a revision it does not have
        self.run(1.0)

    def check_idle(self, bound_s: float) -> None:
        """No request waits for longer than this while a slot is free; to be called often, and where nothing fails."""
        oldest_s: dict[str, float] = {}
        for request in self.open:
            if request.pod is None:
                oldest_s[request.key] = min(oldest_s.get(request.key, self.now()), request.waits_since_s)
        for key in self.revisions:
            for pod in self.here[key]:
                if not pod.free_since_s:
                    continue
                since_s = max(pod.free_since_s[0], oldest_s.get(key, self.now()))
                if self.now() - since_s > bound_s:
                    raise RuleError(f"a request of {key} waits, and a slot of {pod.identity} is free, for {bound_s} s")

    def check_calm(self) -> None:
        """Nothing is left over: no request, no lease, no slot away from its owner, no two owners."""
        if self.open:
            raise RuleError(f"{len(self.open)} requests have not ended: {[request.name for request in self.open][:10]}")
        for key in self.revisions:
            name = self.common_name(key)
            owners = [node for node in self.live() if name in node.member.owned]
            if len(owners) != 1 or not owners[0].member.owned[name].complete:
                raise RuleError(f"{key} has the owners {[node.name for node in owners]}")
            for node in self.live():
                throttler = node.throttlers[key]
                throttler.table.check_invariants()
                left = (throttler.queue.waiters.length, len(throttler.leases), int(throttler.table.in_flight))
                if left != (0, 0, 0):
                    raise RuleError(f"{key} at {node.name}: waiting, leases and in flight are {left}")
        for node in self.live():
            check_left(node.member, node.throttlers)
            for throttler in node.dropped:
                if throttler.has_requests() or throttler.queue.waiters.length:
                    raise RuleError(
                        f"{throttler.key} was dropped at {node.name}, and has {len(throttler.leases)} leases"
                    )

    # --- within ---

    def _new_name(self, place: int) -> MemberName:
        self._numbers += 1
        return MemberName(self._numbers, place)

    def _start(self, name: MemberName) -> None:
        self.nodes[name.number] = Node(self, name)

    def _end(self, node: Node) -> None:
        node.alive = False
        for one, other in self.network.links():
            if node.name.number in (one, other):
                self.network.cut(one, other)

    def _replace(self, place: int) -> None:
        name = self._new_name(place)
        self._names.append(name)
        self._start(name)
        self._publish()
        self.connect_all()

    def _publish(self) -> None:
        """Tell all members of the present view; each is told in order, and at a time of its own."""
        self._epoch += 1
        view = View(self._epoch, tuple(sorted(self._names, key=lambda one: one.number)), frozenset(self._leaving))
        for node in self.live():
            heard_s = max(self._heard_s.get(node.name.number, 0.0), self.now() + self.lag_s())
            self._heard_s[node.name.number] = heard_s
            self.timeline.at(heard_s, lambda node=node: node.run(lambda: self._adopt(node, view)))  # type: ignore[misc]

    def _adopt(self, node: Node, view: View) -> None:
        node.adopt(view)
        if not node.throttlers:
            for key, (limit, _) in self.revisions.items():
                node.add_revision(key, limit, self.lives.get(key, 0))
                for pod in self.here[key]:
                    node.add_pod(key, pod)
            node.tick()

    def _made_anew(self, node: Node, key: str, life: int, pods: list[Pod]) -> None:
        if key in node.throttlers or not node.member.view.epoch:
            return  # a later one is here, or comes with the first view
        node.add_revision(key, self.revisions[key][0], life)
        for pod in pods:
            node.add_pod(key, pod)

    def connect_all(self) -> None:
        live = [node.name.number for node in self.live()]
        for position, one in enumerate(live):
            for other in live[:position]:
                self.network.connect(one, other)

    def _linked(self, member: int, other: int, link: Link) -> None:
        node = self.nodes[member]
        node.run(lambda: node.linked(other, link))

    def _unlinked(self, member: int, other: int) -> None:
        node = self.nodes[member]
        node.run(lambda: node.unlinked(other))

    def _deliver(self, receiver: int, sender: int, message: MemberMessage) -> None:
        node = self.nodes[receiver]
        node.run(lambda: node.heard(sender, message))
