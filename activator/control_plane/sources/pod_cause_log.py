"""One line in the log when fixed pods stop answering, or when the cause changes.

Rules
  1. A pod is named once it has not answered for TELL_AFTER_S, and again only when its cause is another one. Numbers in
     a cause (a timeout that grows) make no other cause.
  2. A revision gets at most one line in TELL_INTERVAL_S. It names POD_CAUSES_MAX pods and counts the others.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

from activator.control_plane.probes.asked_pod import Failing

TELL_AFTER_S: Final = 1.0  # a pod that is restarted is not worth a line
TELL_INTERVAL_S: Final = 10.0  # between two lines about one revision
POD_CAUSES_MAX: Final = 5  # pods that one line names

_NUMBERS: Final = re.compile(r"[0-9]+(\.[0-9]+)?")

log = logging.getLogger("activator.probing")


class PodCauseLog:
    """What was said of which pod."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, str]] = {}  # by revision and pod: the cause without its numbers
        self._not_before_s: dict[str, float] = {}  # by revision: the next line

    def look(self, key: str, failing: Mapping[str, Failing], now_s: float) -> None:
        """`failing`: all pods of the revision that do not answer, by identity."""
        if now_s < self._not_before_s.get(key, now_s):
            return
        told = self._told.get(key, {})
        news = {
            identity: one.cause
            for identity, one in failing.items()
            if now_s - one.since_s >= TELL_AFTER_S and told.get(identity) != _kind(one.cause)
        }
        if not news:
            return
        kept = {identity: said for identity, said in told.items() if identity in failing}
        self._told[key] = kept | {identity: _kind(cause) for identity, cause in news.items()}
        self._not_before_s[key] = now_s + TELL_INTERVAL_S
        named = [f"{identity}: {cause}" for identity, cause in list(news.items())[:POD_CAUSES_MAX]]
        more = f"; and {len(news) - len(named)} more" if len(news) > len(named) else ""
        log.warning("%s: no answer from %s%s", key, "; ".join(named), more)

    def forget(self, key: str) -> None:
        """The revision is gone."""
        self._told.pop(key, None)
        self._not_before_s.pop(key, None)


def _kind(cause: str) -> str:
    return _NUMBERS.sub("#", cause)
