"""The edits of header fields by the key `headers`, for requests and responses."""

from __future__ import annotations

from typing import final

from activator.codec.message import ResponseHead
from activator.config.specs import FieldRulesSpec, HeaderRulesSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Filter
from activator.data_plane.headers.edits import FieldEdit, HeadEdits, addition, edited_fields, removal, replacement


@final
class HeaderRules(Filter):
    """The header rules of one revision. Responses of the activator itself are not edited."""

    def __init__(self, spec: HeaderRulesSpec) -> None:
        """Make the filter. Raises ValueError for a value of several lines."""
        self._host: bytes = b""  # the host for the pod; empty: the client's
        for name, value in spec.request.set:
            if name.lower() == "host":
                self._host = value.encode()
        self._request: list[FieldEdit] = _edits_of(spec.request)
        self._response: list[FieldEdit] = _edits_of(spec.response)

    def on_attempt(self, request: Exchange, edits: HeadEdits) -> None:
        for edit in self._request:
            edits.add(edit)
        if self._host:
            edits.set_host(self._host)

    def on_response(self, request: Exchange, head: ResponseHead) -> None:
        if self._response:
            head.headers = edited_fields(head.headers, self._response)


def _edits_of(rules: FieldRulesSpec) -> list[FieldEdit]:
    """Return the edits of these rules, without those of Host."""
    edits: list[FieldEdit] = []
    if rules.remove:
        edits.append(removal(frozenset([name.lower().encode() for name in rules.remove])))
    for name, value in rules.set:
        if name.lower() != "host":
            edits.append(replacement(name.encode(), value.encode()))
    for name, value in rules.append:
        edits.append(addition(name.encode(), value.encode()))
    return edits
