"""A container that already exists: it is started and stopped, never removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from activator.control_plane.sources.container.state import STOPPED_CODES, state_of
from activator.control_plane.sources.container.unit import KILL_TIMEOUT_S, ContainerUnit
from activator.control_plane.sources.process.unit import NotStartedError
from activator.runtime.tasks import wait_for


class ExistingContainer(ContainerUnit):
    """A container that is found by its name at the first start, and by its id afterwards: it may be renamed."""

    is_borrowed = True
    _is_disowned = False

    async def _bring_up(self, stop_asked: asyncio.Event) -> None:
        await self._retry_while_away(self._start_or_resume, stop_asked)

    async def _start_or_resume(self) -> None:
        """Start or resume the container if needed; may be repeated as a whole."""
        name = self.id or self.settings.existing
        inspected = await self.engine.inspect("containers", name)
        if inspected is None:
            raise NotStartedError(f"there is no container {name}: make it, or correct `existing`")
        container_id = inspected.get("Id")
        if not isinstance(container_id, str) or not container_id.isalnum():
            raise NotStartedError(f"the container engine does not know the id of {name}")
        self.id = container_id
        if state_of(inspected).is_paused:
            await self.engine.call("POST", f"/containers/{self.id}/unpause")
        if not state_of(inspected).is_running:
            self._is_started = True
            await self.engine.call("POST", f"/containers/{self.id}/start")

    async def stop(self) -> None:
        if not self._is_disowned:
            await super().stop()

    async def _end_now(self) -> None:
        """Stop it without killing it. A container that ran before its start here, and was never watched, continues."""
        if not self._is_disowned and self._stopping is None and (self._running or self._is_started):
            await self._ask_to_stop()
            if self._running:
                await wait_for(self._ended, KILL_TIMEOUT_S)

    async def remove(self, holds_resources: bool, is_closing: Callable[[], bool]) -> None:
        pass

    def disown(self) -> None:
        """Leave the container as it is from now on (rule 1 of `unit.py`)."""
        self._is_disowned = True
        self._set_ended("", 0)
        for task in self._running:
            task.cancel()

    def was_stopped(self) -> bool:
        return self._ended.is_set() and (self._exit_code is None or self._exit_code in STOPPED_CODES)
