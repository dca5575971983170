"""Every message can cross a socket."""

from __future__ import annotations

import types
import typing
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from activator import messages
from activator.config.specs import RevisionSpec, RoutingSpec
from activator.messages import FromData, Message, ToData, decode, encode
from activator.runtime.distribution import Distribution, ExemplarReading

EVERY = typing.get_args(ToData) + typing.get_args(FromData)


def of(kind: type) -> st.SearchStrategy[Any]:
    """Messages of one kind, or parts of them, from the annotations of their fields."""
    fields = typing.get_type_hints(kind)
    return st.builds(kind, **{name: _values(annotation) for name, annotation in fields.items()})


def _values(annotation: Any) -> st.SearchStrategy[Any]:
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if annotation is RevisionSpec:
        return st.builds(RevisionSpec, key=st.text(), routing=of(RoutingSpec))
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        return st.integers(-(2**62), 2**62)
    if annotation is float:
        return st.floats(allow_nan=False)
    if origin is tuple and arguments[-1] is ...:
        return st.lists(_values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(_values, arguments))
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=3)
    if origin is types.UnionType:
        return st.one_of(*map(_values, arguments))
    assert isinstance(annotation, type)
    if issubclass(annotation, msgspec.Struct | Distribution | ExemplarReading):
        return of(annotation)
    return st.from_type(annotation)


@pytest.mark.parametrize("kind", sorted({kind for kind in EVERY if isinstance(kind, type)}, key=str))
def test_a_message_survives_the_way(kind: type) -> None:
    @given(of(kind))
    def survives(message: Message) -> None:
        assert decode(encode(message)) == message  # type: ignore[arg-type]

    survives()


def test_every_message_is_in_one_of_the_unions() -> None:
    kinds = {
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
    }
    control_only = {messages.StartProbe, messages.StopProbe, messages.SetProbes}
    assert kinds - control_only == {kind for kind in EVERY if isinstance(kind, type) and issubclass(kind, Message)}
