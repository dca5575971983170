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
from activator.config.foreign import foreign_problem
from activator.config.forms import FILE, group_of
from activator.config.model.file import Config
from activator.config.model.filters import Fault, HeaderRules
from activator.config.model.kinds import Duration
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
from activator.config.model.queueing import CANCEL_WAIT, Queue
from activator.config.model.revision import Revision
from activator.config.model.routing import HashOn, Match
from activator.config.model.waiting import COUNTS_TRAFFIC
from activator.config.places import Findings, Place
from activator.config.reader import UNREADABLE, Reader
from activator.config.schema import make_schema
from activator.config.specs import (
    AsyncSpec,
    DisciplineSpec,
    FallbackSpec,
    FaultSpec,
    FieldRulesSpec,
    FilterSpec,
    HeaderRulesSpec,
    HealthCheckSpec,
    MatchSpec,
    ProbeSpec,
    ProgressSpec,
    QuietSpec,
    RevisionSpec,
    RuleSpec,
    WaitingPageSpec,
    concurrency_of,
    is_once,
    resolve_buffer,
    resolve_program,
    stand_for_many,
)
from activator.config.tree import Item, lay_environment_over, read_tree
from activator.config.waiting_checks import key_of, text_of
from activator.runtime.errors import ConfigError
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
    if root is None:
        raise ConfigError(problems)
    foreign = foreign_problem(root)
    if foreign:
        raise ConfigError([foreign])
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
            found = [(key, getattr(value, key.attribute)) for key in group_of(type(value)).keys.values()]
            entries = {key.name: _item_of(one) for key, one in found if key.required or one != key.default}
            return Item(COMMAND_LINE, entries=entries)
        case dict():
            return Item(COMMAND_LINE, entries={str(name): _item_of(one) for name, one in value.items()})
        case list():
            return Item(COMMAND_LINE, elements=[_item_of(one) for one in value])
        case bool():
            return Item(COMMAND_LINE, text=str(value).lower())
    return Item(COMMAND_LINE, text=str(value))


def from_tree(root: Item, name: str, problems: list[str], policy_names: AbstractSet[str] | None) -> Config:
    """Read a tree as a configuration. Raises ConfigError with `problems` and its own."""
    findings = Findings(root, problems)
    config = Reader(findings).read(root, FILE)
    if config is not UNREADABLE:
        Checker(Place(findings), policy_names).check(config)
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: _line_of(problem, name)))
    assert isinstance(config, Config)
    return config


def _line_of(problem: str, name: str) -> float:
    """Return the line of a problem in the file; those of the environment come last."""
    line = problem.removeprefix(f"{name}:").partition(":")[0]
    return int(line) if line.isdecimal() else math.inf


def resolve(config: Config, default_policy: Callable[[int], str], processors: int | None = None) -> list[RevisionSpec]:
    """Return the revisions with all defaults resolved. `default_policy(container_concurrency)` names a policy."""
    specs = [resolve_revision(config, revision, default_policy, processors) for revision in config.revisions]
    return _ordered(specs)


def _ordered(specs: list[RevisionSpec]) -> list[RevisionSpec]:
    """Return the revisions with `order` set only where hosts are shared, so that moving others changes nothing."""
    uses: dict[str, int] = {}
    for spec in specs:
        for host in spec.hosts:
            uses[host] = uses.get(host, 0) + 1
    return [
        msgspec.structs.replace(spec, order=place) if any(uses[host] > 1 for host in spec.hosts) else spec
        for place, spec in enumerate(specs)
    ]


