"""The state of one request in its filter chain: the filter to call next, and the wrappers and watchers of filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from activator.codec.message import ResponseHead
from activator.data_plane.body_watcher import BodyWatcher
from activator.data_plane.exchange import HOLD_MAX_S
from activator.data_plane.filters.filter import Failure, FilterChain
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.phases import HELD
from activator.data_plane.proxy.guarded_wrapper import GuardedWrapper
from activator.data_plane.streams import ClientStream, ClientWrapper

if TYPE_CHECKING:  # import cycle
    from activator.data_plane.proxy.exchange import ProxiedExchange

# The hook that is being called.
_NO_HOOK: Final = 0
_ON_REQUEST: Final = 1
_EDITING: Final = 2  # a hook that may only edit

_AFTER_LAST: Final = 1 << 30  # a position after the last filter


@final
class FilterRun:
    """The run of one request through its filters.

    `chain`: the filters that apply now: at first those of all requests, after routing those of the revision.
    """

    def __init__(self, exchange: ProxiedExchange, chain: FilterChain | None) -> None:
        self.chain = chain
        self.is_held: bool = False  # by the filter before `_position`
        self.is_broken: bool = False  # a wrapper or watcher has raised an error: the request ends in another turn
        self._exchange = exchange
        self._hook: i64 = _NO_HOOK
        self._position: i64 = 0  # index of the current or next filter
        self._holds: int = 0  # number of holds so far
        self._wrapper: ClientWrapper | None = None  # the outermost wrapper around the client
        self._watchers: list[BodyWatcher] | None = None

    # --- hooks, in the order of a request's life ---

    def arrive(self) -> None:
        """Call `on_arrival` of each filter, until one has ended the request."""
        exchange = self._exchange
        chain = self.chain
        if chain is not None:
            for hooked in chain.on_arrival:
                hooked.on_arrival(exchange)
                if exchange.over:
                    return

    def route(self, chain: FilterChain | None) -> None:
        """Call `on_routed` of the filters of a revision, which apply to the request from now on."""
        self.chain = chain
        self._position = 0
        exchange = self._exchange
        capture, exchange.capture = exchange.capture, None
        if capture is not None:  # the capture belongs to the revision that the request has left
            capture.release()
        if chain is None:
            return
        self._hook = _EDITING
        try:
            for hooked in chain.on_routed:
                hooked.on_routed(self._exchange)
        finally:
            self._hook = _NO_HOOK

    def call_on_request(self) -> bool:
        """Call `on_request` of the remaining filters.

        Return False if one of them has ended the request, holds it, or waits for its body. If a filter calls `hold` and
        `proceed` at once, the next filter is still called in another turn.
        """
        exchange = self._exchange
        chain = self.chain
        if chain is not None:
            filters, position = chain.on_request, self._position
            fallbacks, holds = exchange.fallbacks, self._holds
            while position < len(filters):
                self._position = position
                self._hook = _ON_REQUEST
                try:
                    filters[position].on_request(exchange)
                finally:
                    self._hook = _NO_HOOK
                if exchange.over or exchange.is_gathering or self._holds != holds or exchange.fallbacks != fallbacks:
                    return False
                position += 1
        self._position = _AFTER_LAST
        return True

    def edit_attempt(self, edits: HeadEdits) -> None:
        """Call `on_attempt` of each filter."""
        chain = self.chain
        if chain is None:
            return
        self._hook = _EDITING
        try:
            for hooked in chain.on_attempt:
                hooked.on_attempt(self._exchange, edits)
        finally:
            self._hook = _NO_HOOK

    def edits_attempts(self) -> bool:
        """Return True if a filter has an `on_attempt`."""
        return self.chain is not None and len(self.chain.on_attempt) != 0

    def replaces_responses(self) -> bool:
        """Return True if a filter has an `on_pod_status`."""
        return self.chain is not None and len(self.chain.on_pod_status) != 0

    def repeats_any_method(self) -> bool:
        """Return True if a filter may send a request of any method to another revision after its pod's response."""
        return self.chain is not None and self.chain.repeats_any_method

    def replace_response(self, head: ResponseHead) -> bool:
        """Call `on_pod_status`; return True if a filter has responded or another revision has taken the request."""
        exchange = self._exchange
        chain = self.chain
        if chain is None:
            return False
        fallbacks = exchange.fallbacks
        for hooked in chain.on_pod_status:
            hooked.on_pod_status(exchange, head)
            if exchange.over or exchange.fallbacks != fallbacks:
                return True
        return False

    def edit_response(self, head: ResponseHead) -> None:
        """Call `on_response` of each filter."""
        chain = self.chain
        if chain is None or not chain.on_response:
            return
        self._hook = _EDITING
        try:
            for hooked in chain.on_response:
                hooked.on_response(self._exchange, head)
        finally:
            self._hook = _NO_HOOK

    def replace_refusal(self, failure: Failure) -> bool:
        """Call `on_failure`; return True if a filter has responded or another revision has taken the request."""
        exchange = self._exchange
        chain = self.chain
        if chain is None:
            return False
        fallbacks = exchange.fallbacks
        for hooked in chain.on_failure:
            try:
                hooked.on_failure(exchange, failure)
                failure.check_or_reset()
            except Exception as error:  # the refusal stands
                exchange.context.on_error(error)
            if exchange.over or exchange.fallbacks != fallbacks:
                return True
        return False

    def end(self) -> None:
        """Call `on_end` of each filter."""
        exchange = self._exchange
        chain = self.chain
        if chain is None:
            return
        for hooked in chain.on_end:
            try:
                hooked.on_end(exchange)
            except Exception as error:  # the others are notified all the same
                exchange.context.on_error(error)

    # --- calls of filters ---

    def hold(self, timeout_s: float) -> int:
        """Hold the request; see `Exchange.hold`."""
        if not 0.0 <= timeout_s <= HOLD_MAX_S:
            raise ValueError(f"a request is held for 0 to {HOLD_MAX_S:g} s, not {timeout_s}")
        self._require_on_request("hold")
        exchange = self._exchange
        if not self.is_held and not exchange.over and (exchange.phase == HELD or exchange.enter(HELD)):
            self.is_held = True
            self._holds += 1
            self._position += 1
            until_s = exchange.time() + timeout_s
            if exchange.grpc_timeout_s > 0.0:
                until_s = min(until_s, exchange.arrived_s + exchange.grpc_timeout_s)
            exchange.context.wheel.arm(exchange, until_s)
        return self._holds

    def proceed(self, hold_number: int) -> None:
        """Release the request if `hold_number` is that of its current hold."""
        if self.is_held and hold_number == self._holds:
            self.is_held = False
            self._exchange.context.wheel.cancel(self._exchange)
            self._exchange.continue_soon()

    def cancel_hold(self) -> None:
        """Cancel a hold, so that `proceed` no longer has an effect."""
        if self.is_held:
            self.is_held = False
            self._holds += 1

    def require_gather_allowed(self) -> None:
        """Raise RuntimeError if a filter must not call `gather` now."""
        self._require_on_request("gather")
        if self.is_held:
            raise RuntimeError("`gather` cannot be called by a filter that holds the request")

    def require_end_allowed(self, call: str) -> None:
        """Raise RuntimeError if the current hook may only edit."""
        if self._hook == _EDITING:
            raise RuntimeError(f"`{call}` cannot be called in `on_routed`, `on_attempt` and `on_response`")

    def guard(self, wrapper: ClientWrapper) -> ClientStream:
        """Return the client behind `wrapper`; an error of the wrapper ends the request."""
        guarded = GuardedWrapper(wrapper, self._break)
        self._wrapper = guarded
        return guarded

    def watch(self, watcher: BodyWatcher) -> None:
        """Call `watcher` with the bytes of both directions from now on."""
        if self._watchers is None:
            self._watchers = []
        self._watchers.append(watcher)

    def notify_watchers(self, data: bytes, is_of_pod: bool) -> None:
        """Call the watchers with bytes from the pod, or from the client of a tunnel."""
        watchers = self._watchers
        if watchers is None:
            return
        try:
            for watcher in watchers:
                if is_of_pod:
                    watcher.pod_sent(data)
                else:
                    watcher.client_sent(data)
        except Exception as error:
            self._stop_watchers()
            self._break(error)

    def continued(self, exchange: ProxiedExchange) -> FilterRun:
        """Return the run of `exchange`, which continues this request after the current filter."""
        run = FilterRun(exchange, self.chain)
        run._position = self._position + 1
        return run

    def stop(self) -> None:
        """Stop the wrapper and the watchers at the end of the request."""
        wrapper, self._wrapper = self._wrapper, None
        if wrapper is not None:
            wrapper.stop()
        self._stop_watchers()

    # --- within ---

    def _stop_watchers(self) -> None:
        watchers, self._watchers = self._watchers, None
        if watchers is None:
            return
        for watcher in watchers:
            try:
                watcher.stop()
            except Exception as error:  # the others are stopped all the same
                self._exchange.context.on_error(error)

    def _break(self, error: Exception) -> None:
        """Schedule the end of the request, because a wrapper or watcher of a filter has raised `error`."""
        self._exchange.context.on_error(error)
        self.is_broken = True
        self._exchange.continue_soon()

    def _require_on_request(self, call: str) -> None:
        """Raise RuntimeError unless `on_request` is being called."""
        if self._hook != _ON_REQUEST:
            raise RuntimeError(f"`{call}` can be called in `on_request` only")
