"""The entry of the proxy: it opens an exchange for each request that a client connection has read."""

from __future__ import annotations

from collections.abc import Callable

from activator.codec.message import RequestHead
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import FilterChain
from activator.data_plane.headers.trace_context import Sampler
from activator.data_plane.proxy.context import ProxyContext
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.proxy.filter_run import FilterRun
from activator.data_plane.stored_responses.store import ANSWERS_PATH, ResponseStore
from activator.data_plane.streams import ClientStream


class Proxy(ProxyContext):
    """The proxy of one worker."""

    sampler: Sampler | None = None  # selects the requests that are traced, if any
    answers: ResponseStore | None = None  # stored responses of asynchronous requests (Prefer: respond-async)
    open_status: Callable[[RequestHead, ClientStream], Exchange] | None = None  # opens a status resource

    def open_request(self, head: RequestHead, client: ClientStream) -> Exchange:
        """Return the exchange of a request for a revision or for a stored response; the caller calls `begin`."""
        answers, open_status = self.answers, self.open_status
        if answers is not None and answers.is_open and head.target.startswith(ANSWERS_PATH) and open_status is not None:
            return open_status(head, client)
        return self.open(head, client)

    def open_redirected(self, head: RequestHead, client: ClientStream, redirect: FilterChain) -> Exchange:
        """Return the exchange of a request at a listener whose filters `redirect` answer every request."""
        exchange = self.open(head, client)
        exchange.filters = FilterRun(exchange, redirect)
        return exchange

    def open(self, head: RequestHead, client: ClientStream) -> ProxiedExchange:
        """Return the exchange of a request for a revision."""
        exchange = ProxiedExchange(self, head, client)
        if self.filters is not None:
            exchange.filters = FilterRun(exchange, self.filters)
        if self.sampler is not None:
            exchange.trace = self.sampler.begin(head)
            if exchange.trace is not None:
                exchange.trace.edit(exchange.edit())
        return exchange
