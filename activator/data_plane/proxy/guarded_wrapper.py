"""The outermost wrapper of a client, which confines errors of the wrappers inside it to their own request."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from activator.codec.message import Headers, ResponseHead
from activator.data_plane.streams import ClientStream, ClientWrapper


@final
class GuardedWrapper(ClientWrapper):
    """A wrapper that reports the first error of `wrapper` to `on_error` and then aborts the client."""

    def __init__(self, wrapper: ClientWrapper, on_error: Callable[[Exception], None]) -> None:
        super().__init__(wrapper)
        self._on_error = on_error
        self._is_broken: bool = False

    def stop(self) -> None:
        try:
            super().stop()
        except Exception as error:  # the end of the response may still pass through
            self._on_error(error)

    def send_interim(self, head: ResponseHead) -> None:
        if not self._is_broken:
            try:
                self.client.send_interim(head)
            except Exception as error:
                self._break(error)

    def send_head(self, head: ResponseHead) -> None:
        if not self._is_broken:
            try:
                self.client.send_head(head)
            except Exception as error:
                self._break(error)

    def send_body(self, data: bytes) -> None:
        if not self._is_broken:
            try:
                self.client.send_body(data)
            except Exception as error:
                self._break(error)

    def send_end(self, trailers: Headers) -> None:
        if not self._is_broken:
            try:
                self.client.send_end(trailers)
            except Exception as error:
                self._break(error)

    def flush(self) -> None:
        if not self._is_broken:
            try:
                self.client.flush()
            except Exception as error:
                self._break(error)

    def abort(self) -> None:
        if not self._is_broken:
            try:
                self.client.abort()
            except Exception as error:
                self._break(error)

    def _break(self, error: Exception) -> None:
        if self._is_broken:
            return
        self._is_broken = True
        self._on_error(error)
        innermost: ClientStream = self.client
        while isinstance(innermost, ClientWrapper):
            innermost = innermost.client
        innermost.abort()
