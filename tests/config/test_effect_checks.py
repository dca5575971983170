"""Keys that have no effect without others elsewhere in the file are mistakes, unless those may come from elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from activator.config.file import parse
from activator.runtime.errors import ConfigError

KEY = {"name": "a", "key": "12345678"}
REVISION = {"name": "a", "hosts": ["a"], "pods": ["127.0.0.1:1"]}


def problems(**file: Any) -> list[str]:
    try:
        parse(yaml.safe_dump(file), "a.yaml", {})
    except ConfigError as error:
        return [one.partition(" ")[2] for one in error.problems]
    return []


def queue(discipline: str) -> dict[str, Any]:
    return {"queue": {"discipline": discipline}}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"revisions": [REVISION]}, ["priority", "weight"]),
        ({"revisions": [{**REVISION, **queue("priority")}]}, ["weight"]),
        ({"revisions": [{**REVISION, **queue("fair")}]}, ["priority"]),
        ({"revisions": [REVISION, {**REVISION, "name": "b", "hosts": ["b"], **queue("priority-fair")}]}, []),
        ({"models": {"m": {"command": "x", **queue("priority-fair")}}}, []),
        ({"models": {"m": "x"}}, ["priority", "weight"]),
        ({"revisions": [REVISION], "containers": {"discover": True}}, []),
        ({"kubernetes": {}}, []),
    ],
)
def test_the_order_of_a_user_needs_a_queue_that_uses_it(source: dict[str, Any], expected: list[str]) -> None:
    found = problems(keys=[{**KEY, "priority": 5, "weight": 2}], **source)
    assert [one.partition(":")[0] for one in found] == [f"keys[0].{key}" for key in expected]
    for key, problem in zip(expected, found, strict=True):
        discipline = "fair" if key == "weight" else "priority"
        advice = f"set `queue: {{discipline: {discipline}}}` in a revision or model, or remove it"
        assert problem == f"keys[0].{key}: `{key}` has no effect without a queue that uses it: {advice}"


@pytest.mark.parametrize("wrong", [{"discipline": ["fair"]}, {"discipline": "prio"}, "fair"])
def test_a_queue_with_a_mistake_has_one_line(wrong: Any) -> None:
    (found,) = problems(keys=[{**KEY, "priority": 5}], revisions=[{**REVISION, "queue": wrong}])
    assert found.startswith("revisions[0].queue")


@pytest.mark.parametrize(
    ("more", "is_used"),
    [
        ({}, False),
        ({"keys": [KEY]}, False),
        ({"keys": [{**KEY, "limits": {"requests": "1/s"}}]}, True),
        ({"keys_file": "users.yaml"}, True),  # which may have limits
    ],
)
def test_a_state_is_for_limits(more: dict[str, Any], is_used: bool) -> None:
    found = problems(state="s.db", revisions=[REVISION], **more)
    advice = "state: `state` has no effect without `limits` of a key: set some in `keys`, or remove it"
    assert found == ([] if is_used else [advice])


@pytest.mark.parametrize(
    ("more", "is_used"),
    [
        ({}, False),
        ({"keys": [{**KEY, "limits": {"requests": "1/s"}}]}, False),
        ({"keys": [{**KEY, "limits": {"tokens": "1/s"}}]}, True),
        ({"keys_file": "users.yaml"}, True),
    ],
)
def test_reports_of_tokens_are_asked_for_only_if_something_counts_them(more: dict[str, Any], is_used: bool) -> None:
    record = {"include_usage": True, "tokens": False, "requests": 0}
    found = problems(revisions=[{**REVISION, "record": record}], **more)
    what = "`include_usage` has no effect with `tokens: false` and no `limits.tokens` of a key: remove it"
    assert found == ([] if is_used else [f"revisions[0].record.include_usage: {what}"])


def test_a_listener_without_keys_needs_some() -> None:
    listener = {"address": "127.0.0.1:80", "keys": False}
    for listen, place in ((listener, "listen"), (["127.0.0.1:81", listener], "listen[1]")):
        (found,) = problems(listen=listen, revisions=[REVISION])
        assert found == f"{place}.keys: `keys: false` has no effect, because there are no `keys`: remove it"
        assert problems(listen=listen, revisions=[REVISION], keys=[KEY]) == []
        assert not any("keys: false" in one for one in problems(listen=listen, revisions=[REVISION], keys_file="/x"))
