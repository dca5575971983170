"""The users of a file: what is wrong with a key, and how rights change with a reload."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.app.users import KeysFile, UserRights
from activator.config.file import parse, resolve
from activator.config.machine_checks import machine_problems
from activator.config.specs import UserSpec
from activator.config.tree import read_tree
from activator.config.user_keys import KEYS_FILE_BYTES_MAX, shared_users, users_in
from activator.messages import Command, SetUsers
from activator.runtime.errors import ConfigError
from lb.registry import default_name

HASH = hashlib.sha256(b"12345678").hexdigest().upper()


def key_problems(keys: str, revision: str = "") -> list[str]:
    text = f"{{keys: [{keys}], revisions: [{{name: a, hosts: [a], pods: ['127.0.0.1:1']{revision}}}]}}"
    try:
        parse(text, "a.yaml", {})
    except ConfigError as error:
        return [one.removeprefix("a.yaml:1: ") for one in error.problems]
    return []


@pytest.mark.parametrize(
    ("origins", "is_right"),
    [
        ("'*'", True),
        ("'https://a.test', 'http://localhost:3000', 'tauri://localhost', 'http://[::1]:80'", False),
        ("'https://a.test', 'http://localhost:3000', 'tauri://localhost', 'http://[::1]:81'", True),
        ("'https://a.test/'", False),
        ("'https://A.test'", False),
        ("'https://a.test:443'", False),
        ("a.test", False),
        ("'null'", False),
        ("'https://*.a.test'", False),
    ],
)
def test_origins_are_as_browsers_send_them(origins: str, is_right: bool) -> None:
    text = f"{{cors: {{origins: [{origins}]}}, revisions: [{{name: a, hosts: [a], pods: ['127.0.0.1:1']}}]}}"
    try:
        parse(text, "a.yaml", {})
    except ConfigError as error:
        (found,) = error.problems
        assert found.startswith("a.yaml:1: cors.origins[") and found.endswith(
            'expected an origin such as https://app.example.com, or "*"'
        )
        assert not is_right
    else:
        assert is_right


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("{name: a, key: 12345678}, {name: b, key: none, revisions: [a, default/a]}", []),
        (
            "{name: a, key: 12345678, priority: 7}",
            ["keys[0].priority: `priority` has no effect without a queue that uses it: set `queue: {discipline: prio"],
        ),
        (
            "{name: a, key: 12345678, weight: 2}",
            ["keys[0].weight: `weight` has no effect without a queue that uses it: set `queue: {discipline: fair}`"],
        ),
        ("{name: a, key: 12345678, priority: 8}", ['keys[0].priority: found "8"']),
        ("{name: a, key: 12345678, more_keys: [87654321]}", []),
        (
            "{name: a, key: 12345678, more_keys: [12345678]}",
            ["keys[0]: it has the same key twice: remove one of the two"],
        ),
        (
            "{name: a, key: 87654321, more_keys: [12345678]}, {name: b, key: 12345678}",
            ["keys[1]: keys[0] has the same key: requests could not be told apart, so change or remove one of the two"],
        ),
        ("{name: a, key: 87654321, more_keys: [12]}", ["keys[0].key: a key has at least 8 ASCII characters"]),
        ("{name: a, key: 12345678, weight: 0}", ['keys[0].weight: found "0"']),
        ("{name: a, key: 12345678, weight: 1001}", ['keys[0].weight: found "1001"']),
        ("{name: a@b.c, key: 'sha256:" + 64 * "a" + "'}", []),
        ("{key: 12345678}", ["keys[0]"]),
        ("{name: a}", ['keys[0]: found none, expected the key "key"']),
        ("{name: a, key: }", ["keys[0].key: found nothing, expected text"]),
        ("{name: 'a b', key: 12345678}", ['keys[0].name: found "a b", expected a name of at most 63 letters']),
        (
            "{name: a, key: 12345678}, {name: a, key: 87654321}",
            ["keys[1].name: keys[0] has this name, too: for several keys of a user use `more_keys`"],
        ),
        ("{name: a, key: 12345678}, {name: b, key: 12345678}", ["keys[1]: keys[0] has the same key: "]),
        (
            f"{{name: a, key: 12345678}}, {{name: b, key: 'sha256:{HASH}'}}",
            ["keys[1]: keys[0] has the same key: "],
        ),
        ("{name: a, key: none}, {name: b, key: none}", ["keys[1]: keys[0] is for requests without a key, too: remove"]),
        (
            "{name: a, key: 1234567}",
            ["keys[0].key: a key has at least 8 ASCII characters without spaces: `op"],
        ),
        ("{name: a, key: '1234 5678'}", ["keys[0].key: a key has at least 8"]),
        ("{name: a, key: 'sha256:abc'}", ["keys[0].key: after `sha256:`, 64 hex digits are required"]),
        ("{name: a, key: 'env:NOT_SET_HERE'}", ["keys[0].key: the environment variable NOT_SET_HERE is not"]),
        ("{name: a, key: 'file:/nowhere'}", ["keys[0].key: the file /nowhere cannot be read"]),
        ("{name: a, key: 12345678, limits: {concurrency: 2, requests: 60/min, tokens: 1.001M/day}}", []),
        (
            "{name: a, key: 12345678, limits: {requests: 1/s, response_tokens: 5}}",
            ["keys[0].limits.response_tokens: `response_tokens` has no effect without `tokens`"],
        ),
        ("{name: a, key: 12345678, limits: {}}", ["keys[0].limits: it needs at least one of `concurrency`"]),
        ("{name: a, key: 12345678, limits: {requests: 60}}", ['keys[0].limits.requests: found "60", expected a numbe']),
        (
            "{name: a, key: 12345678, limits: {tokens: 1m/day}}",
            ['keys[0].limits.tokens: found "1m/day", expected a number per period, such as 60/min, 10/s or 1M/day'],
        ),
        ("{name: a, key: 12345678, limits: {tokens: 0/s}}", ['keys[0].limits.tokens: found "0/s", expected a number']),
        ("{name: a, key: 12345678, limits: {tokens: 0.5/s}}", ['keys[0].limits.tokens: found "0.5/s"']),
        ("{name: a, key: 12345678, limits: {concurrency: 0}}", ['keys[0].limits.concurrency: found "0", expected a']),
        ("{name: a, key: 12345678, revisions: [b]}", ['keys[0].revisions[0]: found "b", expected the name of a rev']),
        ("{name: a, key: 12345678, revisions: [other/a]}", ['keys[0].revisions[0]: found "other/a", expected the na']),
    ],
)
def test_what_is_wrong_with_a_key(keys: str, expected: list[str]) -> None:
    found = key_problems(keys)
    assert len(found) == len(expected)
    for problem, beginning in zip(found, expected, strict=True):
        assert problem.startswith(beginning)
        assert "12345678" not in problem


def test_several_keys_of_a_user_are_read_once_each() -> None:
    team = "{name: a, key: 12345678, more_keys: [87654321], limits: {requests: 5/s}}"
    text = f"{{keys: [{team}, {{name: b, key: none}}], kubernetes: {{}}}}"
    users = users_in(parse(text, "a.yaml", {}))
    assert [(user.name, len(user.digest), user.quota is None) for user in users] == [
        ("a", 32, False),
        ("a", 32, False),
        ("b", 0, True),
    ]
    assert users[0].digest != users[1].digest


def test_a_key_in_the_place_of_the_list_is_not_shown() -> None:
    with pytest.raises(ConfigError) as raised:
        parse("{keys: s3cret-s3cret, kubernetes: {}}", "a.yaml", {})
    assert raised.value.problems == ["a.yaml:1: keys: found a text, expected a list"]


REVISIONS = st.none() | st.lists(st.sampled_from(["a", "b", "c"]), max_size=3).map(tuple)
USERS = st.lists(
    st.builds(UserSpec, st.sampled_from(["x", "y"]), st.sampled_from([b"", b"1", b"2"]), REVISIONS),
    max_size=3,
    unique_by=lambda user: user.digest,
).map(tuple)


def rights(users: tuple[UserSpec, ...]) -> set[tuple[bytes, str]]:
    return {(one.digest, key) for one in users for key in "abc" if one.revisions is None or key in one.revisions}


@given(USERS, USERS)
def test_during_a_reload_rights_are_those_of_before_and_after(
    before: tuple[UserSpec, ...], after: tuple[UserSpec, ...]
) -> None:
    between = shared_users(before, after)
    assert rights(between) == rights(before) & rights(after)
    assert [user.name for user in between] == [user.name for user in after], "their counts go on"


def test_keys_are_checked_without_revisions_in_the_file() -> None:
    with pytest.raises(ConfigError, match="at least 8 ASCII characters"):
        parse("{keys: [{name: a, key: short}], kubernetes: {}}", "a.yaml", {})


def test_levels_need_a_header_or_a_key_with_one() -> None:
    priority = ", queue: {discipline: priority}"
    (problem,) = key_problems("{name: a, key: 12345678}", priority)
    assert problem.startswith("revisions[0].queue.header: `discipline: priority` requires `header`")
    assert key_problems("{name: a, key: 12345678, priority: 0}", priority) == []


def test_shares_need_a_header_or_keys() -> None:
    fair = ", queue: {discipline: fair}"
    text = f"{{revisions: [{{name: a, hosts: [a], pods: ['127.0.0.1:1']{fair}}}]}}"
    with pytest.raises(ConfigError) as error:
        parse(text, "a.yaml", {})
    problem = error.value.problems[0].removeprefix("a.yaml:1: ")
    assert problem.startswith("revisions[0].queue.header: `discipline: fair` requires `header`")
    assert key_problems("{name: a, key: 12345678}", fair) == []
    assert key_problems(", ".join(f"{{name: n{n}, key: k1234567{n}}}" for n in range(1_001))) != []


def test_an_empty_list_does_not_let_everybody_in() -> None:
    (problem,) = key_problems("")
    assert problem == "keys: it is empty: delete `keys` to let everybody in, or name a user with a key"


def test_a_model_is_named_by_its_revision() -> None:
    text = "{{keys: [{{name: a, key: 12345678, revisions: ['{0}']}}], models: {{'qwen:7b': x}}}}"
    with pytest.raises(ConfigError) as error:
        parse(text.format("qwen:7b"), "a.yaml", {})
    assert error.value.problems == [
        'a.yaml:1: keys[0].revisions[0]: the revision of this model is "qwen-7b": write that'
    ]
    assert users_in(parse(text.format("qwen-7b"), "a.yaml", {}))[0].revisions == ("default/qwen-7b",)


def test_a_weight_may_be_beside_that_of_a_queue() -> None:
    """The one of the queue counts there, so both are useful."""
    keys = "{name: a, key: 12345678, weight: 3}, {name: b, key: 87654321}"
    fair = ", queue: {discipline: fair, weights: {a: 5}}"
    text = f"{{keys: [{keys}], revisions: [{{name: a, hosts: [a], pods: ['127.0.0.1:1']{fair}}}]}}"
    assert [user.weight for user in users_in(parse(text, "a.yaml", {}))] == [3, 1]


# --- reloads ---


def user(name: str, *revisions: str, digest: bytes = b"") -> UserSpec:
    return UserSpec(name, digest or name.encode(), revisions)


class Reloads:
    """Rights, of which the test decides when revisions are in effect."""

    def __init__(self) -> None:
        self.sent: list[tuple[UserSpec, ...] | None] = []
        self.settling: list[Coroutine[Any, Any, None]] = []
        self.rights = UserRights(self._send, self._settle, self._start)

    def _send(self, command: Command) -> None:
        assert isinstance(command, SetUsers)
        self.sent.append(command.users)

    async def _settle(self) -> None:
        pass

    def _start(self, name: str, task: Coroutine[Any, Any, None]) -> None:
        self.settling.append(task)

    def settle(self) -> None:
        for task in self.settling:
            asyncio.run(task)
        self.settling.clear()


def test_rights_end_at_once_and_begin_when_revisions_are_in_effect() -> None:
    reloads = Reloads()
    reloads.rights.begin((user("alice", "a"), user("bob", "a")))
    reloads.rights.change((user("alice", "a", "b"), user("carol", "a")))
    assert reloads.sent[1:] == [(user("alice", "a"), UserSpec("carol", b"carol", ()))]
    reloads.settle()
    assert reloads.sent[2:] == [(user("alice", "a", "b"), user("carol", "a"))]
    reloads.rights.change((user("alice", "a", "b"), user("carol", "a")))
    assert len(reloads.sent) == 3, "nothing has changed"


def test_keys_that_are_no_longer_required_are_required_until_then() -> None:
    reloads = Reloads()
    reloads.rights.begin((user("alice", "a"),))
    reloads.rights.change(())
    assert len(reloads.sent) == 1
    reloads.settle()
    assert reloads.sent[1:] == [None]
    reloads.rights.change((user("alice", "a"),))
    assert reloads.sent[2:] == [(user("alice", "a"),)] and reloads.settling == [], "at once"


def test_a_file_without_keys_requires_none() -> None:
    reloads = Reloads()
    reloads.rights.begin(())
    assert reloads.sent == [None]


def test_the_folder_of_the_state_is_checked_on_this_machine(tmp_path: Path) -> None:
    advice = "create the folder, and let this user write there"
    problem = f"f:1: state: no file can be made in {tmp_path}/nowhere: {advice}"
    for folder, problems in ((tmp_path, []), (tmp_path / "nowhere", [problem])):
        keys = "[{name: a, key: 12345678, limits: {requests: 1/s}}]"
        text = (
            f"{{state: {folder}/state.db, keys: {keys}, revisions: [{{name: a, hosts: [a], pods: ['127.0.0.1:1']}}]}}"
        )
        root = read_tree(text, "f", {}, [])
        assert root is not None
        assert machine_problems(parse(text, "f", {}), root, {}) == problems


# --- a file of users ---


LISTED = "- {name: alice, key: alices-secret-key, revisions: [a]}\n"


def with_file(path: Path, keys: str = "", revision: str = "") -> str:
    revisions = f"[{{name: a, hosts: [a], pods: ['127.0.0.1:1']{revision}}}]"
    return f"{{keys: [{keys}], keys_file: '{path}', revisions: {revisions}}}"


def test_users_of_both_files(tmp_path: Path) -> None:
    path = tmp_path / "users.yaml"
    path.write_text(LISTED)
    config = parse(with_file(path, "{name: bob, key: bobs-secret-key}"), "a.yaml", {})
    assert [(one.name, one.revisions) for one in users_in(config)] == [("bob", None), ("alice", ("default/a",))]
    path.write_text('[{"name": "carol", "key": "carols-secret-key", "limits": {"requests": "1/s"}}]')
    assert [one.name for one in users_in(config)] == ["bob", "carol"]
    fair = with_file(path, "", ", container_concurrency: 1, queue: {discipline: priority}")
    parse(fair, "a.yaml", {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ":1: keys_file: it names no user, so that no key is valid: add `- {name: alice, key: ...}`, or delete `k"),
        ("[]", ":1: keys_file: found a list, expected at least one user"),
        ("- {name: a}", ':1: keys_file[0]: found none, expected the key "key"'),
        ("- {name: a, key: secret}", ":1: keys_file[0].key: a key has at least 8"),
        ("- {name: bob, key: other-key-of-bob}", ":1: keys_file[0].name: keys[0] has this name, too"),
        ("- {name: a, key: bobs-secret-key}", ":1: keys_file[0]: keys[0] has the same key: "),
        ("- {name: a, key: none}\n- {name: b, key: none}", ":2: keys_file[1]: keys_file[0] is for requests without"),
        ("- {name: a, key: a-key-of-b, revisions: [b]}", ':1: keys_file[0].revisions[0]: found "b", expected the name'),
        ("- {name: a, key: a-key-of-b, colour: red}", ':1: keys_file[0]: found the unknown key "colour"'),
        ("- {name: a\n", ":2: "),
        ("\xff", ": it is not UTF-8"),
        ("x" * (KEYS_FILE_BYTES_MAX + 1), ": it is larger than 1 MiB"),
        (None, ": cannot be read: No such file or directory"),
    ],
)
def test_each_mistake_in_a_file_of_users_has_one_line(tmp_path: Path, text: str | None, expected: str) -> None:
    path = tmp_path / "users.yaml"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as error:
        resolve(parse(with_file(path, "{name: bob, key: bobs-secret-key}"), "a.yaml", {}), default_name)
    (found,) = error.value.problems
    assert found.startswith(f"{path}{expected}")
    assert "secret" not in found.removeprefix(str(path))


class Watched:
    """A file of users, and what was sent because of it."""

    def __init__(self, path: Path, **more: str) -> None:
        self.path = path
        self.reloads = Reloads()
        self.config = parse(with_file(path, **more), "a.yaml", {})
        self.reloads.rights.begin(users_in(self.config))
        self.file = KeysFile(lambda: self.config, self.reloads.rights)

    def check(self, times: int = 2) -> None:
        for _ in range(times):
            asyncio.run(self.file.check())
        self.reloads.settle()

    def names(self) -> list[str]:
        users = self.reloads.sent[-1]
        assert users is not None
        return [user.name for user in users]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    path = tmp_path / "users.yaml"
    path.write_text(LISTED)
    path.chmod(0o600)
    return Watched(path)


def test_a_changed_file_of_users_takes_effect_when_it_is_complete(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    watched.check()
    assert len(watched.reloads.sent) == 1 and caplog.messages == []
    watched.path.write_text(LISTED + "- {name: bob, key: bobs-secret-key}\n")
    watched.check(1)
    watched.path.write_text(LISTED + "- {name: bob, key: bobs-secret-key, revisions: [a]}\n")  # it was being written
    watched.check(1)
    assert len(watched.reloads.sent) == 1
    watched.check(1)
    assert watched.names() == ["alice", "bob"] and watched.reloads.sent[-1] is not None
    assert all(user.revisions == ("default/a",) for user in watched.reloads.sent[-1])
    assert caplog.messages == [f"keys_file {watched.path}: the keys of 2 users are valid now"]
    other = watched.path.with_suffix(".new")
    other.write_text("- {name: carol, key: carols-secret-key}\n")
    other.chmod(0o600)
    other.rename(watched.path)
    watched.check()
    assert watched.names() == ["carol"]
    count = len(watched.reloads.sent)
    os.utime(watched.path, (1, 1))
    watched.check()
    assert len(watched.reloads.sent) == count and len(caplog.messages) == 2, "it is the same list"


@pytest.mark.parametrize(
    "text", ["", "[]", "- {name: alice", "- {name: alice, key: short}\n- {name: 'x y', key: k}", None]
)
def test_a_mistake_in_a_changed_file_changes_nothing(
    watched: Watched, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    if text is None:
        watched.path.unlink()
    else:
        watched.path.write_text(text)
    watched.check(5)
    assert len(watched.reloads.sent) == 1
    (line,) = caplog.messages
    assert line.startswith(f"keys_file {watched.path} changes nothing: {watched.path}:")
    assert "short" not in line and "\n" not in line
    watched.path.write_text(LISTED.replace("alice", "bob"))
    watched.path.chmod(0o600)
    watched.check()
    assert watched.names() == ["bob"]


def test_a_file_that_others_can_read_is_reported_once(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.path.chmod(0o644)
    watched.check(3)
    expected = f"keys_file {watched.path} can be read by all users of this machine (mode 0644): chmod 600"
    assert caplog.messages == [expected]
    watched.path.chmod(0o640)
    watched.check(3)
    watched.path.chmod(0o644)
    watched.check(3)
    assert caplog.messages == [expected, expected]


def test_a_reload_is_not_undone_by_an_earlier_reading(watched: Watched) -> None:
    """The file is replaced by `keys` while it is read."""
    watched.check(1)
    text = "{keys: [{name: dave, key: daves-secret-key}], revisions: [{name: a, hosts: [a], pods: ['127.0.0.1:1']}]}"
    watched.config = parse(text, "a.yaml", {})
    watched.reloads.rights.change(users_in(watched.config))
    watched.check(3)
    assert watched.names() == ["dave"]


def test_a_reload_during_a_reading_is_not_undone(watched: Watched) -> None:
    watched.check()
    before = watched.config
    watched.path.write_text(LISTED.replace("alice", "bob"))
    watched.check(1)
    reloaded = parse(with_file(watched.path), "a.yaml", {})
    seen = iter([before, reloaded])
    watched.file._config = lambda: next(seen)
    watched.check(1)
    assert len(watched.reloads.sent) == 1


def test_what_was_used_of_a_quota_is_no_change(tmp_path: Path) -> None:
    reloads = Reloads()
    (alice,) = (user("alice", "a"),)
    reloads.rights.begin((msgspec.structs.replace(alice, used=(1.0, 2.0)),))
    assert not reloads.rights.change((alice,))
