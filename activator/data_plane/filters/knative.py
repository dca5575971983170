"""Knative's HTTP conventions, as a filter of all requests: probes, revision headers, queue-proxy's fields, error texts.

headers/knative.py implements them.
"""

from __future__ import annotations

from typing import final

from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Failure, Filter
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.headers.knative import KnativeDialect


@final
class KnativeFilter(Filter):
    """The filter that applies `dialect`."""

    def __init__(self, dialect: KnativeDialect) -> None:
        self.dialect = dialect

    def on_arrival(self, request: Exchange) -> None:
        fields = self.dialect.fields_of(request.head)
        answer = fields.answer
        if answer is not None:
            request.respond(answer.head(), answer.body, is_success=False, is_logged=False)
            return
        fields.edit(request.edit())
        request.route_to(fields.key())

    def on_attempt(self, request: Exchange, edits: HeadEdits) -> None:
        lease = request.lease
        if lease is not None:
            self.dialect.edit(edits, lease.address, request.revision_key())

    def on_failure(self, request: Exchange, failure: Failure) -> None:
        failure.text = self.dialect.refusal_text(failure.reason, failure.detail, request.head)
        failure.fields = [(b"X-Content-Type-Options", b"nosniff")]
