"""The quotas of users: a request beyond one of its user's limits is refused before it asks for a slot.

Rules
  1. The tokens of a request are reserved when it arrives: those of its prompt by the size of its body, those of its
     response as a short body bounds them, or a configured number. At its end the reported tokens count. Without a
     report, or if the response was cut, an event stream counts as its prompt and one token for each event, another
     response with a status below 400 as reserved; but never less than the report.
  2. A request that falls back, or that is answered later, is one request.
  3. Responses have the fields `X-RateLimit-Limit-Requests`, `-Remaining-Requests` and `-Reset-Requests`, and the same
     with `-Tokens`, as in OpenAI's API; they are as of the admission of the request.
"""

from __future__ import annotations

import math
from typing import Final, final

from activator.codec.message import Fields, Headers, ResponseHead
from activator.codec.token_bounds import response_bound
from activator.config.specs import QuotaSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Failure, Filter
from activator.data_plane.filters.openai_errors import format_refusal, is_api
from activator.data_plane.filters.record import count_tokens
from activator.data_plane.headers.grpc import is_grpc
from activator.data_plane.headers.prefer import IF_AVAILABLE, prefers
from activator.data_plane.quotas.ledger import ADMITTED, CONCURRENCY, REQUESTS, TOKENS, UNKNOWN
from activator.data_plane.quotas.messages import Decision
from activator.data_plane.quotas.quota import AdmissionRequest
from activator.data_plane.quotas.quotas import ASK_MAX_S, Quotas
from activator.runtime.clock import Now
from activator.runtime.reasons import Reason
from activator.runtime.units import KIB

READ_BYTES: Final = 64 * KIB  # the longest body that is searched for `max_tokens`
PROMPT_BYTES_PER_TOKEN: Final = 4
HOLD_S: Final = 2.0 * ASK_MAX_S  # a decision comes earlier

_FIELDS: Final = frozenset(
    b"x-ratelimit-%b-%b" % (figure, unit)
    for figure in (b"limit", b"remaining", b"reset")
    for unit in (b"requests", b"tokens")
)


@final
class QuotaLimits(Filter):
    """The filter of all requests if a user has limits. It follows `Keys`, which sets the user."""

    def __init__(self, quotas: Quotas, now: Now) -> None:
        self._quotas = quotas
        self._now = now

    # --- Filter ---

    def on_request(self, request: Exchange) -> None:
        admission = _admission_of(request)
        if admission is not None:
            if admission.decision is not None and admission.decision.limit != ADMITTED:
                _refuse(request, admission, admission.decision)  # another filter has sent it to another revision
            return
        access = request.access
        user = None if access is None else access.user
        quota = None if user is None else self._quotas.find(user.name)
        if quota is None:
            return
        prompt = response = 0
        if quota.spec.tokens and request.head.method == b"POST":
            # A request that will be rejected is not gathered, because that would start a pod.
            if _may_gather(request) and not self._quotas.is_exhausted(quota) and not request.gather(READ_BYTES):
                return  # called again with the body
            prompt, response = _tokens_to_reserve(request, quota.spec)
        if request.over:
            return
        admission = request.admission = self._quotas.ask(quota, prompt + response)
        admission.prompt_tokens = prompt
        if admission.decision is None:
            hold_number = request.hold(HOLD_S)
            held = admission
            admission.decided = lambda: _proceed_or_refuse(request, held, hold_number)
        elif admission.decision.limit != ADMITTED:
            _refuse(request, admission, admission.decision)

    def on_response(self, request: Exchange, head: ResponseHead) -> None:
        admission = _admission_of(request)
        if admission is None or admission.decision is None:
            return
        if admission.quota.spec.tokens:
            count_tokens(request, head, self._now)
        head.headers = _with_figures(head.headers, admission.quota.spec, admission.decision)

    def on_failure(self, request: Exchange, failure: Failure) -> None:
        admission = _admission_of(request)
        decision = None if admission is None else admission.decision
        if admission is None or decision is None or failure.reason not in {Reason.QUOTA_EXCEEDED, Reason.QUOTA_UNKNOWN}:
            return
        failure.retry_after_s = max(math.ceil(decision.wait_s), 1)
        if failure.reason is Reason.QUOTA_EXCEEDED:
            failure.fields = [*failure.fields, *_figures(admission.quota.spec, decision)]
            if prefers(request.head, IF_AVAILABLE):
                failure.status = 412
        if decision.limit == TOKENS and is_api(request.head):
            format_refusal(failure, "tokens")

    def on_end(self, request: Exchange) -> None:
        admission = _admission_of(request)
        if admission is not None:
            request.admission = None
            self._quotas.end(admission, _used_tokens(request, admission))


