"""The field `Server-Timing` (W3C): how long the request waited for a start, for a slot and for the pod."""

from __future__ import annotations

from typing import final

from activator.codec.message import ResponseHead
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Filter
from activator.data_plane.throttle.starting import server_timing


@final
class ServerTiming(Filter):
    """The filter that adds the field to responses."""

    def on_response(self, request: Exchange, head: ResponseHead) -> None:
        value = server_timing(
            request.start, request.arrived_s, request.granted_s, request.connected_s, request.first_byte_s
        )
        head.headers = head.headers.with_line(b"Server-Timing", value)
