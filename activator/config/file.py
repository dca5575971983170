"""The configuration file: from its text and the environment to `Config`, and from there to resolved revisions.

Rules
  1. For any text the result is a `Config` or one `ConfigError` that lists every mistake with its line.
  2. Defaults that depend on other keys are resolved in `resolve` and nowhere else.
  3. The names of policies are passed in: this module does not depend on `lb/`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar

import msgspec

from activator.config.checks import Checker, canonical_host
from activator.config.filter_checks import authoriser_of
from activator.config.foreign import foreign_problem, foreign_text_problem
from activator.config.forms import FILE, group_of
from activator.config.key_path import Findings, KeyPath
from activator.config.model.file import Config
from activator.config.model.filters import Fault, ForwardAuth, HeaderRules, RateLimit
from activator.config.model.kinds import Duration, Secret
from activator.config.model.pods import (
    HEALTH_FALL,
    HEALTH_INTERVAL_S,
    HEALTH_RISE,
    PROBE_GRPC,
    PROBE_HTTP,
    PROBE_TCP,
    Probe,
    RevisionHealth,
)
from activator.config.model.programs import Readiness
from activator.config.model.queueing import CANCEL_WAIT, AdaptiveConcurrency, Queue, Timeouts
from activator.config.model.revision import Revision
from activator.config.model.routing import HashOn, Match
from activator.config.model.waiting import COUNTS_TRAFFIC, Fallback
from activator.config.model_entries import expand_models
from activator.config.rates import parse_rate
from activator.config.reader import UNREADABLE, Reader
from activator.config.schema import make_schema
from activator.config.specs import (
    AdaptiveSpec,
    AsyncSpec,
    BalancingSpec,
    ConnectionSpec,
    DisciplineSpec,
    FallbackSpec,
    FaultSpec,
    FieldRulesSpec,
    FilterSpec,
    FiltersSpec,
    ForwardAuthSpec,
    HeaderRulesSpec,
    HealthCheckSpec,
    HealthSpec,
    MatchSpec,
    ParamsSpec,
    ProbeSpec,
    ProbingSpec,
    ProgressSpec,
    QueueSpec,
    QuietSpec,
    RateLimitSpec,
    RecordSpec,
    RevisionSpec,
    RoutingSpec,
    RuleSpec,
    TimeoutsSpec,
    WaitingPageSpec,
    concurrency_of,
    is_once,
    key_of,
    reroute,
    resolve_buffers,
    resolve_program,
    stand_for_many,
)
from activator.config.tree import Item, lay_environment_over, read_tree
from activator.config.user_keys import read_keys_file
from activator.config.waiting_checks import statuses_of, text_of
from activator.config.zones import zone_of
from activator.runtime.errors import ConfigError, StartError
from activator.runtime.secret_text import read_secret
from activator.runtime.url_path import normal_prefix

COMMAND_LINE: Final = "command line"  # the name of a configuration without a file
T = TypeVar("T")


def load(path: str, environ: Mapping[str, str], policy_names: AbstractSet[str] | None = None) -> Config:
    """Read the file at `path`. Raises ConfigError. Without `policy_names` any policy name is accepted."""
    return parse(read_text(path), path, environ, policy_names)


def read_text(path: str) -> str:
    """Return the content of the file at `path`; raises ConfigError."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError:
        raise ConfigError([f"{path}:1: found bytes that are not UTF-8, expected text"]) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from None


def parse(text: str, name: str, environ: Mapping[str, str], policy_names: AbstractSet[str] | None = None) -> Config:
    """Parse `text` as a configuration called `name`; `environ` overrides it. Raises ConfigError."""
    problems: list[str] = []
    root = read_tree(text, name, environ, problems)
    is_mapping = root is not None and root.entries is not None
    foreign = foreign_problem(root) if root is not None and is_mapping else foreign_text_problem(text, name)
    if foreign:
        raise ConfigError([foreign])
    if root is None:
        raise ConfigError(problems)
    return from_tree(root, name, problems, policy_names)


