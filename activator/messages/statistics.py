"""What the data plane counts."""

from __future__ import annotations

import msgspec

from activator.runtime.distribution import Distribution


class Http2Statistics(msgspec.Struct, frozen=True):
    """What clients do in HTTP/2; totals count since the start of the data plane."""

    connections: int = 0  # open
    streams: int = 0  # open on them
    connections_total: int = 0
    requests_total: int = 0
    reset_total: int = 0  # streams that clients have reset
    failed_total: int = 0  # streams that were reset since what came on them was malformed
    refused_total: int = 0  # streams beyond what a connection may have
    errors: dict[str, int] = {}  # connections that ended for an error of the client's, by its code


class DataPlaneStatistics(msgspec.Struct, frozen=True):
    """What the metrics show of one data plane as a whole; totals count since its start."""

    client_connections: int = 0  # open
    handshakes: int = 0  # of them, whose TLS handshake is not over
    handshakes_closed_total: int = 0
    accepted_total: int = 0
    shed_total: int = 0
    exchanges: int = 0  # requests begun and not ended
    held_bytes: int = 0
    held_requests: int = 0
    file_bytes: int = 0  # of bodies in temporary files
    answers: int = 0  # that are kept, or will be
    answer_bytes: int = 0
    answer_totals: dict[str, int] = {}  # what requests came to whose clients did not want to wait
    refused_requests: dict[str, int] = {}  # by reason: before there was a revision
    transitions: dict[tuple[int, int], int] = {}  # of pods, by state before and after (lb.tracker)
    errors_total: int = 0
    http2: Http2Statistics = Http2Statistics()


class TrafficStatistics(msgspec.Struct, frozen=True):
    """What a revision has carried since its first request; times in seconds."""

    duration: Distribution
    first_byte: Distribution
    wait: Distribution
    cold: dict[str, Distribution]  # by phase of a start from zero
    request_bytes: int
    response_bytes: int
    tunnels: int  # open
    tunnels_total: int


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
    """What the metrics show of one revision in one data plane; totals count since this incarnation was made.

    `incarnation`: a number that no other revision of this data plane has or has had, also not one of the same key.
    `dropped`: the revision is gone, but requests of it have not ended.
    """

    key: str
    incarnation: int
    dropped: bool
    knative_service: str
    knative_configuration: str
    policy: str
    requests_total: int
    responses: dict[int, int]  # of pods, by status
    grpc_statuses: dict[int, int]  # of gRPC calls that have ended, by grpc-status
    failures: dict[str, int]  # by reason
    retries: dict[str, int]  # by reason
    fallbacks: dict[str, int]  # requests that another revision took, by its key
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
