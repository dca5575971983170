"""The channel between the two planes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from activator.messages.commands import Command
from activator.messages.effects import Effect
from activator.messages.reports import FromData

ToData = Effect | Command

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(ToData | FromData)


def encode(message: ToData | FromData) -> bytes:
    return _ENCODER.encode(message)


def decode(data: bytes) -> ToData | FromData:
    """Decode a message. Raises msgspec.DecodeError if the data is not one."""
    message: ToData | FromData = _DECODER.decode(data)
    return message


class DirectChannel:
    """Joins the planes within one process by calls, in order.

    `encoded`: every message is nevertheless encoded and decoded, which proves that it could cross a socket.

    `flush()` lets the data plane send what its requests have written, before the control plane uses the loop.
    """

    def __init__(self, encoded: bool) -> None:
        self._encoded = encoded
        self._apply: Callable[[list[Effect]], None] = _nowhere
        self._execute: Callable[[Command], None] = _nowhere
        self._receive: Callable[[FromData], None] = _nowhere
        self.flush: Callable[[], None] = lambda: None

    def connect_data(
        self,
        apply: Callable[[list[Effect]], None],
        execute: Callable[[Command], None],
        flush: Callable[[], None],
    ) -> None:
        """Connect the data plane."""
        self._apply = apply
        self._execute = execute
        self.flush = flush

    def connect_control(self, receive: Callable[[FromData], None]) -> None:
        """Connect the control plane."""
        self._receive = receive

    def send_effects(self, effects: list[Effect]) -> None:
        if self._encoded:
            effects = [decode(encode(effect)) for effect in effects]  # type: ignore[misc]
        self._apply(effects)

    def send_command(self, command: Command) -> None:
        self._execute(decode(encode(command)) if self._encoded else command)  # type: ignore[arg-type]

    def send_to_control(self, message: FromData) -> None:
        self._receive(decode(encode(message)) if self._encoded else message)  # type: ignore[arg-type]


def _nowhere(message: object) -> None:
    raise AssertionError(f"the channel is not connected: {message!r}")
