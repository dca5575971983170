"""Programs that others need: nothing is granted before them, and each is kept as long as somebody needs it."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from activator.control_plane.sources.process.dependencies import Dependencies
from activator.messages import Change, RevisionFailed, RevisionRecovered

KEYS = ["a", "b", "c", "d", "e"]
NEEDS: list[dict[str, tuple[str, ...]]] = [  # without loops: each letter needs earlier ones only
    {},
    {"b": ("a",)},
    {"c": ("a", "b"), "e": ("a",)},
    {"b": ("a",), "c": ("b",), "d": ("b", "c"), "e": ("d",)},
]


class World(RuleBasedStateMachine):
    """Revisions that are wanted, become ready, fail, and are dropped, while their dependencies change."""

    def __init__(self) -> None:
        super().__init__()
        self.needs: dict[str, tuple[str, ...]] = {}
        self.wanted: dict[str, int] = dict.fromkeys(KEYS, 0)
        self.granted: dict[str, int] = dict.fromkeys(KEYS, 0)
        self.ready: set[str] = set()
        self.awake: set[str] = set()
        self.used: dict[str, int] = dict.fromkeys(KEYS, 0)
        self.failed: dict[str, str] = {}
        self.own: set[str] = set()  # revisions that fail by themselves
        self.dependencies = Dependencies(
            self.ready.__contains__, self.awake.__contains__, self.grant, self.used.__setitem__, self.submit
        )

    def grant(self, key: str, count: int) -> None:
        assert count == self.wanted[key]
        if self.granted[key] == 0 and count:
            assert all(one in self.ready for one in self.needs.get(key, ())), "a dependency is not ready"
        self.granted[key] = count
        if count:
            self.awake.add(key)

    def submit(self, change: Change) -> None:
        if isinstance(change, RevisionFailed):
            assert change.cause.count("no memory") == 1
            self.failed[change.key] = change.cause
        else:
            assert isinstance(change, RevisionRecovered)
            del self.failed[change.key]

    @rule(key=st.sampled_from(KEYS), count=st.integers(0, 2))
    def want(self, key: str, count: int) -> None:
        if count != self.wanted[key]:
            self.wanted[key] = count
            self.dependencies.set_desired(key, count)

    @rule(key=st.sampled_from(KEYS))
    def become_ready(self, key: str) -> None:
        if self.granted[key]:
            self.ready.add(key)
            self.recover(key)
            self.dependencies.ready(key)

    @rule(key=st.sampled_from(KEYS))
    def stop(self, key: str) -> None:
        self.ready.discard(key)
        self.dependencies.ready(key)

    @rule(key=st.sampled_from(KEYS))
    def end(self, key: str) -> None:
        if key not in self.ready and not self.granted[key]:
            self.awake.discard(key)
            self.dependencies.programs_changed(key)

    @rule(key=st.sampled_from(KEYS))
    def fail(self, key: str) -> None:
        if key not in self.ready:
            self.own.add(key)
            self.dependencies.reported(RevisionFailed(key, "no memory"))

    @rule(key=st.sampled_from(KEYS))
    def recover(self, key: str) -> None:
        self.own.discard(key)
        self.dependencies.reported(RevisionRecovered(key))

    @rule(needs=st.sampled_from(NEEDS), dropped=st.sets(st.sampled_from(KEYS), max_size=2))
    def reload(self, needs: dict[str, tuple[str, ...]], dropped: set[str]) -> None:
        """Programs of removed revisions may still serve; no revision depends on a removed one."""
        dropped = {key for key in dropped if not any(key in named for named in needs.values())}
        for key in dropped:
            self.wanted[key] = self.granted[key] = 0
            self.ready.discard(key)
            self.failed.pop(key, None)
            self.own.discard(key)
            self.dependencies.drop_revision(key)
        leaving = {key: self.needs.get(key, ()) for key in dropped if key in self.awake}
        self.needs = {**{key: named for key, named in needs.items() if key not in dropped}, **leaving}
        self.dependencies.configure({key: needs.get(key, ()) for key in KEYS if key not in dropped})
        self.dependencies.refresh()

    @invariant()
    def each_is_kept_while_it_is_needed(self) -> None:
        for key in KEYS:
            users = [
                user for user, needs in self.needs.items() if key in needs and (self.wanted[user] or user in self.awake)
            ]
            assert self.used[key] == len(users) == len(self.dependencies.users_of(key))

    @invariant()
    def what_may_start_is_granted(self) -> None:
        for key in KEYS:
            missing = [one for one in self.needs.get(key, ()) if one not in self.ready]
            if self.granted[key] != self.wanted[key]:
                assert self.granted[key] == 0 and missing, "it is held, and nothing holds it"
                assert self.dependencies.waits_for(key) == missing
            else:
                assert self.dependencies.waits_for(key) == []

    @invariant()
    def who_is_held_by_a_failure_fails_and_nobody_else(self) -> None:
        def fails(key: str) -> bool:
            is_held = self.granted[key] != self.wanted[key]
            return is_held and any(one in self.own or fails(one) for one in self.needs.get(key, ()))

        for key in KEYS:
            assert (key in self.failed) == fails(key), (key, self.failed)


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_the_cause_names_the_whole_path() -> None:
    changes: list[Change] = []
    granted: list[tuple[str, int]] = []
    dependencies = Dependencies(
        lambda key: False,
        lambda key: False,
        lambda key, count: granted.append((key, count)),
        lambda key, count: None,
        changes.append,
    )
    dependencies.configure({"web": ("api",), "api": ("db",), "db": ()})
    dependencies.refresh()
    dependencies.set_desired("web", 1)
    dependencies.set_desired("api", 1)
    dependencies.set_desired("db", 1)
    dependencies.reported(RevisionFailed("db", "exit code 1", 5.0))
    assert granted == [("db", 1)]
    assert changes == [
        RevisionFailed("api", "db is needed, and failed: exit code 1", 5.0),
        RevisionFailed("web", "api is needed, and failed: db is needed, and failed: exit code 1", 5.0),
    ]
    dependencies.reported(RevisionRecovered("db"))
    assert changes[2:] == [RevisionRecovered("api"), RevisionRecovered("web")]
