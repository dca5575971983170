"""The counters of the data plane."""

from __future__ import annotations

from typing import Final

import msgspec

from activator.config.specs import KnativeSpec
from activator.runtime.distribution import Distribution

OVERLOAD_STEPS: Final = ("close_kept", "no_queueing", "no_connections")


class Http2Statistics(msgspec.Struct, frozen=True):
    """HTTP/2 connections and streams of clients; totals count since the start of the data plane."""

    connections: int = 0  # open
    streams: int = 0  # open on them
    connections_total: int = 0
    requests_total: int = 0
    reset_total: int = 0  # streams that clients have reset
    failed_total: int = 0  # streams that were reset because the client sent malformed data on them
    refused_total: int = 0  # streams beyond the limit of a connection
    errors: dict[str, int] = {}  # connections that ended with an error of the client, by code


class DataPlaneStatistics(msgspec.Struct, frozen=True):
    """The metrics of one data plane as a whole; totals count since its start."""

    client_connections: int = 0  # open
    handshakes: int = 0  # open connections in their TLS handshake
    handshakes_closed_total: int = 0
    accepted_total: int = 0
    shed_total: int = 0
    exchanges: int = 0  # requests in progress
    held_bytes: int = 0
    held_requests: int = 0
    file_bytes: int = 0  # bytes of bodies in temporary files
    answers: int = 0  # stored responses of asynchronous requests, including reserved ones
    answer_bytes: int = 0
    answer_totals: dict[str, int] = {}  # asynchronous requests, by outcome
    refused_requests: dict[str, int] = {}  # requests rejected before a revision was found, by reason
    https_redirects_total: int = 0
    transitions: dict[tuple[int, int], int] = {}  # changes of pods' states, by the old and the new one (lb.tracker)
    errors_total: int = 0
    users: dict[str, tuple[int, int, int]] = {}  # admitted requests, tokens of prompts and of completions, by name
    certificate_expiries: dict[str, float] = {}  # Unix seconds, by the address of the listener
    user_use: dict[str, tuple[float, float]] = {}  # used requests and tokens of quotas that it owns, by name
    user_rejections: dict[str, tuple[int, ...]] = {}  # by name; for each of LIMITS (data_plane/quotas/ledger.py)
    overload: tuple[int, int, int] = (0, 0, 0)  # workers that have taken each step
    http2: Http2Statistics = Http2Statistics()


class TokenStatistics(msgspec.Struct, frozen=True):
    """The tokens of a revision, as its pods reported them; times in seconds. `cached` is a part of `prompt`."""

    prompt: int
    completion: int
    cached: int
    first_token: Distribution
    output_token: Distribution
    by_user: dict[str, tuple[int, int]] = {}  # `prompt` and `completion`, by the name of the user


class TrafficStatistics(msgspec.Struct, frozen=True):
    """The traffic of a revision since its first request; times in seconds."""

    duration: Distribution
    first_byte: Distribution
    wait: Distribution
    cold: dict[str, Distribution]  # by phase of a cold start
    request_bytes: int
    response_bytes: int
    tunnels: int  # open
    tunnels_total: int
    tokens: TokenStatistics | None = None  # None: they are not counted


class TableStatistics(msgspec.Struct, frozen=True):
    """The table of a revision and the connections to its pods."""

    in_flight: int
    capacity: int  # UNLIMITED of lb.tracker or more: no limit
    pods: tuple[int, ...]  # by state, as lb.tracker numbers them
    connections: tuple[int, int, int, int]  # open (idle ones among them), idle, being dialled; requests waiting for one
    length: int
    slots: int
    holes: int
    trailing: int
    fragmentation: float
    trims: int
    growths: int
    full_total: int
    late_releases: int
    bad_picks: int


class RevisionStatistics(msgspec.Struct, frozen=True):
    """The metrics of one revision in one data plane; totals count since this incarnation was created.

    `incarnation`: unique among all revisions of this data plane, also among those of the same key. `dropped`: the
    revision was removed, but some of its requests have not ended.
    """

    key: str
    incarnation: int
    dropped: bool
    knative: KnativeSpec
    policy: str
    requests_total: int
    responses: dict[int, int]  # the pods' responses, by status
    grpc_statuses: dict[int, int]  # ended gRPC calls, by grpc-status
    failures: dict[str, int]  # by reason
    retries: dict[str, int]  # by reason
    fallbacks: dict[str, int]  # requests taken by a fallback revision, by its key
    client_gone_total: int
    queued: int
    queue_limit: int
    gathering: int
    delivering: int
    held_bytes: int
    granted_total: int
    exempted_total: int
    errors_total: int
    cold_starts_total: int
    cannot_start: bool
    traffic: TrafficStatistics | None  # None before the first request
    table: TableStatistics
    by_pod: dict[str, tuple[int, int, float]] = {}  # by address: responses, errors, seconds to the first byte
    # Set where metrics are read: the state of each pod in `by_pod`, and when it began (s since 1970), by address.
    pod_states: dict[str, tuple[str, float]] = {}
