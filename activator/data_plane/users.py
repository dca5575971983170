"""Users: clients that are known by a key of their own (filters/keys.py)."""

from __future__ import annotations

from typing import final

from activator.config.specs import UserSpec


@final
class UserTotals:
    """The admitted requests of a user, and the tokens of their responses."""

    def __init__(self) -> None:
        self.requests: int = 0
        self.prompt_tokens: int = 0
        self.completion_tokens: int = 0


class Admission:
    """The admission of a request by the quota of its user (quotas/quotas.py)."""


@final
class User:
    """A user's rights. `totals`: those of all users of this name, before and after a reload."""

    def __init__(self, spec: UserSpec, totals: UserTotals) -> None:
        self.name: str = spec.name
        self.share: bytes = spec.name.encode()  # in queues with the discipline `fair`
        self.level: int = spec.level  # in queues with the discipline `priority`; NO_LEVEL: the header states it
        self.totals = totals
        revisions = spec.revisions
        self._revisions: frozenset[str] | None = None if revisions is None else frozenset(revisions)
        self.is_limited: bool = revisions is not None  # to some revisions

    def may_use(self, key: str) -> bool:
        """Return True if the user may use the revision `key`, namespace/name."""
        return self._revisions is None or key in self._revisions


@final
class Access:
    """The users whose keys a request has, in their order, and the one as which it uses its revision."""

    def __init__(self, source: object, users: tuple[User, ...], has_key: bool) -> None:
        self.source = source  # the filter that has recognized the keys; another one may know other users
        self.users = users
        self.has_key = has_key  # otherwise the only user is that of requests without a key
        self.user: User | None = None  # None: it has no revision yet, or no user may use that

    def choose(self, key: str) -> User | None:
        """Set and return the first user that may use the revision `key`; None if there is none."""
        for user in self.users:
            if user.may_use(key):
                self.user = user
                return user
        self.user = None
        return None

    def allows(self, key: str) -> bool:
        """Return True if a user may use the revision `key`, namespace/name."""
        return any(user.may_use(key) for user in self.users)

    def name(self) -> str:
        """Return the name of the user; of a refused request, that of its first key; "" if it has none."""
        user = self.user
        if user is not None:
            return user.name
        return self.users[0].name if self.has_key else ""