def overlay(config: Config, environ: Mapping[str, str], policy_names: AbstractSet[str] | None = None) -> Config:
    """Return `config`, which has no file, with `environ` overriding it. Raises ConfigError."""
    problems: list[str] = []
    root = _item_of(config)
    lay_environment_over(root, environ, problems)
    return from_tree(root, COMMAND_LINE, problems, policy_names)


def _item_of(value: object) -> Item:
    """Return the tree that a user would have written for `value`, without values that are defaults."""
    match value:
        case msgspec.Struct():
            pairs = [(key, getattr(value, key.attribute)) for key in group_of(type(value)).keys.values()]
            entries = {key.name: _item_of(child) for key, child in pairs if key.required or child != key.default}
            return Item(COMMAND_LINE, entries=entries)
        case dict():
            return Item(COMMAND_LINE, entries={str(name): _item_of(child) for name, child in value.items()})
        case list():
            return Item(COMMAND_LINE, elements=[_item_of(child) for child in value])
        case bool():
            return Item(COMMAND_LINE, text=str(value).lower())
    return Item(COMMAND_LINE, text=str(value))


def from_tree(root: Item, name: str, problems: list[str], policy_names: AbstractSet[str] | None) -> Config:
    """Read a tree as a configuration. Raises ConfigError with `problems` and its own."""
    expand_models(root, problems)
    findings = Findings(root, problems)
    config = Reader(findings).read(root, FILE)
    if config is not UNREADABLE:
        Checker(KeyPath(findings), policy_names).check(config)
    if problems:
        problems = list(dict.fromkeys(problems))  # a key of a model is read twice
        raise ConfigError(sorted(problems, key=lambda problem: _line_of(problem, name)))
    assert isinstance(config, Config)
    return config


def _line_of(problem: str, name: str) -> float:
    """Return the line of a problem in the file; those of the environment come last."""
    line = problem.removeprefix(f"{name}:").partition(":")[0]
    return int(line) if line.isdecimal() else math.inf


def resolve(config: Config, default_policy: Callable[[int], str], processors: int | None = None) -> list[RevisionSpec]:
    """Return the revisions with all defaults resolved. Raises ConfigError if a file that `config` names is not valid.

    `default_policy(container_concurrency)` names a policy.
    """
    read_keys_file(config)
    zone_of(config)  # revisions from elsewhere may use it
    specs = [resolve_revision(config, revision, default_policy, processors) for revision in config.revisions]
    return _ordered(specs)


def _ordered(specs: list[RevisionSpec]) -> list[RevisionSpec]:
    """Return the revisions with `order` set only where hosts are shared, so that moving others changes nothing."""
    uses: dict[str, int] = {}
    for spec in specs:
        for host in spec.routing.hosts:
            uses[host] = uses.get(host, 0) + 1
    return [
        reroute(spec, order=index) if any(uses[host] > 1 for host in spec.routing.hosts) else spec
        for index, spec in enumerate(specs)
    ]


