"""One request of the access log, as data."""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct, omit_defaults=True, gc=False):
    """One request; the fields are in the order of a JSON line, which omits those that do not apply."""

    time: str
    client: str
    method: str
    host: str
    target: str
    protocol: str
    status: int
    duration_s: float
    user: str = ""
    grpc_status: str = ""
    reason: str = ""
    namespace: str = ""
    revision: str = ""
    pod: str = ""
    address: str = ""
    pod_protocol: str = ""
    first_revision: str = ""
    retries: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    first_byte_s: float | None = None
    wait_s: float | None = None
    connect_s: float | None = None
    cold: bool = False
    start_s: float | None = None
    ready_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    first_token_s: float | None = None
    tokens_per_s: float | None = None
    request_id: str = ""
    trace_id: str = ""
    user_agent: str = ""
    referer: str = ""
