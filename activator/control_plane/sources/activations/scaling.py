"""How many pods the Activations of this replica should have.

One replica decides on a revision and writes for it (`replicas.py`). This class has the revisions that are this
replica's, and their autoscaler; the others' are only served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import structs

from activator.config.activation import Declared
from activator.control_plane.scaling.autoscaler import Autoscaler
from activator.control_plane.scaling.decision import Decision
from activator.control_plane.scaling.rule import ScalingRule, resolve_rule
from activator.control_plane.sources.activations.replicas import Replicas
from activator.messages import Load
from activator.runtime.clock import Now

log = logging.getLogger("activator.kubernetes")


class ActivationScaling:
    """`scaled(key, wanted, why)` receives each decision."""

    def __init__(self, now: Now, wall_s: Now, replicas: Replicas, scaled: Callable[[str, int, str], None]) -> None:
        self.autoscaler = Autoscaler(now, wall_s, self._decided)
        self._replicas = replicas
        self._scaled = scaled
        self._begun: set[str] = set()  # revisions that the autoscaler decides on
        self._ours: set[str] = set()  # revisions that this replica writes for, as of their last pass
        self._foreign: set[str] = set()  # revisions that another replica has written for before
        self._floors: dict[str, int] = {}  # revisions for which no fewer pods may be decided

    def declare(self, key: str, declared: Declared | None) -> None:
        """Note what a revision's object says; None: nothing that can be served."""
        if declared is None or declared.activation.external_scaler:
            if key in self._begun:
                self._begun.discard(key)
                self.autoscaler.drop_revision(key)
        elif key in self._begun:
            self._set_rule(key, declared, 0)

    def begin(self, key: str, declared: Declared, running: int) -> None:
        """Decide on the revision from now on: it is this replica's, and `running` pods run. -1: not known yet."""
        self._ours.add(key)
        if key in self._begun or running < 0 or declared.activation.external_scaler:
            return
        self._begun.add(key)
        self._scaled(key, running, "")
        self._set_rule(key, declared, running, key in self._foreign)
        if not self._replicas.is_alone:
            self.autoscaler.load(self._replicas.sum(key))

    def is_known_as_ours(self, key: str) -> bool:
        """True if this replica wrote for the revision when it was worked out last."""
        return key in self._ours

    def is_anothers(self, key: str) -> None:
        """Note that another replica writes for the revision: its initial scale is behind it."""
        self._foreign.add(key)

    def hold(self, key: str, declared: Declared, least: int) -> None:
        """Decide on no fewer pods than `least`; 0: on as few as the rule allows. A floor only rises until it ends."""
        before = self._floors.get(key, 0)
        floor = max(least, before) if least else 0
        if floor == before:
            return
        if floor:
            self._floors[key] = floor
        else:
            del self._floors[key]
        if key in self._begun:
            self._set_rule(key, declared, 0)

    def ready(self, key: str, count: int) -> None:
        """Note how many pods of the revision answer."""
        self.autoscaler.ready(key, count)

    def load(self, load: Load) -> None:
        """Note what all replicas carry of a revision."""
        self.autoscaler.load(load)

    def give_up(self, key: str) -> None:
        """Decide on the revision no more: another replica does."""
        self._ours.discard(key)
        self._begun.discard(key)
        self._floors.pop(key, None)
        self.autoscaler.drop_revision(key)

    def drop_revision(self, key: str) -> None:
        """The revision is gone."""
        self.give_up(key)
        self._foreign.discard(key)

    def tick(self) -> None:
        """Decide on each revision that is due."""
        self.autoscaler.tick()

    def _set_rule(self, key: str, declared: Declared, running: int, is_taken_over: bool = False) -> None:
        rule = rule_of(declared)
        floor = self._floors.get(key, 0)
        if floor > rule.min:
            rule = structs.replace(rule, min=floor)
        self.autoscaler.set_revision(key, rule, running, is_taken_over)

    def _decided(self, key: str, decision: Decision) -> None:
        log.info("%s: %d pods wanted: %s", key, decision.wanted, decision.explanation)
        self._scaled(key, decision.wanted, decision.explanation)


def rule_of(declared: Declared) -> ScalingRule:
    """Return the scaling rule of a revision."""
    return resolve_rule(declared.revision.scaling, declared.revision.container_concurrency)