def resolve_revision(
    config: Config, revision: Revision, default_policy: Callable[[int], str], processors: int | None = None
) -> RevisionSpec:
    """Return one revision, from any source, with all defaults resolved; `config` has the settings of all revisions."""
    threshold = revision.trailing_fragmentation_threshold
    queue = revision.queue
    concurrency = concurrency_of(revision)
    buffer_request, buffer_response, buffer_file = resolve_buffer(revision.buffer, concurrency)
    if revision.program is not None:
        most = resolve_program(revision, processors).max_scale
    else:
        most = 0 if stand_for_many(revision) else len(revision.pods)
    return RevisionSpec(
        key=f"{revision.namespace}/{revision.name}",
        hosts=tuple(canonical_host(host) or host for host in revision.hosts),
        match=_resolve_match(revision.match),
        aliases=tuple(revision.aliases),
        rewrite_model=revision.rewrite_model,
        default=revision.default,
        weight=-1 if revision.weight is None else revision.weight,
        split_on=_hash_on(revision.split_on),
        container_concurrency=concurrency,
        is_once=is_once(revision),
        policy=revision.policy or default_policy(concurrency),
        hash_on=_hash_on(revision.hash_on),
        slow_start_s=float(revision.slow_start),
        strikes=_or(revision.health.strikes, config.health.strikes),
        ejection_share=_or(revision.health.ejection_share, config.health.ejection_share),
        stale_after_s=float(_or(revision.health.stale_after, config.health.stale_after)),
        probe=_introduced(_resolve_probe(revision.probe, revision), revision),
        health_checks=_resolve_health_checks(revision.health),
        lenient_pods=revision.lenient_pods,
        proxy_protocol=revision.proxy_protocol,
        protocol=_pod_protocol(revision),
        server_timing=revision.server_timing,
        headers=_resolve_header_rules(revision.headers),
        fault=_resolve_fault(revision.fault),
        filters=tuple(
            FilterSpec(use.name, tuple((name, str(text)) for name, text in use.options.items()))
            for use in revision.filters
        ),
        max_scale=revision.max_scale or most,
        trailing_fragmentation_threshold=config.trailing_fragmentation_threshold if threshold is None else threshold,
        queue_depth=queue.depth,
        # Plain floats: a message between the planes cannot carry `Duration`.
        queue_timeout_s=_seconds(queue.timeout),
        queue_bytes=int(queue.bytes),
        request_timeout=queue.request_timeout,
        request_timeout_max_s=_seconds(queue.request_timeout_max),
        admission=queue.admission,
        discipline=_resolve_discipline(queue),
        queue_rules=tuple(
            RuleSpec(rule.path_prefix, tuple(rule.methods), rule.exempt, rule.charge) for rule in queue.rules
        ),
        startup_timeout_s=float(revision.timeouts.startup),
        connect_timeout_s=float(revision.timeouts.connect),
        first_byte_timeout_s=float(revision.timeouts.first_byte),
        idle_timeout_s=float(revision.timeouts.idle),
        total_timeout_s=float(revision.timeouts.total),
        tunnel_idle_timeout_s=float(revision.timeouts.tunnel_idle),
        cancel_wait_s=float(revision.cancel_timeout) if revision.on_cancel == CANCEL_WAIT else 0.0,
        buffer_request_bytes=buffer_request,
        buffer_response_bytes=buffer_response,
        buffer_file_bytes=buffer_file,
        upgrades=tuple(protocol.lower() for protocol in revision.upgrades),
        tls=revision.tls,
        no_wake=tuple(
            QuietSpec(rule.path, tuple(rule.methods), rule.user_agent, rule.status) for rule in revision.no_wake
        ),
        **_replacements(revision),
    )


def _resolve_header_rules(rules: HeaderRules) -> HeaderRulesSpec | None:
    if rules == HeaderRules():
        return None
    return HeaderRulesSpec(
        *(
            FieldRulesSpec(tuple(one.remove), tuple(one.set.items()), tuple(one.append.items()))
            for one in (rules.request, rules.response)
        )
    )


def _resolve_fault(fault: Fault | None) -> FaultSpec | None:
    if fault is None:
        return None
    return FaultSpec(float(fault.delay), fault.delay_share, fault.status or 0, fault.status_share)


def _replacements(revision: Revision) -> dict[str, Any]:
    """Return the values of the responses that replace a pod's. Raises ConfigError for a file that cannot be read."""
    made: dict[str, Any] = {}
    activity = revision.activity
    if activity.websocket == COUNTS_TRAFFIC:
        made["quiet_tunnels_s"] = float(activity.quiet_after)
    if activity.stream == COUNTS_TRAFFIC:
        made["quiet_streams_s"] = float(activity.quiet_after)
    page, fallback, later = revision.waiting_page, revision.fallback, revision.respond_async
    if later is not None:
        made["respond_async"] = AsyncSpec(
            float(later.keep), later.requests, int(later.answer_bytes), int(later.bytes), int(later.body_bytes)
        )
    if page is not None:
        template = text_of(page.file) if page.file else ""
        made["waiting_page"] = WaitingPageSpec(float(page.refresh), template, page.output)
    if revision.progress is not None:
        made["progress"] = ProgressSpec(float(revision.progress.after), float(revision.progress.interval))
    if fallback is not None:
        made["fallback"] = FallbackSpec(
            body=text_of(fallback.file) if fallback.file else "",
            content_type=fallback.content_type,
            redirect=fallback.redirect,
            revision=key_of(fallback.revision) if fallback.revision else "",
            while_starting=fallback.while_starting,
        )
    return made


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
    if queue.discipline == "priority":
        return DisciplineSpec("priority", queue.header, float(queue.ageing), queue.default)
    if queue.discipline == "fair":
        return DisciplineSpec("fair", queue.header, weights=queue.weights)
    return DisciplineSpec()


def _or(own: T | None, general: T) -> T:
    return general if own is None else own


def _resolve_probe(probe: Probe | None, revision: Revision) -> ProbeSpec:
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
    """True if its pods use HTTP/2."""
    return revision.protocol in {"h2c", "h2"}


def readiness_probe(revision: Revision) -> ProbeSpec:
    """Return the readiness probe of a revision's program."""
    assert revision.program is not None
    return _introduced(_readiness_probe(revision, revision.program.readiness), revision)


def _introduced(probe: ProbeSpec, revision: Revision) -> ProbeSpec:
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
    if isinstance(hash_on, HashOn):
        return f"header:{hash_on.header}" if hash_on.header else f"cookie:{hash_on.cookie}"
    return hash_on or ""


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the file, for editors."""
    return make_schema()
