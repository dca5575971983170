"""Checks of keys whose effect depends on others elsewhere in the file: without those, they would be ignored.

Part of `checks.py`, with its rules. A key is left alone where the others may come from elsewhere: revisions from a
cluster or a container engine, users from `keys_file`.
"""

from __future__ import annotations

from typing import Final

from activator.config.key_path import KeyPath
from activator.config.model.file import Config
from activator.config.model.listeners import Listener
from activator.config.model.queueing import DISCIPLINES
from activator.config.user_keys import known_revisions

_WITH_LEVELS: Final = frozenset({"priority", "priority-fair"})
_WITH_TURNS: Final = frozenset({"fair", "priority-fair"})


def check_effects(root: KeyPath, config: Config) -> None:
    """Check the keys of users, `state`, and the records of revisions."""
    if known_revisions(config) is not None:
        _check_order(root, config)
    if config.keys_file:
        return
    if not config.keys:
        _check_listeners(root["listen"], config.listen)
    limits = [key.limits for key in config.keys if key.limits is not None]
    if config.state and not limits:
        advice = "`state` has no effect without `limits` of a key: set some in `keys`, or remove it"
        root["state"].advise(advice, beside=(root["keys"],))
    if not any(limit.tokens for limit in limits):
        for at, revision in root["revisions"].each(config.revisions):
            record, record_at = revision.record, at["record"]
            if record is not None and record.include_usage and not record.tokens:
                advice = "`include_usage` has no effect with `tokens: false` and no `limits.tokens` of a key: remove it"
                record_at["include_usage"].advise(advice, beside=(record_at["tokens"], root["keys"]))


def _check_listeners(at: KeyPath, listen: str | Listener | list[str | Listener]) -> None:
    """Report listeners with `keys: false` in a file without keys."""
    each = at.each(listen) if isinstance(listen, list) else iter([(at, listen)])
    for entry_at, listener in each:
        if not isinstance(listener, str) and not listener.keys:
            entry_at["keys"].advise("`keys: false` has no effect, because there are no `keys`: remove it")


def _check_order(root: KeyPath, config: Config) -> None:
    """Report the levels and weights of users that no queue uses."""
    used = {revision.queue.discipline for revision in config.revisions}
    if not used.issubset(DISCIPLINES):
        return  # An unknown discipline is reported by the check of its queue.
    beside = (
        root["revisions"],
        root["models"],
        *(at["queue"]["discipline"] for at, _ in root["revisions"].each(config.revisions)),
    )
    for at, key in root["keys"].each(config.keys):
        if key.priority is not None and not used & _WITH_LEVELS:
            at["priority"].advise(_no_queue("priority"), beside=beside)
        if key.weight != 1 and not used & _WITH_TURNS:
            at["weight"].advise(_no_queue("weight", "fair"), beside=beside)


def _no_queue(key: str, discipline: str = "priority") -> str:
    queue = f"`queue: {{discipline: {discipline}}}`"
    return f"`{key}` has no effect without a queue that uses it: set {queue} in a revision or model, or remove it"