def resolve_revision(
    config: Config, revision: Revision, default_policy: Callable[[int], str], processors: int | None = None
) -> RevisionSpec:
    """Return one revision, from any source, with all defaults resolved; `config` has the settings of all revisions."""
    concurrency = concurrency_of(revision)
    return RevisionSpec(
        key=f"{revision.namespace}/{revision.name}",
        container_concurrency=concurrency,
        is_once=is_once(revision),
        upgrades=tuple(protocol.lower() for protocol in revision.upgrades),
        routing=_resolve_routing(revision),
        params=ParamsSpec(
            # Plain texts: a message between the planes cannot carry `Json`.
            tuple(revision.strip_params),
            tuple([(name, str(value)) for name, value in revision.set_params.items()]),
        ),
        balancing=_resolve_balancing(config, revision, revision.policy or default_policy(concurrency), processors),
        queue=_resolve_queue(revision.queue, revision.timeouts, revision.adaptive_concurrency),
        timeouts=_resolve_timeouts(revision),
        buffers=resolve_buffers(revision.buffer, concurrency),
        connection=ConnectionSpec(
            _pod_protocol(revision), revision.tls, revision.lenient_pods, revision.proxy_protocol
        ),
        probing=ProbingSpec(
            _with_proxy_protocol(_resolve_probe(revision.probe, revision), revision),
            _resolve_health_checks(revision.health),
        ),
        health=HealthSpec(
            _own_or(revision.health.strikes, config.health.strikes),
            _own_or(revision.health.ejection_share, config.health.ejection_share),
            float(_own_or(revision.health.stale_after, config.health.stale_after)),
        ),
        filters=_resolve_filters(revision),
    )


def _resolve_routing(revision: Revision) -> RoutingSpec:
    return RoutingSpec(
        hosts=tuple(canonical_host(host) or host for host in revision.hosts),
        match=_resolve_match(revision.match),
        aliases=tuple(revision.aliases),
        rewrite_model=revision.rewrite_model,
        default=revision.default,
        weight=-1 if revision.weight is None else revision.weight,
        split_on=_hash_on(revision.split_on),
    )


def _resolve_balancing(config: Config, revision: Revision, policy: str, processors: int | None) -> BalancingSpec:
    if revision.program is not None:
        pods_max = resolve_program(revision, processors).max_scale
    else:
        pods_max = 0 if stand_for_many(revision) else len(revision.pods)
    return BalancingSpec(
        policy=policy,
        hash_on=_hash_on(revision.hash_on),
        slow_start_s=float(revision.slow_start),
        max_scale=revision.max_scale or pods_max,
        trailing_fragmentation_threshold=_own_or(
            revision.trailing_fragmentation_threshold, config.trailing_fragmentation_threshold
        ),
        zone=zone_of(config) if revision.prefer_zone else "",
    )


def _resolve_queue(queue: Queue, timeouts: Timeouts, adaptive: AdaptiveConcurrency | None) -> QueueSpec:
    return QueueSpec(
        depth=queue.depth,
        bytes=int(queue.bytes),
        # Plain floats: a message between the planes cannot carry `Duration`.
        timeout_s=_seconds(queue.timeout),
        startup_timeout_s=float(timeouts.startup),
        request_timeout=queue.request_timeout,
        request_timeout_max_s=_seconds(queue.request_timeout_max),
        admission=queue.admission,
        target_wait_s=float(queue.target_wait),
        target_interval_s=float(queue.target_interval),
        discipline=_resolve_discipline(queue),
        rules=tuple(RuleSpec(rule.path_prefix, tuple(rule.methods), rule.exempt, rule.charge) for rule in queue.rules),
        adaptive=None if adaptive is None else AdaptiveSpec(adaptive.min, adaptive.max),
    )


def _resolve_timeouts(revision: Revision) -> TimeoutsSpec:
    timeouts = revision.timeouts
    return TimeoutsSpec(
        connect_s=float(timeouts.connect),
        first_byte_s=float(timeouts.first_byte),
        idle_s=float(timeouts.idle),
        total_s=float(timeouts.total),
        tunnel_idle_s=float(timeouts.tunnel_idle),
        cancel_wait_s=float(revision.cancel_timeout) if revision.on_cancel == CANCEL_WAIT else 0.0,
    )