def _admission_of(request: Exchange) -> AdmissionRequest | None:
    admission = request.admission
    return admission if isinstance(admission, AdmissionRequest) else None


def _proceed_or_refuse(request: Exchange, admission: AdmissionRequest, hold_number: int) -> None:
    """Continue or refuse a request that was held."""
    decision = admission.decision
    if request.over or decision is None:
        return
    if decision.limit == ADMITTED:
        request.proceed(hold_number)
    else:
        _refuse(request, admission, decision)


def _may_gather(request: Exchange) -> bool:
    """Return True if the body is searched for `max_tokens`: it is short, and complete before the pod responds."""
    head = request.head
    if request.upgrade or is_grpc(head):
        return False
    if head.content_length < 0:
        media_type = (head.headers.get(b"content-type") or b"").partition(b";")[0].strip().lower()
        return head.has_body and media_type == b"application/json"
    return 0 < head.content_length <= READ_BYTES


def _used_tokens(request: Exchange, admission: AdmissionRequest) -> int:
    """Return the number of tokens that a request has used (rule 1)."""
    usage = request.usage
    tokens = None if usage is None else usage.tokens
    reported = 0 if tokens is None else tokens.prompt + tokens.completion
    if tokens is not None and request.reason is None:
        return reported
    prompt = int(request.request_bytes) // PROMPT_BYTES_PER_TOKEN
    if usage is not None and usage.events > 0:
        return max(reported, prompt + usage.events)
    if not 0 < request.status < 400:
        return reported
    unreserved = max(prompt - admission.prompt_tokens, 0)  # the size of the body was perhaps unknown before
    return max(reported, admission.tokens + unreserved)


def _tokens_to_reserve(request: Exchange, spec: QuotaSpec) -> tuple[int, int]:
    """Return the numbers of tokens to reserve for the prompt and for the response."""
    body = request.body() if _may_gather(request) and request.request_done else None
    bound = None if body is None else response_bound(body)
    size = request.head.content_length if body is None else len(body)
    return max(size, 0) // PROMPT_BYTES_PER_TOKEN, spec.response_tokens if bound is None else bound


def _refuse(request: Exchange, admission: AdmissionRequest, decision: Decision) -> None:
    if decision.limit == UNKNOWN:
        request.fail(Reason.QUOTA_UNKNOWN, "")
        return
    spec = admission.quota.spec
    if decision.limit == CONCURRENCY:
        detail = f"{spec.concurrency} at the same time"
    elif decision.limit == REQUESTS:
        detail = f"{spec.requests} requests per {_period(spec.requests_period_s)}"
    else:
        detail = f"{spec.tokens} tokens per {_period(spec.tokens_period_s)}, of which {decision.tokens_left} are left"
        detail += f"; this request reserves {admission.tokens} (its prompt and `max_tokens`)"
    request.fail(Reason.QUOTA_EXCEEDED, detail)


def _period(seconds: float) -> str:
    return {1.0: "second", 60.0: "minute", 3600.0: "hour", 86400.0: "day"}[seconds]


def _with_figures(fields: Fields, spec: QuotaSpec, decision: Decision) -> Fields:
    """Return the fields of a response with those of its user's limits, in place of those of the pod."""
    if any(fields.get(name) is not None for name in _FIELDS):
        fields = fields.without(_FIELDS)
    for name, value in _figures(spec, decision):
        fields = fields.with_line(name, value)
    return fields


def _figures(spec: QuotaSpec, decision: Decision) -> Headers:
    """Return the fields that describe the limits of a user and their rest."""
    fields: Headers = []
    if spec.requests:
        fields.append((b"X-RateLimit-Limit-Requests", b"%d" % spec.requests))
        fields.append((b"X-RateLimit-Remaining-Requests", b"%d" % decision.requests_left))
        fields.append((b"X-RateLimit-Reset-Requests", b"%.3fs" % decision.requests_full_s))
    if spec.tokens:
        fields.append((b"X-RateLimit-Limit-Tokens", b"%d" % spec.tokens))
        fields.append((b"X-RateLimit-Remaining-Tokens", b"%d" % decision.tokens_left))
        fields.append((b"X-RateLimit-Reset-Tokens", b"%.3fs" % decision.tokens_full_s))
    return fields
