"""The public names for filters of your own (docs/filters.md).

class Teapot(Filter):
    def __init__(self, options: Mapping[str, str]) -> None: ...
    def on_request(self, request: Exchange) -> None:
        request.answer(418)
"""

from activator.codec.message import Fields, Headers, RequestHead, ResponseHead
from activator.data_plane.body_watcher import BodyWatcher
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Failure, Filter
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.streams import ClientStream, ClientWrapper
from activator.runtime.reasons import Reason

__all__ = [
    "BodyWatcher",
    "ClientStream",
    "ClientWrapper",
    "Exchange",
    "Failure",
    "Fields",
    "Filter",
    "HeadEdits",
    "Headers",
    "Reason",
    "RequestHead",
    "ResponseHead",
]
