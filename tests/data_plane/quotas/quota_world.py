"""Several data planes that share quotas: links that deliver late and break, members that end or stand apart.

`Truth` counts what was admitted, and asserts that no limit is exceeded.
"""

from __future__ import annotations

from collections import deque
from random import Random

from activator.config.specs import QuotaSpec, UserSpec
from activator.data_plane.ownership.names import MemberName
from activator.data_plane.ownership.view import View
from activator.data_plane.quotas.ledger import ADMITTED
from activator.data_plane.quotas.messages import QuotaMessage
from activator.data_plane.quotas.quota import AdmissionRequest
from activator.data_plane.quotas.quotas import Quotas

DELAY_MAX_S = 0.02
TOLD_MAX_S = 0.1  # from the end of a hold until the request knows the decision, at most


def user(name: str, spec: QuotaSpec) -> UserSpec:
    return UserSpec(name, name.encode(), None, quota=spec)


class Truth:
    """What one user has really taken."""

    def __init__(self, spec: QuotaSpec) -> None:
        self.spec = spec
        self.admitted = 0
        self.open = 0
        self._requests = self._tokens = 0.0
        self._at_s = 0.0

    def admit(self, tokens: int, now_s: float) -> None:
        spec = self.spec
        self._free(now_s)
        self.admitted += 1
        self.open += 1
        self._requests += 1.0
        self._tokens += tokens
        if spec.requests:
            assert self._requests <= spec.requests * (1.0 + TOLD_MAX_S / spec.requests_period_s), "too many requests"
        if spec.tokens:
            assert self._tokens <= spec.tokens * (1.0 + TOLD_MAX_S / spec.tokens_period_s), "too many tokens"
        if spec.concurrency:
            assert self.open <= spec.concurrency, "too many at the same time"

    def end(self, change: int, now_s: float) -> None:
        self._free(now_s)
        self.open -= 1
        self._tokens = max(self._tokens + change, 0.0)

    def used(self, now_s: float) -> tuple[float, float]:
        self._free(now_s)
        return self._requests, self._tokens

    def _free(self, now_s: float) -> None:
        spec, gone_s = self.spec, now_s - self._at_s
        self._at_s = now_s
        if spec.requests:
            self._requests = max(self._requests - gone_s * spec.requests / spec.requests_period_s, 0.0)
        if spec.tokens:
            self._tokens = max(self._tokens - gone_s * spec.tokens / spec.tokens_period_s, 0.0)


class Plane:
    """One member. `begun`: its admitted requests that have not ended."""

    def __init__(self, world: World, number: int, place: int) -> None:
        self.name = MemberName(number, place)
        self.quotas = Quotas(lambda: world.now_s)
        self.quotas.join(number, lambda other, message: world.send(number, other, message))
        self.quotas.set_users(world.users())
        self.asked: dict[AdmissionRequest, str] = {}
        self.begun: list[tuple[AdmissionRequest, str]] = []
        self.views: deque[tuple[float, View]] = deque()
        self.tick_s = 0.0
        self.without: set[str] = set()  # users without limits here, by a reload that the others have not had
        self.epoch = 0  # of the last view that it was sent


