"""Every message can cross a socket."""

from __future__ import annotations

import typing

import hypothesis.strategies as st
import pytest
from hypothesis import given

from activator import messages
from activator.config.specs import RevisionSpec
from activator.messages import FromData, Message, ToData, decode, encode

EVERY = typing.get_args(ToData) + typing.get_args(FromData)


def of(kind: type) -> st.SearchStrategy[Message]:
    """Messages of one kind, from the annotations of their fields."""
    fields = typing.get_type_hints(kind)
    return st.builds(kind, **{name: _values(annotation) for name, annotation in fields.items()})


def _values(annotation: object) -> st.SearchStrategy[object]:
    if annotation is RevisionSpec:
        return st.builds(RevisionSpec, key=st.text(), hosts=st.lists(st.text(), max_size=3).map(tuple))
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        return st.integers(-(2**62), 2**62)
    if annotation is float:
        return st.floats(allow_nan=False)
    if typing.get_origin(annotation) is tuple:
        return st.lists(of(typing.get_args(annotation)[0]), max_size=3).map(tuple)
    assert isinstance(annotation, type)
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
    control_only = {messages.StartProbe, messages.StopProbe}
    assert kinds - control_only == {kind for kind in EVERY if isinstance(kind, type) and issubclass(kind, Message)}
