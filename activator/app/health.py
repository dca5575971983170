"""The liveness and readiness of the activator, for the admin port and for kubelets that ask a data plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from activator.app.sources import Sources
from activator.control_plane.plane import ControlPlane
from activator.messages import Command, SetHealth, SetPending
from activator.runtime.tasks import TaskGroupOwner

if TYPE_CHECKING:
    from activator.members.membership import Membership

HEALTH_REPORT_INTERVAL_S: Final = 0.1  # between two reports to the data plane


class Serving(Protocol):
    """The part of the program whose health it is."""

    draining: bool
    is_serving: bool
    membership: Membership | None


class Health:
    """The health of the activator. `send` takes commands to the data planes."""

    def __init__(self, app: Serving, control: ControlPlane, sources: Sources, send: Callable[[Command], None]) -> None:
        self._app = app
        self._control = control
        self._sources = sources
        self._send = send
        self._reported = SetHealth()
        self._is_pending = False  # a source has yet to list its revisions

    def waiting_for(self) -> list[str]:
        """Return why the activator is not ready to serve."""
        app, control = self._app, self._control
        reasons = []
        if app.draining:
            reasons.append("draining")
        if not app.is_serving:
            reasons.append("not listening yet")
        if not control.worker.is_settled():
            reasons.append("the first changes have not been applied")
        if app.membership is not None and app.membership.waiting_for():
            reasons.append(app.membership.waiting_for())
        reasons.extend(control.pending())
        reasons.extend(control.over_budget())
        return reasons

    def watch(self, tasks: TaskGroupOwner) -> None:
        """Report changes from now on."""
        tasks.repeat("health", HEALTH_REPORT_INTERVAL_S, self._report_all)

    def report(self) -> None:
        """Send the data plane a changed answer to kubelets, which ask a serving port in Knative mode only."""
        if self._sources.knative is None:
            return
        not_alive = "" if self._control.is_alive() else "the state worker does not turn"
        health = SetHealth(not_alive, "; ".join(self.waiting_for()))
        if health != self._reported:
            self._reported = health
            self._send(health)

    def report_pending(self) -> None:
        """Notify the data plane of the first source that has yet to list its revisions, and of the last that has.

        The second message follows the effects of these lists on the same channel.
        """
        is_pending = not self._control.is_listed() if self._is_pending else bool(self._control.pending())
        if is_pending is not self._is_pending:
            self._is_pending = is_pending
            self._send(SetPending(is_pending))

    def _report_all(self) -> None:
        self.report()
        self.report_pending()
