"""One running watch: its events as lines, a few at a time."""

from __future__ import annotations

import aiohttp

from activator.kubernetes.errors import KubeError, WatchCutError
from activator.kubernetes.watch_lines import LineCutter


class WatchStream:
    """What the server sends until it, we or the network end it.

    There is no time limit in here: the reader keeps the time of the last event and calls `abort` when that was too
    long ago, which ends the read that is waiting. Task cancellation is not needed for it.
    """

    def __init__(self, response: aiohttp.ClientResponse, line_bytes_max: int) -> None:
        self._response = response
        self._cutter = LineCutter(line_bytes_max)
        self._aborted: KubeError | None = None

    async def lines(self) -> list[bytes]:
        """The next lines, at least one; empty at the end.

        Raises LineTooLongError, WatchCutError, or what `abort` was given.
        """
        while True:
            try:
                data = await self._response.content.readany()
            except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: it was closed before the read
                if self._aborted is not None:
                    raise self._aborted from error
                raise WatchCutError(str(error) or type(error).__name__) from error
            self.raise_if_aborted()
            if not data:
                if self._cutter.pending_bytes:
                    raise WatchCutError("the watch ended in the middle of an event")
                return []
            lines = self._cutter.feed(data)
            if lines:
                return lines

    def abort(self, reason: KubeError) -> None:
        """End it now: the read that waits, or the next one, raises `reason`."""
        if self._aborted is None:
            self._aborted = reason
        self._response.close()

    def raise_if_aborted(self) -> None:
        """For a reader that is not in `lines`."""
        if self._aborted is not None:
            raise self._aborted

    def close(self) -> None:
        self._response.close()
