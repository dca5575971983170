"""The levels that a data plane has received from the owners of quotas, for the case that another one takes over."""

from __future__ import annotations

from typing import Final, final

from activator.config.specs import QuotaSpec
from activator.data_plane.quotas.messages import Level
from activator.runtime.clock import Now

LEVELS_MAX: Final = 10_000  # remembered levels


@final
class Levels:
    """The levels by the key of the quota, each with the time of its receipt."""

    def __init__(self, now: Now) -> None:
        self.known: dict[str, tuple[Level, float]] = {}
        self._now = now
        self._has_lost: bool = False  # an owner has ended that may have granted more than it had reported
        self._seen: set[str] = set()  # keys of all quotas since the start

    def owner_ended(self) -> None:
        """Note that an owner has ended; a quota without a level here may be used up."""
        self._has_lost = True

    def clear(self) -> None:
        """Forget all levels, because there may have been other owners."""
        self._has_lost = True
        self.known.clear()

    def add_quota(self, key: str, used: tuple[float, float] | None, is_reload: bool) -> None:
        """Note a new quota. `used`: its usage before the program started; a quota that a reload adds is unused."""
        if not is_reload and used is not None:
            self.remember(key, Level(0, *used, True))
        elif is_reload and key not in self.known and key not in self._seen:
            self.remember(key, Level(0, 0.0, 0.0, True))
        if len(self._seen) < LEVELS_MAX:
            self._seen.add(key)

    def remember(self, key: str, level: Level) -> bool:
        """Remember a level and return True; return False if the level of a later owner is known."""
        known = self.known.get(key)
        if known is not None and level.since < known[0].since:
            return False
        if known is None and len(self.known) >= LEVELS_MAX:
            del self.known[min(self.known, key=lambda name: self.known[name][1])]  # the oldest
        self.known[key] = (level, self._now())
        return True

    def level_of(self, key: str, spec: QuotaSpec) -> Level | None:
        """Return the level of a quota as of now; a full one if an unknown amount may have been granted, else None."""
        known = self.known.get(key)
        if known is not None:
            return _drained(known, spec, self._now())
        return Level(0, float(spec.requests), float(spec.tokens)) if self._has_lost else None


def _drained(known: tuple[Level, float], spec: QuotaSpec, now_s: float) -> Level:
    """Return a received level as of now."""
    level, received_s = known
    requests, tokens = level.requests, level.tokens
    if spec.requests:
        requests = max(requests - (now_s - received_s) * spec.requests / spec.requests_period_s, 0.0)
    if spec.tokens:
        tokens = max(tokens - (now_s - received_s) * spec.tokens / spec.tokens_period_s, 0.0)
    return Level(level.since, requests, tokens, level.is_exact)