class World:
    """The members, their links, and the time."""

    def __init__(self, specs: dict[str, QuotaSpec], seed: int) -> None:
        self.now_s = 1_000.0
        self.random = Random(seed)
        self.specs = specs
        self.truths = {name: Truth(spec) for name, spec in specs.items()}
        self.planes: dict[int, Plane] = {}
        self.apart: set[int] = set()  # alive, in no view, and without links
        self.refused = 0
        self._links: dict[tuple[int, int], deque[tuple[float, QuotaMessage]]] = {}
        self._numbers = 0
        self._epoch = 0
        self._unproven: set[int] = set()

    def users(self) -> list[UserSpec]:
        return [user(name, spec) for name, spec in self.specs.items()]

    # --- links ---

    def send(self, one: int, other: int, message: QuotaMessage) -> None:
        link = self._links.get((one, other))
        if link is None:
            return
        at_s = self.now_s + self.random.random() * DELAY_MAX_S
        link.append((max(at_s, link[-1][0]) if link else at_s, message))

    def is_linked(self, one: int, other: int) -> bool:
        return (one, other) in self._links

    def link(self, one: int, other: int) -> None:
        self._links[one, other], self._links[other, one] = deque(), deque()
        self.planes[one].quotas.linked(other)
        self.planes[other].quotas.linked(one)

    def unlink(self, one: int, other: int) -> None:
        """Lose a link and what is on its way."""
        for pair in ((one, other), (other, one)):
            if self._links.pop(pair, None) is not None and pair[0] in self.planes:
                self.planes[pair[0]].quotas.unlinked(pair[1])

    def link_some(self) -> None:
        """Link members of the same view that have no link."""
        numbers = [number for number in self.planes if number not in self.apart]
        for at, one in enumerate(numbers):
            for other in numbers[at + 1 :]:
                if not self.is_linked(one, other):
                    self.link(one, other)

    # --- members ---

    def add(self, place: int) -> Plane:
        self._numbers += 1
        plane = self.planes[self._numbers] = Plane(self, self._numbers, place)
        self.publish()
        return plane

    def kill(self, number: int) -> None:
        """End a member; its requests end with it, and the kernel proves its end."""
        for other in list(self.planes):
            self.unlink(number, other)
        plane = self.planes.pop(number)
        for _, name in plane.begun:
            self.truths[name].end(0, self.now_s)
        self.apart.discard(number)
        self._unproven.discard(number)
        self.publish()

    def set_apart(self, number: int) -> None:
        """Cut a member off: the others have a view without it, and it goes on as before."""
        self.apart.add(number)
        self._unproven.add(number)
        for other in list(self.planes):
            self.unlink(number, other)
        self.publish()

    def take_back(self, number: int) -> None:
        self.apart.discard(number)
        self._unproven.discard(number)
        self.publish()

    def publish(self) -> None:
        """Send the present members as a view, which each of them gets at another time."""
        self._epoch += 1
        there = [plane for number, plane in self.planes.items() if number not in self.apart]
        members = tuple([plane.name for plane in there])
        for plane in there:
            last_s = plane.views[-1][0] if plane.views else 0.0
            at_s = max(self.now_s + self.random.random() * DELAY_MAX_S, last_s)
            is_next = plane.epoch == self._epoch - 1
            plane.views.append((at_s, View(self._epoch, members, frozenset(self._unproven), is_next=is_next)))
            plane.epoch = self._epoch

    def reload(self, plane: Plane, without: set[str]) -> None:
        """Take the limits from these users, at one member."""
        plane.without = without
        plane.quotas.set_users([one for one in self.users() if one.name not in without])

    # --- requests ---

    def ask(self, plane: Plane, name: str, tokens: int) -> None:
        quota = plane.quotas.find(name)
        if quota is None:
            assert name in plane.without
            return
        asked = plane.quotas.ask(quota, tokens)
        if asked.decision is None:
            plane.asked[asked] = name
            asked.decided = lambda: self._decided(plane, asked)
        else:
            plane.asked[asked] = name
            self._decided(plane, asked)

    def _decided(self, plane: Plane, asked: AdmissionRequest) -> None:
        name = plane.asked.pop(asked, None)
        assert asked.decision is not None
        if name is None:
            return  # its client has left
        if asked.quota.is_dropped:
            return  # it has no limits any more
        if asked.decision.limit == ADMITTED:
            self.truths[name].admit(asked.tokens, self.now_s)
            plane.begun.append((asked, name))
        else:
            self.refused += 1

    def leave(self, plane: Plane) -> None:
        """Let a client leave whose request is not decided on."""
        asked = next(iter(plane.asked), None)
        if asked is not None:
            del plane.asked[asked]
            plane.quotas.end(asked, 0)

    def end(self, plane: Plane, used: float) -> None:
        """End a random request, which took this part of its reserved tokens."""
        if plane.begun:
            asked, name = plane.begun.pop(self.random.randrange(len(plane.begun)))
            tokens = int(asked.tokens * used)
            self.truths[name].end(tokens - asked.tokens, self.now_s)
            plane.quotas.end(asked, tokens)

    # --- time ---

    def run(self, seconds: float, step_s: float = 0.002) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += step_s
            self._deliver()

    def _deliver(self) -> None:
        now_s = self.now_s
        for number, plane in list(self.planes.items()):
            while plane.views and plane.views[0][0] <= now_s and number not in self.apart:
                plane.quotas.adopt(plane.views.popleft()[1])
            if now_s - plane.tick_s >= 0.2:
                plane.tick_s = now_s
                plane.quotas.tick()
        for pair, link in list(self._links.items()):
            while link and link[0][0] <= now_s and self._links.get(pair) is link:
                self.planes[pair[1]].quotas.receive(pair[0], link.popleft()[1])