def _resolve_filters(revision: Revision) -> FiltersSpec:
    """Return the filters of a revision. Raises ConfigError for a file that cannot be read."""
    activity = revision.activity
    page, progress, asynchronous = revision.waiting_page, revision.progress, revision.respond_async
    return FiltersSpec(
        allow=tuple(revision.allow),
        rate_limit=_resolve_rate_limit(revision.rate_limit),
        forward_auth=_resolve_forward_auth(revision.forward_auth),
        of_packages=tuple(
            FilterSpec(use.name, tuple((name, str(text)) for name, text in use.options.items()))
            for use in revision.filters
        ),
        fault=_resolve_fault(revision.fault),
        no_wake=tuple(
            QuietSpec(rule.path, tuple(rule.methods), rule.user_agent, rule.status) for rule in revision.no_wake
        ),
        respond_async=None
        if asynchronous is None
        else AsyncSpec(
            float(asynchronous.keep),
            asynchronous.requests,
            int(asynchronous.answer_bytes),
            int(asynchronous.bytes),
            int(asynchronous.body_bytes),
        ),
        progress=None if progress is None else ProgressSpec(float(progress.after), float(progress.interval)),
        waiting_page=None
        if page is None
        else WaitingPageSpec(float(page.refresh), text_of(page.file) if page.file else "", page.output),
        fallback=_resolve_fallback(revision.fallback),
        quiet_tunnels_s=float(activity.quiet_after) if activity.websocket == COUNTS_TRAFFIC else 0.0,
        quiet_streams_s=float(activity.quiet_after) if activity.stream == COUNTS_TRAFFIC else 0.0,
        server_timing=revision.server_timing,
        headers=_resolve_header_rules(revision.headers),
        record=_resolve_record(revision),
    )


def _resolve_record(revision: Revision) -> RecordSpec | None:
    """Return the settings of records; without the key `record`, those of models are the defaults."""
    record, match = revision.record, revision.match
    if record is None:
        return RecordSpec() if match is not None and match.json is not None else None
    capture = record.capture
    if not record.tokens and record.requests == 0 and not record.include_usage:
        return None
    if capture is None:
        return RecordSpec(record.tokens, record.requests, include_usage=record.include_usage)
    bytes_max, keep_s = int(capture.bytes), float(capture.keep)
    return RecordSpec(record.tokens, record.requests, bytes_max, keep_s, record.include_usage)


def _resolve_header_rules(rules: HeaderRules) -> HeaderRulesSpec | None:
    if rules == HeaderRules():
        return None
    return HeaderRulesSpec(
        *(
            FieldRulesSpec(tuple(field_rules.remove), _texts(field_rules.set), _texts(field_rules.append))
            for field_rules in (rules.request, rules.response)
        )
    )


def _texts(values: Mapping[str, Secret]) -> tuple[tuple[str, str], ...]:
    """Return header fields with their secrets, which each reload reads again. Raises ConfigError."""
    try:
        return tuple([(name, read_secret(str(text), f"header {name}")) for name, text in values.items()])
    except StartError as error:
        raise ConfigError([str(error)]) from None


def _resolve_rate_limit(limit: RateLimit | None) -> RateLimitSpec | None:
    rate = None if limit is None else parse_rate(limit.requests)
    if limit is None or rate is None:
        return None
    return RateLimitSpec(*rate, limit.burst or rate[0])


def _resolve_forward_auth(forward_auth: ForwardAuth | None) -> ForwardAuthSpec | None:
    address = None if forward_auth is None else authoriser_of(forward_auth.url)
    if forward_auth is None or address is None:
        return None
    return ForwardAuthSpec(
        *address,
        headers=tuple(forward_auth.headers),
        cache_s=float(forward_auth.cache),
        timeout_s=float(forward_auth.timeout),
    )


def _resolve_fault(fault: Fault | None) -> FaultSpec | None:
    if fault is None:
        return None
    return FaultSpec(float(fault.delay), fault.delay_share, fault.status or 0, fault.status_share)


def _resolve_fallback(fallback: Fallback | None) -> FallbackSpec | None:
    if fallback is None:
        return None
    return FallbackSpec(
        body=text_of(fallback.file) if fallback.file else "",
        content_type=fallback.content_type,
        redirect=fallback.redirect,
        revision=key_of(fallback.revision) if fallback.revision else "",
        statuses=statuses_of(fallback.statuses),
        any_method=fallback.any_method,
        while_starting=fallback.while_starting,
    )


