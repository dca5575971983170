"""Filters that break their contract, each in one way."""

from __future__ import annotations

from collections.abc import Mapping

from activator.codec.message import ResponseHead
from activator.filters import Exchange, Filter, HeadEdits


class TrustsText(Filter):
    """Takes each value for ASCII."""

    def __init__(self, options: Mapping[str, str]) -> None:
        pass

    def on_request(self, request: Exchange) -> None:
        for _, value in request.head.headers.pairs():
            value.decode("ascii")


class LooksTooEarly(Filter):
    """Takes the part of the body that is here for all of it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        pass

    def on_request(self, request: Exchange) -> None:
        if request.body() != b"whole":
            request.answer(403)


class Everything(Filter):
    """In order: edits and observes in each hook, and notes in a field of the response what it has seen."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._name = options["name"].encode()
        self.over = 0

    def on_request(self, request: Exchange) -> None:
        request.edit().append(b"X-Filter", self._name)

    def on_attempt(self, request: Exchange, edits: HeadEdits) -> None:
        edits.set(b"X-Attempt", b"%d" % request.attempts)

    def on_response(self, request: Exchange, head: ResponseHead) -> None:
        head.headers = head.headers.with_line(b"X-Over", b"%d" % self.over)

    def on_end(self, request: Exchange) -> None:
        self.over += 1


class Raises(Filter):
    """Raises in the hook that is named by its option, for requests with the field X-Raise."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._hook = options["hook"]

    def _meet(self, hook: str, request: Exchange) -> None:
        if hook == self._hook and request.head.headers.get(b"x-raise") is not None:
            raise RuntimeError(hook)

    def on_request(self, request: Exchange) -> None:
        self._meet("on_request", request)

    def on_attempt(self, request: Exchange, edits: HeadEdits) -> None:
        self._meet("on_attempt", request)

    def on_response(self, request: Exchange, head: ResponseHead) -> None:
        self._meet("on_response", request)

    def on_end(self, request: Exchange) -> None:
        self._meet("on_end", request)


class WantsNumber(Filter):
    """Raises an error that quotes its option."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._number = int(options["number"])
