"""Decides how many pods the Activations of this replica should have.

One replica decides on a revision and writes for it (`replicas.py`). This class has the revisions that this replica owns
and their autoscaler; the other revisions are only served.
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
    """The scaling of the revisions that this replica owns. `scaled(key, wanted, why)` receives each decision."""

    def __init__(self, now: Now, wall_s: Now, replicas: Replicas, scaled: Callable[[str, int, str], None]) -> None:
        self.autoscaler = Autoscaler(now, wall_s, self._decided)
        self._replicas = replicas
        self._scaled = scaled
        self._begun: set[str] = set()  # revisions that the autoscaler decides on
        self._ours: set[str] = set()  # revisions that this replica writes for, as of their last pass
        self._foreign: set[str] = set()  # revisions that another replica has written for before
        self._floors: dict[str, int] = {}  # revisions for which no fewer pods may be decided

    def declare(self, key: str, declared: Declared | None) -> None:
        """Record the declaration of a revision; None: nothing that can be served."""
        if declared is None or declared.activation.external_scaler:
            if key in self._begun:
                self._begun.discard(key)
                self.autoscaler.drop_revision(key)
        elif key in self._begun:
            self._set_rule(key, declared, 0)

    def begin(self, key: str, declared: Declared, running: int) -> None:
        """Start deciding on a revision that this replica owns. `running`: its pods; -1: not known yet."""
        self._ours.add(key)
        if key in self._begun or running < 0 or declared.activation.external_scaler:
            return
        self._begun.add(key)
        self._scaled(key, running, "")
        self._set_rule(key, declared, running, key in self._foreign)
        if not self._replicas.is_alone:
            self.autoscaler.load(self._replicas.sum(key))

    def is_known_as_ours(self, key: str) -> bool:
        """Return True if this replica wrote for the revision in its last pass."""
        return key in self._ours

    def set_anothers(self, key: str) -> None:
        """Record that another replica writes for the revision, so its initial scale is over."""
        self._foreign.add(key)

    def set_floor(self, key: str, declared: Declared, least: int) -> None:
        """Set the least number of pods; 0: the rule's. It only rises until it is set to 0."""
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
        """Record how many pods of the revision answer."""
        self.autoscaler.ready(key, count)

    def load(self, load: Load) -> None:
        """Record the load of a revision over all replicas."""
        self.autoscaler.load(load)

    def give_up(self, key: str) -> None:
        """Stop deciding on the revision: another replica does."""
        self._ours.discard(key)
        self._begun.discard(key)
        self._floors.pop(key, None)
        self.autoscaler.drop_revision(key)

    def drop_revision(self, key: str) -> None:
        """Forget the revision: it was removed."""
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