def _resolve_match(match: Match | None) -> MatchSpec:
    if match is None:
        return MatchSpec()
    return MatchSpec(
        path=normal_prefix(match.path).decode("ascii"),
        strip_path=match.strip_path,
        methods=tuple(sorted(match.methods)),
        headers=tuple(sorted((name.lower(), value) for name, value in match.headers.items())),
        models=() if match.json is None else tuple(match.json.model),
    )


def _resolve_discipline(queue: Queue) -> DisciplineSpec:
    if queue.discipline == "fifo":
        return DisciplineSpec()
    if queue.discipline == "fair":
        return DisciplineSpec("fair", key_header=queue.header, weights=queue.weights)
    return DisciplineSpec(
        queue.discipline, queue.header, float(queue.ageing), queue.default, queue.weights, queue.key_header
    )


def _own_or(own: T | None, general: T) -> T:
    return general if own is None else own


def _resolve_probe(probe: Probe | None, revision: Revision) -> ProbeSpec:
    """Return the probe of pods: `health.http_get`, else `probe`, else whether the port accepts connections."""
    lenient = revision.lenient_pods
    if revision.health.http_get:
        return ProbeSpec(PROBE_HTTP, revision.health.http_get, lenient=lenient, http2=speaks_http2(revision))
    if probe is None:
        return ProbeSpec(lenient=lenient)
    return ProbeSpec(
        probe.kind or (PROBE_HTTP if probe.path or probe.identity_header else PROBE_TCP),
        probe.path,
        probe.host,
        lenient=lenient,
        identity_header=probe.identity_header,
        http2=speaks_http2(revision),
        service=probe.service,
    )


def _resolve_health_checks(health: RevisionHealth) -> HealthCheckSpec | None:
    if not health.http_get and health.interval is None:
        return None
    interval = HEALTH_INTERVAL_S if health.interval is None else float(health.interval)
    return HealthCheckSpec(interval, health.rise or HEALTH_RISE, health.fall or HEALTH_FALL) if interval else None


def _pod_protocol(revision: Revision) -> str:
    if revision.protocol != "auto":
        return revision.protocol
    return "h1" if revision.tls is None else "alpn"


def speaks_http2(revision: Revision) -> bool:
    """Return True if the pods of the revision use HTTP/2."""
    return revision.protocol in {"h2c", "h2"}


def readiness_probe(revision: Revision) -> ProbeSpec:
    """Return the readiness probe of a revision's program."""
    assert revision.program is not None
    return _with_proxy_protocol(_readiness_probe(revision, revision.program.readiness), revision)


def _with_proxy_protocol(probe: ProbeSpec, revision: Revision) -> ProbeSpec:
    return msgspec.structs.replace(probe, proxy_protocol=revision.proxy_protocol) if revision.proxy_protocol else probe


def _readiness_probe(revision: Revision, readiness: Readiness) -> ProbeSpec:
    if readiness.grpc is not None:
        return ProbeSpec(PROBE_GRPC, http2=True, service=readiness.grpc)
    if readiness.http_get:
        return ProbeSpec(PROBE_HTTP, readiness.http_get, lenient=revision.lenient_pods, http2=speaks_http2(revision))
    return ProbeSpec()


def _seconds(duration: Duration | None) -> float | None:
    return None if duration is None else float(duration)


def _hash_on(hash_on: str | HashOn | None) -> str:
    """Return the source of a request's key: `header:NAME`, `cookie:NAME`, `client_ip`, or empty for none."""
    if isinstance(hash_on, HashOn):
        return f"header:{hash_on.header}" if hash_on.header else f"cookie:{hash_on.cookie}"
    return hash_on or ""


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the file, for editors."""
    return make_schema()
