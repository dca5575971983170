"""Pods that report themselves, as a source: its port and its intake."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable

from activator.config.model.pods import Push
from activator.control_plane.sources.push.intake import PushIntake
from activator.control_plane.sources.push.server import PushServer, read_token
from activator.control_plane.sources.source import Source
from activator.control_plane.state.model import Model
from activator.control_plane.state.worker import ChangeOutcome
from activator.messages import Change

log = logging.getLogger("activator")


class PushSource(Source):
    """The source. Nothing is resubmitted, because pods repeat their reports.

    `submit_with_outcome` and `model` are the state worker's.
    """

    def __init__(
        self,
        push: Push,
        submit_with_outcome: Callable[[Change], asyncio.Future[ChangeOutcome]],
        model: Model,
        is_own: Callable[[str], bool],
    ) -> None:
        """Make the source. `is_own`: an address is a port of this program."""
        self._push = push
        networks = tuple(ipaddress.ip_network(network) for network in push.networks)
        takes_listed = bool(push.token or push.token_file)
        self.intake = PushIntake(submit_with_outcome, model, networks, takes_listed=takes_listed, is_own=is_own)
        self._server: PushServer | None = None
        self.address = ""  # as bound

    async def start(self) -> None:
        server = PushServer(self.intake, read_token(self._push))
        self.address = await server.start(self._push.listen)
        self._server = server
        log.info("pods may report themselves on %s", self.address)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
