"""Checks of a revision's `queue` beyond the types of its values: keys for each discipline, and rules."""

from __future__ import annotations

from typing import Final

from activator.config.edge_checks import check_positive, is_method
from activator.config.key_path import KeyPath
from activator.config.model.kinds import Duration
from activator.config.model.queueing import ADMISSIONS, DISCIPLINES, QUEUE_TIMEOUT_S, Queue, QueueRule
from activator.config.model.revision import Revision
from activator.config.reader import TOKEN

FAIR_WEIGHTS_MAX: Final = 512  # configured weights of one revision
QUEUE_RULES_MAX: Final = 32  # per revision: each request may be compared with all of them

# Keys that only some disciplines use: a key that would be ignored is a mistake.
_WITH_LEVELS: Final = ("priority", "priority-fair")
_WITH_KEYS: Final = ("fair", "priority-fair")
_ONLY_WITH: Final = {
    "ageing": _WITH_LEVELS,
    "default": _WITH_LEVELS,
    "weights": _WITH_KEYS,
    "header": DISCIPLINES[1:],
    "key_header": ("priority-fair",),
}
# For each discipline the keys that name a header, and what that header carries.
_HEADERS: Final = {
    "priority": {"header": "level"},
    "fair": {"header": "key"},
    "priority-fair": {"header": "level", "key_header": "key"},
}
_DEFAULTS: Final = Queue()


def check_queue(at: KeyPath, queue: Queue, by_key: frozenset[str] | None) -> None:
    """Check the key `queue`, which is at `at`. `by_key`: `priority`, `fair` if the file's `keys` have level and key."""
    discipline, beside = queue.discipline, (at["discipline"],)
    if discipline not in DISCIPLINES:
        at["discipline"].found("one of " + ", ".join(DISCIPLINES))
        return
    for key, disciplines in _ONLY_WITH.items():
        if getattr(queue, key) != getattr(_DEFAULTS, key) and discipline not in disciplines:
            at[key].advise(f"`{key}` requires {_named(disciplines)}, and it is {discipline}", beside=beside)
    for key, role in _HEADERS.get(discipline, {}).items():
        name = getattr(queue, key)
        if not name and ("priority" if role == "level" else "fair") not in (by_key or ()):
            keys = "" if by_key is None else ", or `keys` with `priority`" if role == "level" else ", or `keys`"
            advice = f"`discipline: {discipline}` requires `{key}`, the request header with the {role}{keys}"
            at[key].advise(advice, at.where)
        elif name and TOKEN.fullmatch(name) is None:
            at[key].found("the name of a request header")
    check_positive(at, queue, "ageing", expected="more than 0, so that the lowest level is served, too")
    if len(queue.weights) > FAIR_WEIGHTS_MAX:
        at["weights"].found(f"at most {FAIR_WEIGHTS_MAX} keys", f"{len(queue.weights)}")
    if queue.admission not in ADMISSIONS:
        at["admission"].found("one of " + ", ".join(ADMISSIONS))
    if queue.target_wait and float(queue.target_wait) >= float(_or_default(queue.timeout)):
        at["target_wait"].found(f"less than `timeout` ({_or_default(queue.timeout):g} s), which ends every wait")
    # An API server fills defaults in: those are not keys that somebody has set.
    if queue.target_interval != _DEFAULTS.target_interval and not queue.target_wait:
        at["target_interval"].advise("`target_interval` requires `target_wait`")
    if queue.request_timeout_max is not None and not queue.request_timeout:
        advice = "`request_timeout_max` requires `request_timeout: true`"
        at["request_timeout_max"].advise(advice, beside=(at["request_timeout"],))
    if len(queue.rules) > QUEUE_RULES_MAX:
        at["rules"].found(f"at most {QUEUE_RULES_MAX}", str(len(queue.rules)))
    for entry_at, rule in at["rules"].each(queue.rules):
        _check_rule(entry_at, rule, discipline, beside)


def check_adaptive(at: KeyPath, revision: Revision, workers: KeyPath, are_several: bool) -> None:
    """Check the key `adaptive_concurrency`. `are_several`: other workers or replicas send requests to the same pods."""
    adaptive = revision.adaptive_concurrency
    if adaptive is None:
        return
    if adaptive.max < adaptive.min:
        at["max"].found("at least `min`", beside=(at["min"],))
    if revision.container_concurrency:
        at.advise("it is for revisions without `container_concurrency`: remove one of the two")
    if are_several:
        advice = "it requires `workers: 1` and no `members`: others would take each other's load for slow pods"
        at.advise(advice, beside=(workers,))


def _check_rule(at: KeyPath, rule: QueueRule, discipline: str, beside: tuple[KeyPath, ...]) -> None:
    prefix = rule.path_prefix
    if not prefix.startswith("/") or "?" in prefix or not prefix.isascii():
        at["path_prefix"].found("the ASCII beginning of a path, from / on")
    for method in rule.methods:
        if not is_method(method):
            at["methods"].found("methods in capital letters such as GET", f'"{method}"')
    if rule.charge != 1 and rule.exempt:
        at["charge"].advise("`charge` has no effect with `exempt: true`: remove one of the two")
    elif rule.charge != 1 and discipline not in _WITH_KEYS:
        at["charge"].advise(f"`charge` requires {_named(_WITH_KEYS)}, and it is {discipline}", beside=beside)
    if "charge" not in at and "exempt" not in at:
        at.advise("a rule requires `exempt: true` or `charge`")


def _or_default(timeout: Duration | None) -> float:
    return QUEUE_TIMEOUT_S if timeout is None else float(timeout)


def _named(disciplines: tuple[str, ...]) -> str:
    return " or ".join(f"`discipline: {discipline}`" for discipline in disciplines)
