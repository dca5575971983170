"""Clients that ask again and again, each on one connection until that is cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tests.e2e.http_client import Answer, CutShortError, Visitor, request
from tests.e2e.running import eventually


class Load:
    """`clients` send `data`, to the addresses in turn.

    `seen` is called with each answer, or how it was cut, and the seconds that it took.
    """

    def __init__(
        self, addresses: list[str], clients: int, data: bytes, seen: Callable[[Answer | CutShortError, float], None]
    ) -> None:
        self._addresses = addresses
        self._clients = clients
        self._data = data
        self._seen = seen
        self._stopped = False

    async def run(self, meanwhile: Callable[[], Any]) -> None:
        """Load, and in a thread `meanwhile`, whose end is the end of the load."""
        addresses = [self._addresses[client % len(self._addresses)] for client in range(self._clients)]
        visits = [asyncio.create_task(self._visit(address)) for address in addresses]
        try:
            await asyncio.to_thread(meanwhile)
        finally:
            self._stopped = True
            await asyncio.gather(*visits)

    async def _visit(self, address: str) -> None:
        visitor = None
        while not self._stopped:
            began_s = time.monotonic()
            try:
                if visitor is None:
                    visitor = await Visitor.connect(address)
                answer = await visitor.ask(self._data)
            except (CutShortError, ConnectionError) as error:
                cut = error if isinstance(error, CutShortError) else CutShortError(str(error))
                self._seen(cut, time.monotonic() - began_s)
                if visitor is not None:
                    await visitor.close()
                else:
                    await asyncio.sleep(0.02)  # nobody is there
                visitor = None
            else:
                self._seen(answer, time.monotonic() - began_s)
        if visitor is not None:
            await visitor.close()


class Tally:
    """What became of the requests of a load."""

    def __init__(self, addresses: list[str], clients: int) -> None:
        self.good = 0
        self.cut = 0
        self.other: list[object] = []
        self.longest_s = 0.0
        self._load = Load(addresses, clients, request(), self._seen)

    def goes_on(self, requests: int) -> None:
        """Wait for so many more."""
        until = self.good + requests
        eventually(lambda: self.good >= until, f"{requests} more requests")

    def run(self, meanwhile: Callable[[], Any]) -> None:
        """Load, and meanwhile this; then it ends."""
        asyncio.run(self._load.run(meanwhile))

    def _seen(self, answer: Answer | CutShortError, took_s: float) -> None:
        if isinstance(answer, CutShortError):
            self.cut += 1
        elif answer.status == 200:
            self.good += 1
            self.longest_s = max(self.longest_s, took_s)
        else:
            self.other.append(answer)


def limited(addresses: list[str], limit: int, name: str = "app", **more: Any) -> dict[str, Any]:
    return {"name": name, "hosts": ["*"], "pods": addresses, "container_concurrency": limit, **more}
