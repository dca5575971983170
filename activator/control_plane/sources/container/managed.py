"""A container that the activator creates from an image and removes at its end."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from typing import Any, Final

from activator.config.model.revision import Revision
from activator.control_plane.sources.container.context import EngineContext
from activator.control_plane.sources.container.creation import (
    IDENTITY_LABEL,
    INSTANCE_LABEL,
    REVISION_LABEL,
    creation_of,
    has_own_address,
    port_of,
)
from activator.control_plane.sources.container.engine import EngineAwayError, EngineError
from activator.control_plane.sources.container.images import Images
from activator.control_plane.sources.container.removal import found_by_label, remove, remove_by_label
from activator.control_plane.sources.container.sweeper import Sweeper
from activator.control_plane.sources.container.unit import ContainerUnit
from activator.control_plane.sources.process.output import OnLine
from activator.control_plane.sources.process.unit import NotStartedError
from activator.runtime.errors import one_line

CLOSE_PATIENCE_S: Final = 10.0  # for the removal of a container while the activator ends
CREATE_ANSWER_S: Final = 2.0  # for the answer to the creation of a container that is no longer needed

WARNINGS_MAX: Final = 8  # logged warnings of the engine, per container
WARNING_CHARS_MAX: Final = 300

log = logging.getLogger("activator.container")


class ManagedContainer(ContainerUnit):
    """A container that exists from its start to its end, with the labels of `sweeper`."""

    def __init__(
        self,
        context: EngineContext,
        images: Images,
        sweeper: Sweeper,
        pull_timeout_s: float,
        revision: Revision,
        identity: str,
        claim: str,
        gpus: tuple[str, ...],
        on_line: OnLine,
    ) -> None:
        super().__init__(context, revision, identity, claim, on_line)
        self._images = images
        self._sweeper = sweeper
        self._pull_timeout_s = pull_timeout_s
        self._gpus = gpus
        self._is_unanswered = False  # its creation was requested, and the engine has not answered
        self._name = self.settings.name or f"activator-{revision.namespace}-{revision.name}-{secrets.token_hex(4)}"

    async def _bring_up(self, stop_asked: asyncio.Event) -> None:
        settings = self.settings
        await self._sweeper.wait_first_sweep(self.context.patience_s)  # leftovers of an earlier run may have its name
        image = await self._retry_while_away(
            lambda: self._images.provide(settings.image, settings.pull, self._pull_timeout_s), stop_asked
        )
        if image is None or stop_asked.is_set():
            return
        self.port = port_of(settings, image)
        if self.port is None:
            raise NotStartedError(f"the image {settings.image} exposes no port, or several: set `container.port`")
        labels = self._sweeper.labels | {REVISION_LABEL: self._key, IDENTITY_LABEL: self.identity}
        body = creation_of(
            *(settings, self.port, labels, self._gpus, has_own_address(settings, self.context.address)),
            *(self.engine.is_podman, os.environ),
        )
        self._sweeper.expect(self.identity)
        await self._retry_while_away(lambda: self._create(body, stop_asked), stop_asked, is_cancelled=False)
        if self.id and not stop_asked.is_set():
            start = f"/containers/{self.id}/start"
            await self._retry_while_away(lambda: self.engine.call("POST", start), stop_asked)

    async def _create(self, body: dict[str, Any], stop_asked: asyncio.Event) -> None:
        """Create the container and set `id`; if an earlier answer was cut, look for its container first."""
        is_repeated = self._is_unanswered
        if is_repeated and await self._unless_stopped(self._find_created(), stop_asked):
            return
        self._is_unanswered = True
        try:
            created = await self._request_creation(body, stop_asked)
        except EngineError as error:
            if is_repeated and await self._unless_stopped(self._find_created(), stop_asked):
                return  # its creation completed after the first search
            if is_repeated and error.status == 409:
                raise EngineAwayError(error.message) from None  # its name is reserved: it may still be created
            self._is_unanswered = is_repeated
            raise
        if created is None:
            return
        container_id = created.get("Id") if isinstance(created, dict) else None
        if not isinstance(container_id, str) or not container_id.isalnum():
            raise EngineError(200, "the engine does not name the container that it made")
        self.id, self._is_unanswered = container_id, False
        self._log_warnings(created.get("Warnings"))

    async def _find_created(self) -> bool:
        """Set `id` if the container was created although the engine has not answered; True if so."""
        ids = await found_by_label(self.engine, self._labels())
        if ids:
            self.id, self._is_unanswered = ids[0], False
        return bool(ids)

    def _labels(self) -> list[str]:
        instance = self._sweeper.labels[INSTANCE_LABEL]
        return [f"{IDENTITY_LABEL}={self.identity}", f"{INSTANCE_LABEL}={instance}"]

    async def _request_creation(self, body: dict[str, Any], stop_asked: asyncio.Event) -> Any:
        """Return the engine's answer; None if the container is not needed and none comes within CREATE_ANSWER_S."""
        call = self.engine.call("POST", "/containers/create", {"name": self._name}, body)
        task = asyncio.ensure_future(call)  # noqa: TID251 - awaited or cancelled below
        no_longer_needed = asyncio.ensure_future(stop_asked.wait())  # noqa: TID251 - cancelled below
        try:
            await asyncio.wait({task, no_longer_needed}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({task}, timeout=CREATE_ANSWER_S)
            return task.result() if task.done() else None
        finally:
            no_longer_needed.cancel()
            task.cancel()

    def _log_warnings(self, warnings: Any) -> None:
        """Log the engine's warnings, for example about limits that this machine does not support."""
        for warning in warnings[:WARNINGS_MAX] if isinstance(warnings, list) else []:
            log.warning("%s: the container engine warns: %s", self.identity, one_line(str(warning))[:WARNING_CHARS_MAX])

    @property
    def _key(self) -> str:
        return f"{self.revision.namespace}/{self.revision.name}"

    async def remove(self, holds_resources: bool, is_closing: Callable[[], bool]) -> None:
        try:
            is_owned = await self._until_owned(is_closing)
            if is_owned and self._is_unanswered:
                await remove_by_label(
                    self.engine, self._labels(), self.identity, is_closing, CLOSE_PATIENCE_S, self.context.now
                )
            elif is_owned and self.id:
                await remove(self.engine, self.id, self.identity, is_closing, CLOSE_PATIENCE_S, self.context.now)
        finally:
            self._sweeper.forget(self.identity)

    def disown(self) -> None:
        pass
