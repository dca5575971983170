"""Replicas as a whole, in one process and one time: each has a real group, a real member, and real throttlers.

Views come from the groups, over links of their own; slots go over the links of the data planes. What joins the two here
does as `members/membership.py` does. A failure happens again with its seed.

Rules that must hold, beside those of `tests/simulation/world.py`
  1. A limit may be exceeded only by what a replica had that was released, as the operator allows (`on_silence`).
  2. When all is calm, all are in one view, and nobody in it is unproven.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from activator.data_plane.ownership.messages import MemberMessage
from activator.data_plane.ownership.names import MemberName
from activator.data_plane.ownership.view import WORKER_BITS, View
from activator.members.contacts import GroupRules
from activator.members.group import Group
from activator.members.lives import Lives
from activator.members.local_proofs import END_SETTLE_S
from activator.members.membership import (
    FORM_SLACK_S,
    REDIAL_S,
    TICK_S,
)
from activator.members.mesh import HANDSHAKE_S
from activator.members.messages import GroupMessage, GroupView, Replica, RevisionLives, decode, encode
from activator.members.numbers import follows_on, seat_of, unmet, worker_number, worker_place
from activator.members.plane_links import RELINK_INITIAL_S, RELINK_MAX_S
from activator.messages import DropRevision, SetRevision
from activator.workers.frames import decode as decode_slots
from activator.workers.frames import encode as encode_slots
from tests.members.streams import End, Stream, Streams
from tests.simulation.rules import RuleError
from tests.simulation.world import Node, Pod, Request, World, spec_of

DIAL_S: Final = 2.0
STABLE_S: Final = 6.0  # after the last fault: what was lost has been said again


class SeatLink:
    """As in `membership.py`."""

    def __init__(self, end: End, replica: int, is_dialled: bool) -> None:
        self.end = end
        self.replica = replica
        self.is_dialled = is_dialled


class Dial:
    """What a greeting says, and who waits for its answer."""

    def __init__(self, node: WholeNode, own: int, wanted: int, expected: int) -> None:
        self.node = node
        self.own = own
        self.wanted = wanted
        self.expected = expected
        self.is_over = False
        self.met: Callable[[End, int], None]
        self.failed: Callable[[bool], None]

    def fail(self, is_vacant: bool) -> None:
        if not self.is_over:
            self.is_over = True
            self.failed(is_vacant)


class WholeNode(Node):
    """One life of a replica of one process."""

    world: WholeWorld

    def __init__(self, world: WholeWorld, seat: int, number: int) -> None:
        self.plane = worker_number(number, 1)
        super().__init__(world, MemberName(self.plane, worker_place(seat, 0)), world.random.getrandbits(62))
        self.seat = seat
        self.number = number
        self.is_loaded = False
        self.machine_is_down = False
        self.lives = Lives()
        self.links: dict[int, SeatLink] = {}
        self.dialling: set[int] = set()
        self.planes: dict[int, int] = {}  # data planes that there are to be links to, and their seats
        self.ends: dict[int, End] = {}  # of links to them
        self.epoch = 0
        self.excused_epoch = 0  # when it was released
        self.group = Group(
            number,
            world.rules,
            self._send_group,
            self._adopt_view,
            self._allow,
            self._learn,
            self._inquire,
            self._died,
            world.now,
        )

    def begin(self) -> None:
        self.group.set_roster(set(range(self.world.seats)))
        self.group.set_lives(self.lives.announced())
        self.group.set_process(f"machine {self.seat}", self.number, 1, "")
        self.group.set_data_planes((MemberName(self.plane, self.name.place),))
        self._tick_group()
        self.tick()
        self.later(2.0 * self.world.rules.silence_s + FORM_SLACK_S, self.load)

    def resume(self) -> None:
        if self.alive and self.paused and self.world.random.random() < 0.5:
            self.group.tick()  # timers come before what has arrived
        super().resume()

    # --- revisions ---

    def load(self) -> None:
        """All that there is, once the group is there or has had its time."""
        if self.is_loaded or self.leaves:
            return
        if self.world.is_dropping() or (self.world.loads_formed and not self.epoch):
            self.later(0.05, self.load)
            return
        self.is_loaded = True
        for node in self.world.whole():
            if self.world.loads_formed:  # whoever knows has been met before, in these storms
                self.lives.learn(node.lives.announced())
        for key in self.world.revisions:
            if key not in self.world.absent:
                self.set_key(key)

    def set_key(self, key: str) -> None:
        if key in self.throttlers or not self.is_loaded:
            return
        limit = self.world.limits[key]
        effect = self.lives.with_life(SetRevision(spec_of(key, limit)))
        assert isinstance(effect, SetRevision)
        self.add_revision(key, limit, effect.life)
        for pod in self.world.here[key]:
            self.add_pod(key, pod)
        self._lives_changed()

    def add_pod(self, key: str, pod: Pod) -> None:
        throttler = self.throttlers.get(key)
        if throttler is not None and throttler.table.find_identity(pod.identity) is None:
            super().add_pod(key, pod)

    def drop_key(self, key: str) -> None:
        throttler = self.throttlers.get(key)
        if throttler is not None:
            self.lives.with_life(DropRevision(key))
            self.drop_revision(key, int(throttler.common_name.rpartition("#")[2]) + 1)
            self._lives_changed()

    def _lives_changed(self) -> None:
        self.group.set_lives(self.lives.announced())

    def _learn(self, lives: RevisionLives) -> None:
        self.lives.learn(lives)

    # --- the group ---

    def _tick_group(self) -> None:
        self.group.tick()
        self.world.excuse()
        for seat in range(self.world.seats):
            if seat != self.seat and seat not in self.links and seat not in self.dialling:
                self.dialling.add(seat)
                self._dial_seat(seat)
        self.later(TICK_S, self._tick_group)

    def _dial_seat(self, seat: int) -> None:
        dial = Dial(self, 0, 0, 0)

        def met(end: End, replica: int) -> None:
            self.dialling.discard(seat)
            self._link_seat(seat, end, replica, is_dialled=True)

        def failed(is_vacant: bool) -> None:
            if is_vacant:
                self.group.refused(seat)
            self.later(REDIAL_S, lambda: self.dialling.discard(seat))

        dial.met, dial.failed = met, failed
        self.world.dial(dial, seat)

    def accepts(self, dial: Dial) -> bool:
        seat, replica = dial.node.seat, dial.node.number
        if dial.wanted:
            return dial.wanted == self.plane and dial.own in self.planes
        if self.group.contacts.is_taken(seat, replica):
            return False
        link = self.links.get(seat)
        is_ours = link is not None and link.replica == replica and link.is_dialled
        return not (is_ours and replica < self.number)

    def met(self, dial: Dial, end: End) -> None:
        """Somebody has connected."""
        if dial.wanted:
            self._link_plane(dial.own, end)
        else:
            self._link_seat(dial.node.seat, end, dial.node.number, is_dialled=False)

    def _link_seat(self, seat: int, end: End, replica: int, is_dialled: bool) -> None:
        former = self.links.get(seat)
        if former is not None:
            if is_dialled and not former.is_dialled and former.replica == replica > self.number:
                end.close(in_order=True)  # theirs stays
                return
            self._drop_seat(seat)
        link = self.links[seat] = SeatLink(end, replica, is_dialled)
        end.received = lambda data: self._group_said(seat, link, data)
        end.ended = lambda _: self._seat_lost(seat, link)
        self.group.linked(seat, replica)

    def _drop_seat(self, seat: int) -> None:
        self.links.pop(seat).end.close(in_order=False)
        self.group.unlinked(seat)

    def _group_said(self, seat: int, link: SeatLink, data: object) -> None:
        if self.links.get(seat) is link:
            assert isinstance(data, bytes)
            self.group.receive(seat, decode(data))

    def _seat_lost(self, seat: int, link: SeatLink) -> None:
        if self.links.get(seat) is not link:
            return
        del self.links[seat]
        self.group.unlinked(seat)

    def _inquire(self, replica: Replica) -> None:
        """Ask the kernel: the machine of a replica is that of its seat."""
        if seat_of(replica.number) != self.seat:
            return
        former = self.world.numbers.get(replica.number)
        if former is not None and not former.alive:
            self.later(self.world.settle_s, lambda: self.group.ended(replica.number))

    def _died(self) -> None:
        raise RuleError(f"seat {self.seat} lives, and others take it for ended")

    def _send_group(self, seat: int, message: GroupMessage) -> None:
        link = self.links.get(seat)
        if link is not None:
            link.end.send(encode(message))

    def _allow(self, allowed: bool) -> None:
        self.member.allow_grants(allowed)

    def _adopt_view(self, view: GroupView) -> None:
        former, self.epoch = self.epoch, view.epoch
        self.world.views_total += 1
        names = [name for replica in view.replicas for name in replica.data_planes]
        planes = {
            one.number: seat_of(replica.number)
            for replica in view.replicas
            if replica.number != self.number
            for one in replica.data_planes
        }
        new = planes.keys() - self.planes.keys()
        self.planes = planes
        follows = follows_on(former, view.epoch) or not self.world.rules.releases_silent
        self.member.adopt(View(view.epoch, tuple(names), frozenset(), frozenset(view.unproven), follows))
        for other in [other for other in self.ends if other not in planes]:
            self._end_plane(other)
        for other in new:
            self._link_planes(other, planes[other])
        self.later(0.0, self.load)

    def has_registered_again(self) -> bool:
        """Since it was released: what it had is known to whoever owns it now, and it uses nothing else."""
        borrowed = self.member.borrowed.values()
        return self.epoch > self.excused_epoch and all(one.borrowing.epoch == self.epoch for one in borrowed)

    # --- links of data planes ---

    def _link_planes(self, other: int, seat: int) -> None:
        if other >> WORKER_BITS < self.number:
            self._dial_plane(other, seat, RELINK_INITIAL_S)

    def _dial_plane(self, other: int, seat: int, delay_s: float) -> None:
        if self.planes.get(other) != seat:
            return
        dial = Dial(self, self.plane, other, other >> WORKER_BITS)
        dial.met = lambda end, _: self._link_plane(other, end)
        dial.failed = lambda _: self.later(
            delay_s, lambda: self._dial_plane(other, seat, min(2.0 * delay_s, RELINK_MAX_S))
        )
        self.world.dial(dial, seat)

    def _link_plane(self, other: int, end: End) -> None:
        """As `Peers` does."""
        self._end_plane(other)
        self.ends[other] = end
        end.received = lambda data: self._slots_said(other, end, data)
        end.ended = lambda _: self._plane_lost(other, end)
        self.member.linked(other)

    def _end_plane(self, other: int) -> None:
        end = self.ends.pop(other, None)
        if end is not None:
            end.close(in_order=True)
            self.member.unlinked(other)

    def _plane_lost(self, other: int, end: End) -> None:
        if self.ends.get(other) is not end:
            return
        self._end_plane(other)
        seat = self.planes.get(other)
        if seat is not None:
            self._link_planes(other, seat)

    def _slots_said(self, other: int, end: End, data: object) -> None:
        if self.ends.get(other) is end:
            assert isinstance(data, bytes)
            for message in decode_slots(data):
                self.member.receive(other, message)

    def _send(self, receiver: int, message: MemberMessage) -> None:
        end = self.ends.get(receiver)
        if end is not None:
            self.world.network.sent += 1
            end.send(encode_slots([message]))

    def _drop(self, peer: int) -> None:
        end = self.ends.get(peer)
        if end is not None:

            def dropped() -> None:
                if self.ends.get(peer) is end:
                    self._plane_lost(peer, end)

            self.later(0.0, dropped)


class WholeWorld(World):
    """`members`: seats, each of which begins with a replica."""

    nodes: dict[int, WholeNode]  # type: ignore[assignment]

    def __init__(
        self, seed: int, members: int, revisions: dict[str, tuple[int, int]], rules: GroupRules | None = None
    ) -> None:
        self.rules = rules or GroupRules()
        self.seats = members
        self.limits = {key: limit for key, (limit, _) in revisions.items()}
        self.absent: set[str] = set()
        self.at: dict[int, WholeNode] = {}
        self.views_total = 0
        self.events = 0
        self.settle_s = END_SETTLE_S  # after which the kernel's report counts
        self.numbers: dict[int, WholeNode] = {}  # all lives of replicas
        self.loads_formed = False  # nobody loads revisions before it is in a view
        self.faulted_s = 0.0
        self._lifted: set[str] = set()  # revisions whose limit is gone, or not looked at yet again
        self._of_key: dict[str, list[Pod]] = {key: [] for key in revisions}
        self._returns: dict[tuple[WholeNode, str], None] = {}  # to whom a revision is yet to come back
        self._drops: list[dict[WholeNode, None]] = []  # who has not heard of it yet
        super().__init__(seed, members, revisions, checked=False)  # the checker knows one kind of views

    def _begin(self, members: int) -> None:
        self.streams = Streams(self.timeline, random.Random(self.random.random()))
        for seat in range(members):
            self.timeline.later(self.random.random() * 0.5, partial(self.start, seat))

    def connect_all(self) -> None:
        pass  # the nodes do

    def run(self, seconds: float) -> None:
        until_s = self.now() + seconds
        while self.timeline.next_s() <= until_s:
            self.timeline.step()
            self.events += 1
        self.timeline.now_s = until_s

    def excuse(self) -> None:
        """Of released ones: what they have, and what they grant until they have another view."""
        if not self.rules.releases_silent:
            return
        released = {
            contact.seat
            for node in self.whole()
            for contact in node.group.contacts.by_seat.values()
            if contact.is_released
        }
        for node in self.whole():
            if node.seat not in released:
                node.is_excused = node.is_excused and not node.has_registered_again()
            elif not node.is_excused:
                node.is_excused = True
                node.excused_epoch = node.epoch
                for pod in self.pods.values():
                    for request in pod.requests:
                        request.is_excused |= request.node is node

    def whole(self) -> list[WholeNode]:
        """Those that live."""
        return [node for node in self.nodes.values() if node.alive]

    # --- replicas ---

    def start(self, seat: int) -> None:
        former = self.at.get(seat)
        if former is not None and former.alive:
            return
        for stream in [] if former is None else self.streams.of(former):
            self.timeline.later(self.random.random() * 0.5, stream.lose)  # its address answers again
        number = unmet(seat) + self.random.getrandbits(39) + 1
        node = self.at[seat] = WholeNode(self, seat, number)
        self.nodes[node.plane] = node
        self.numbers[number] = node
        node.begin()

    def kill_seat(self, seat: int, proof: str) -> None:
        """`proof`: "end", the process ends and the kernel closes its links; "told", some are told after a while;
        "none", the machine is gone, until the seat is started again.
        """
        node = self.at[seat]
        if not node.alive:
            return
        self._gone(node)
        if proof == "end":
            for stream in self.streams.of(node):
                for end in stream.ends:
                    if end.host is node:
                        end.close(in_order=self.random.random() < 0.8)
            return
        node.machine_is_down = True
        for stream in self.streams.of(node):
            self.timeline.later(8.0 + 4.0 * self.random.random(), stream.lose)
        if proof == "told":
            for other in self.whole():
                if self.random.random() < 0.6:
                    self._tell_end(other, node.number)

    def _tell_end(self, node: WholeNode, number: int) -> None:
        node.later(self.random.random() * 3.0, lambda: node.group.ended(number))

    def _gone(self, node: WholeNode) -> None:
        node.alive = False
        for pod in self.pods.values():
            for request in [request for request in pod.requests if request.node is node]:
                pod.left(request)
        for request in [request for request in self.open if request.node is node]:
            del self.open[request]
            self.ends["killed"] = self.ends.get("killed", 0) + 1
        for waiting in self._drops:
            waiting.pop(node, None)

    def leave_seat(self, seat: int) -> None:
        """In order: it owns nothing any more and gets no more requests, and goes when its last one has ended."""
        node = self.at[seat]
        node.leaves = True
        node.group.set_data_planes((MemberName(node.plane, node.name.place, drains=True),))

        def gone() -> None:
            if any(request.node is node for request in self.open):
                node.later(0.05, gone)
                return
            node.group.leave()
            for stream in self.streams.of(node):
                for end in stream.ends:
                    if end.host is node:
                        end.close(in_order=True)
            self._gone(node)

        node.later(0.05, gone)

    # --- links ---

    def dial(self, dial: Dial, seat: int) -> None:
        """Connect, greet, answer, prove: as `mesh.py`."""
        node = dial.node
        other = self.at.get(seat)
        limit_s = DIAL_S + HANDSHAKE_S * self.random.random()
        if self.streams.is_cut(node.seat, seat) or (other is not None and not other.alive and other.machine_is_down):
            node.later(limit_s, lambda: dial.fail(False))
        elif other is None or not other.alive:
            node.later(2.0 * self.streams.delay_s(), lambda: dial.fail(True))
        elif other.paused:
            node.later(limit_s, lambda: dial.fail(False))
        else:
            node.later(limit_s, lambda: dial.fail(False))
            other.later(self.streams.delay_s(), lambda: self._greeted(dial, other))

    def _greeted(self, dial: Dial, other: WholeNode) -> None:
        node = dial.node
        if not other.accepts(dial) or (dial.expected and dial.expected != other.number):
            node.later(self.streams.delay_s(), lambda: dial.fail(False))
            return
        stream = self.streams.connect(node, other)
        near, far = stream.ends
        state = {"met": False}

        def proven(_: object) -> None:
            if other.accepts(dial):
                state["met"] = True
                other.met(dial, far)
            else:
                far.close(in_order=True)

        def late() -> None:
            if not state["met"]:
                far.close(in_order=True)

        far.received = proven
        far.ended = lambda _: None
        near.received = lambda _: None
        near.ended = lambda _: dial.fail(False)
        far.host.run(lambda: other.later(HANDSHAKE_S, late))
        self.timeline.later(self.streams.delay_s(), lambda: node.run(lambda: self._answered(dial, stream, other)))

    def _answered(self, dial: Dial, stream: Stream, other: WholeNode) -> None:
        near = stream.ends[0]
        if dial.is_over or not near.is_open:
            near.close(in_order=True)
            return
        dial.is_over = True
        near.send(b"proof")
        dial.met(near, other.number)

    # --- revisions ---

    def is_dropping(self) -> bool:
        self._drops = [waiting for waiting in self._drops if waiting]
        return bool(self._drops)

    def drop_key(self, key: str, together: bool) -> None:
        """`together`: it comes back only when all have dropped it; else at each when it does."""
        if key in self.absent or self.is_dropping() or any(node.alive for node, _ in self._returns):
            return
        self.here[key] = []
        self.absent.add(key)
        nodes = [node for node in self.whole() if node.is_loaded]
        waiting = dict.fromkeys(nodes)
        self._drops.append(waiting)
        if not together:
            self._back(key)

        def dropped(node: WholeNode) -> None:
            node.drop_key(key)
            waiting.pop(node, None)
            if not together:
                self._return_to(node, key)

        for node in nodes:
            node.later(0.15 + self.random.random() * 0.5, partial(dropped, node))
        if together:
            self.timeline.later(1.0, lambda: self._come_back(key, waiting))

    def _come_back(self, key: str, waiting: dict[WholeNode, None]) -> None:
        if waiting:
            self.timeline.later(0.2, lambda: self._come_back(key, waiting))
            return
        self._back(key)
        for node in self.whole():
            self._return_to(node, key)

    def _return_to(self, node: WholeNode, key: str) -> None:
        self._returns[node, key] = None

        def comes() -> None:
            node.set_key(key)
            self._returns.pop((node, key), None)

        node.later(self.random.random() * 0.5, comes)

    def _back(self, key: str) -> None:
        limit, count = self.revisions[key]
        self.absent.discard(key)
        for _ in range(count):
            self.new_pod(key, limit)

    def new_pod(self, key: str, limit: int) -> Pod:
        pod = super().new_pod(key, limit)
        self._of_key[key].append(pod)
        if key in self._lifted:
            pod.limit = 1_000_000
        return pod

    def is_ready(self) -> bool:
        """Every revision is there, with its limit."""
        returns = any(node.alive for node, _ in self._returns)
        return not (self._lifted or self.absent or returns or self.is_dropping())

    def lift_limit(self, key: str, seconds: float) -> None:
        """Pods stop to look, and begin again a while after every replica has the limit again."""
        if key in self._lifted or key in self.absent or self.is_dropping():
            return
        self._lifted.add(key)
        for pod in self._of_key[key]:
            pod.limit = 1_000_000
        self.set_limit(key, 0)
        self.limits[key] = 0
        self.timeline.later(seconds, lambda: self._limit_again(key))

    def _limit_again(self, key: str) -> None:
        self.limits[key] = self.revisions[key][0]
        waiting = dict.fromkeys(self.whole())

        def has_limit(node: WholeNode) -> None:
            node.set_limit(key, self.limits[key])
            waiting.pop(node)

        for node in self.whole():
            node.later(0.06 + self.lag_s(), partial(has_limit, node))
        self.timeline.later(0.2, lambda: self._watch_limit_again(key, waiting))

    def _watch_limit_again(self, key: str, waiting: dict[WholeNode, None]) -> None:
        limit = self.limits[key]
        pods = self._of_key[key]
        if any(node.alive for node in waiting) or any(len(pod.requests) > limit for pod in pods):
            self.timeline.later(0.2, lambda: self._watch_limit_again(key, waiting))
            return

        def watch() -> None:
            self._lifted.discard(key)
            for pod in pods:
                pod.limit = limit
                while len(pod.free_since_s) > max(limit - len(pod.requests), 0):
                    pod.free_since_s.popleft()
                while len(pod.free_since_s) < limit - len(pod.requests):
                    pod.free_since_s.append(self.now())

        self.timeline.later(2.0, watch)

    # --- when it is calm ---

    def settle(self) -> None:
        """Faults end: nothing is cut, everybody goes on, and each seat has a replica."""
        self.streams.heal(0.5)
        for node in self.whole():
            if node.paused:
                node.resume()
        until_s = self.now() + 120.0
        while any(not node.alive or node.leaves for node in self.at.values()):
            if self.now() > until_s:
                raise RuleError(f"seats that cannot leave: {[node.seat for node in self.at.values() if node.leaves]}")
            for seat in range(self.seats):
                self.start(seat)
            self.run(0.5)
        self.run(STABLE_S)

    def calm_down(self) -> None:
        self.settle()
        super().calm_down()

    def check_calm(self) -> None:
        self.check_view()
        super().check_calm()

    def check_view(self) -> None:
        views = {node.number: node.group.effective for node in self.whole()}
        if len({view.epoch for view in views.values()}) != 1:
            raise RuleError(f"views {[view.epoch for view in views.values()]}")
        (view, *_) = views.values()
        if {replica.number for replica in view.replicas} != views.keys() or view.unproven:
            raise RuleError(f"there are {sorted(views)}, and the view is {view}")
        for node in self.whole():
            if not node.group.may_grant or not node.is_loaded or node.ends.keys() != node.planes.keys():
                raise RuleError(f"seat {node.seat}: {node.group.may_grant} {node.is_loaded} {node.ends.keys()}")

    def common_name(self, key: str) -> str:
        names = {node.throttlers[key].common_name for node in self.whole()}
        if len(names) != 1:
            raise RuleError(f"{key} is known as {sorted(names)}")
        return names.pop()


def ask_somewhere(world: WholeWorld, key: str) -> Request | None:
    """At a replica that serves."""
    ready = [node for node in world.whole() if not node.leaves and key in node.throttlers]
    return world.ask(world.random.choice(ready), key) if ready else None
