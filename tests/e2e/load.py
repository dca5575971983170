"""Clients that ask again and again, each on one connection until that is cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tests.e2e.http_client import Answer, CutShortError, Visitor


class Load:
    """`clients` send `data`; `seen` is called with each answer, or how it was cut, and the seconds that it took."""

    def __init__(
        self, address: str, clients: int, data: bytes, seen: Callable[[Answer | CutShortError, float], None]
    ) -> None:
        self._address = address
        self._clients = clients
        self._data = data
        self._seen = seen
        self._stopped = False

    async def run(self, meanwhile: Callable[[], Any]) -> None:
        """Load, and in a thread `meanwhile`, whose end is the end of the load."""
        visits = [asyncio.create_task(self._visit()) for _ in range(self._clients)]
        try:
            await asyncio.to_thread(meanwhile)
        finally:
            self._stopped = True
            await asyncio.gather(*visits)

    async def _visit(self) -> None:
        visitor = None
        while not self._stopped:
            began_s = time.monotonic()
            try:
                if visitor is None:
                    visitor = await Visitor.connect(self._address)
                answer = await visitor.ask(self._data)
            except (CutShortError, ConnectionError) as error:
                cut = error if isinstance(error, CutShortError) else CutShortError(str(error))
                self._seen(cut, time.monotonic() - began_s)
                if visitor is not None:
                    await visitor.close()
                visitor = None
            else:
                self._seen(answer, time.monotonic() - began_s)
        if visitor is not None:
            await visitor.close()
