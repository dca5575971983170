"""One running watch, read as lines."""

from __future__ import annotations

import aiohttp

from activator.kubernetes.errors import KubeError, WatchCutError
from activator.kubernetes.watch_lines import LineSplitter


class WatchStream:
    """The data of a watch until the server, the client or the network ends it.

    The stream has no time limit: the reader keeps the time of the last event, and calls `abort` after too long a
    silence, which ends the waiting read. No task needs to be cancelled.
    """

    def __init__(self, response: aiohttp.ClientResponse, line_bytes_max: int) -> None:
        self._response = response
        self._splitter = LineSplitter(line_bytes_max)
        self._aborted: KubeError | None = None

    async def lines(self) -> list[bytes]:
        """Return the next lines, at least one; empty at the end.

        Raise LineTooLongError, WatchCutError, or the error that `abort` was given.
        """
        while True:
            try:
                data = await self._response.content.readany()
            except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: closed before the read
                if self._aborted is not None:
                    raise self._aborted from error
                raise WatchCutError(str(error) or type(error).__name__) from error
            self.raise_if_aborted()
            if not data:
                if self._splitter.pending_bytes:
                    raise WatchCutError("the watch ended in the middle of an event")
                return []
            lines = self._splitter.feed(data)
            if lines:
                return lines

    def abort(self, reason: KubeError) -> None:
        """End the watch now: the waiting or the next read raises `reason`."""
        if self._aborted is None:
            self._aborted = reason
        self._response.close()

    def raise_if_aborted(self) -> None:
        """Raise the error of `abort`; for a reader that is not in `lines`."""
        if self._aborted is not None:
            raise self._aborted

    def close(self) -> None:
        self._response.close()
