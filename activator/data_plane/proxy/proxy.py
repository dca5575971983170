"""Where requests begin: each one that a client connection has read is opened here as an exchange."""

from __future__ import annotations

from collections.abc import Callable

from activator.codec.message import RequestHead
from activator.data_plane.answers.store import ANSWERS_PATH, AnswerStore
from activator.data_plane.exchange import ClientStream, Exchange
from activator.data_plane.headers.trace_context import Sampler
from activator.data_plane.proxy.context import ProxyContext
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.proxy.filter_run import FilterRun


class Proxy(ProxyContext):
    """The proxy of one worker."""

    sampler: Sampler | None = None  # decides which requests are traced, if any are
    answers: AnswerStore | None = None  # for clients that do not wait
    open_status: Callable[[RequestHead, ClientStream], Exchange] | None = None  # for who asks for such an answer

    def open_request(self, head: RequestHead, client: ClientStream) -> Exchange:
        """Return the exchange of a request for a revision or for a stored answer; call its `begin` at its turn."""
        answers, opens = self.answers, self.open_status
        if answers is not None and answers.is_open and head.target.startswith(ANSWERS_PATH) and opens is not None:
            return opens(head, client)
        return self.open(head, client)

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
