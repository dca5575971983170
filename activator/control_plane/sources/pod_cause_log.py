"""One log line when fixed pods stop answering, or when the cause changes.

Rules
  1. A pod is named once it has not answered for LOG_AFTER_S, and again only when its cause changes. A cause that
     differs only in numbers (a timeout that grows) is the same cause.
  2. A revision gets at most one line in LOG_INTERVAL_S. It names POD_CAUSES_MAX pods and counts the others.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

from activator.control_plane.probes.probed_pod import Failing

LOG_AFTER_S: Final = 1.0  # a restart is too short to be logged
LOG_INTERVAL_S: Final = 10.0  # between two lines about one revision
POD_CAUSES_MAX: Final = 5  # pods that one line names

_NUMBERS: Final = re.compile(r"[0-9]+(\.[0-9]+)?")

log = logging.getLogger("activator.probing")


class PodCauseLog:
    """The causes that were logged, by pod."""

    def __init__(self) -> None:
        self._logged: dict[str, dict[str, str]] = {}  # by revision and pod: the logged cause without its numbers
        self._not_before_s: dict[str, float] = {}  # by revision: when the next line is allowed

    def report(self, key: str, failing: Mapping[str, Failing], now_s: float) -> None:
        """Log new causes. `failing`: all pods of the revision that do not answer, by identity."""
        if now_s < self._not_before_s.get(key, now_s):
            return
        logged = self._logged.get(key, {})
        new_causes = {
            identity: failure.cause
            for identity, failure in failing.items()
            if now_s - failure.since_s >= LOG_AFTER_S and logged.get(identity) != _kind(failure.cause)
        }
        if not new_causes:
            return
        kept = {identity: kind for identity, kind in logged.items() if identity in failing}
        self._logged[key] = kept | {identity: _kind(cause) for identity, cause in new_causes.items()}
        self._not_before_s[key] = now_s + LOG_INTERVAL_S
        named = [f"{identity}: {cause}" for identity, cause in list(new_causes.items())[:POD_CAUSES_MAX]]
        more = f"; and {len(new_causes) - len(named)} more" if len(new_causes) > len(named) else ""
        log.warning("%s: no answer from %s%s", key, "; ".join(named), more)

    def forget(self, key: str) -> None:
        """Forget a revision that was removed."""
        self._logged.pop(key, None)
        self._not_before_s.pop(key, None)


def _kind(cause: str) -> str:
    """Return the cause without its numbers."""
    return _NUMBERS.sub("#", cause)
