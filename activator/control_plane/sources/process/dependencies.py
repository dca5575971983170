"""The programs that others need (`depends_on`): started before them, and kept while they are used.

Rules
  1. The first copy of a program is granted when each revision that it depends on has a ready copy; until then it is
     *waiting*. A dependency that ends later stops nothing.
  2. A dependency has at least one copy while a revision that depends on it wants a copy, or has one that is awake, even
     if a reload has removed that revision. After that the dependency's idle time begins.
  3. If a dependency cannot start, the revisions that wait for it fail with its cause, and recover with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from activator.messages import Change, RevisionFailed, RevisionRecovered

log = logging.getLogger("activator.process")


class Dependencies:
    """The dependencies between revisions; they form no loop.

    `is_ready(key)`: the revision has a ready copy; `is_awake(key)`: it has one that starts, runs or stops.
    `grant(key, count)` lets it have that many copies; `need(key, count)` reports how many revisions use it. `submit`
    takes changes.
    """

    def __init__(
        self,
        is_ready: Callable[[str], bool],
        is_awake: Callable[[str], bool],
        grant: Callable[[str, int], None],
        need: Callable[[str, int], None],
        submit: Callable[[Change], None],
    ) -> None:
        self._is_ready = is_ready
        self._is_awake = is_awake
        self._grant = grant
        self._need = need
        self._submit = submit
        self._needs: dict[str, tuple[str, ...]] = {}  # by revision, also of those that leave
        self._users: dict[str, tuple[str, ...]] = {}  # the revisions that depend on a revision
        self._needed: set[str] = set()  # revisions that others depended on at the last refresh
        self._wanted: dict[str, int] = {}  # copies, by revision; without those that want none
        self._waiting: dict[str, None] = {}
        self._failures: dict[str, RevisionFailed] = {}  # revisions whose own programs cannot start
        self._passed_on: dict[str, RevisionFailed] = {}  # waiting revisions that fail with a dependency

    def configure(self, needs: Mapping[str, tuple[str, ...]]) -> None:
        """Set the dependencies of all revisions; `refresh` applies them to wanted copies.

        A revision that is not in `needs` was removed, and keeps its dependencies until its last program has ended.
        """
        leaving = {key: named for key, named in self._needs.items() if key not in needs and self._is_awake(key)}
        self._set_needs({**leaving, **{key: named for key, named in needs.items() if named}})

    def refresh(self) -> None:
        """Apply changed dependencies, once all revisions are set."""
        for key in self._needed | self._users.keys():
            self._need(key, len(self.users_of(key)))
        self._needed = set(self._users)
        for key in [*self._waiting]:
            self._try_grant(key)
        for key in [*self._waiting, *self._passed_on]:
            self._fail_or_recover(key)

    def drop_revision(self, key: str) -> None:
        """Forget the load of a revision that was removed."""
        self._failures.pop(key, None)
        self._passed_on.pop(key, None)
        self._waiting.pop(key, None)
        self._set_wanted(key, 0)
        for user in self._users.get(key, ()):
            self._fail_or_recover(user)

    def users_of(self, key: str) -> list[str]:
        """Return the revisions that depend on this one and want a copy, or have one that is awake."""
        return [user for user in self._users.get(key, ()) if user in self._wanted or self._is_awake(user)]

    def waits_for(self, key: str) -> list[str]:
        """Return the dependencies for which a revision waits."""
        if key not in self._waiting:
            return []
        return [needed for needed in self._needs.get(key, ()) if not self._is_ready(needed)]

    # --- what happens ---

    def set_desired(self, key: str, count: int) -> None:
        """Set how many copies of a revision are wanted, and grant them as soon as its dependencies allow it."""
        had_any = key in self._wanted and key not in self._waiting
        self._set_wanted(key, count)
        if count == 0 or had_any:
            self._waiting.pop(key, None)
            self._fail_or_recover(key)
            self._grant(key, count)
            return
        self._waiting[key] = None
        self._try_grant(key)
        waits_for = self.waits_for(key)
        if waits_for:
            log.info("%s: waits for %s", key, ", ".join(waits_for))
        self._fail_or_recover(key)

    def continued(self, key: str, count: int) -> None:
        """Continue `count` copies that were started before: they wait for no dependency."""
        self._set_wanted(key, count)
        self._grant(key, count)

    def ready(self, key: str) -> None:
        """Grant the revisions that wait for this one, after a change of its ready copies, as far as they may start."""
        for user in self._users.get(key, ()):
            if user in self._waiting:
                self._try_grant(user)

    def programs_changed(self, key: str) -> None:
        """Keep what the revision depends on, or release it: its programs, or their wanted number, have changed."""
        for needed in self._needs.get(key, ()):
            self._need(needed, len(self.users_of(needed)))

    def reported(self, change: Change) -> None:
        """Pass the failure or the recovery of a dependency on to the revisions that wait for it."""
        if isinstance(change, RevisionFailed):
            self._failures[change.key] = change
        elif isinstance(change, RevisionRecovered):
            self._failures.pop(change.key, None)
            passed_on = self._passed_on.get(change.key)
            if passed_on is not None:  # its own programs have not failed, but those that it waits for
                self._submit(passed_on)
        else:
            return
        for user in self._users.get(change.key, ()):
            self._fail_or_recover(user)

    # --- within ---

    def _set_needs(self, needs: dict[str, tuple[str, ...]]) -> None:
        users: dict[str, list[str]] = {}
        for key, named in needs.items():
            for needed in named:
                users.setdefault(needed, []).append(key)
        self._needs = needs
        self._users = {key: tuple(named_by) for key, named_by in users.items()}

    def _set_wanted(self, key: str, count: int) -> None:
        if count > 0:
            self._wanted[key] = count
        else:
            self._wanted.pop(key, None)
        self.programs_changed(key)

    def _try_grant(self, key: str) -> None:
        if key in self._waiting and all(map(self._is_ready, self._needs.get(key, ()))):
            del self._waiting[key]
            self._fail_or_recover(key)
            self._grant(key, self._wanted[key])

    def _fail_or_recover(self, key: str) -> None:
        """Report if a waiting revision now fails, with the first of its dependencies that fails, or recovers."""
        failed = None
        for needed in self._needs.get(key, ()) if key in self._waiting else ():
            cause = self._failures.get(needed) or self._passed_on.get(needed)
            if cause is not None:
                failed = RevisionFailed(key, f"{needed} is needed, and failed: {cause.cause}", cause.retry_s)
                break
        if failed == self._passed_on.get(key):
            return
        if failed is None:
            del self._passed_on[key]
            self._submit(RevisionRecovered(key))
        else:
            self._passed_on[key] = failed
            self._submit(failed)
        for user in self._users.get(key, ()):
            self._fail_or_recover(user)
