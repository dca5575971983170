"""`depends_on` in a file: what may be named, and that no program can wait for itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activator.config.file import parse
from activator.runtime.errors import ConfigError


def revision(name: str, *needs: str, **more: Any) -> dict[str, Any]:
    made = {"name": name, "hosts": [f"{name}.test"], "process": {"command": ["sh"]}, "depends_on": list(needs), **more}
    return {key: value for key, value in made.items() if value is not None}


def problems_of(*revisions: dict[str, Any], **more: Any) -> list[str]:
    try:
        parse(json.dumps({"revisions": revisions, **more}), "f", {})
    except ConfigError as error:
        return [problem.partition(" ")[2] for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("revisions", "expected"),
    [
        ([revision("a", "b"), revision("b")], []),
        ([revision("a", "b"), revision("b", hosts=None)], []),
        ([revision("a", "default/b", "x/c"), revision("b"), revision("c", namespace="x", hosts=None)], []),
        (
            [revision("a", "b"), revision("b"), revision("c", hosts=None)],
            ['revisions[2].hosts: `hosts` is required: the hosts that lead to this revision, or ["*"] for all'],
        ),
        ([revision("a", "b")], ['revisions[0].depends_on[0]: there is no revision "b" in this file']),
        ([revision("a", "a")], ["revisions[0].depends_on[0]: dependency loop: a -> a"]),
        (
            [revision("a", "b"), revision("b", "c"), revision("c", "a")],
            ["revisions[2].depends_on[0]: dependency loop: c -> a -> b -> c"],
        ),
        (
            [revision("a", "b"), revision("b", process=None, pods=["127.0.0.1:1"])],
            ['revisions[0].depends_on[0]: "b" has no `process` or `container` that could be started'],
        ),
        (
            [revision("a", "b", process=None, pods=["127.0.0.1:1"]), revision("b")],
            ["revisions[0].depends_on: only a revision with `process` or `container` waits for others"],
        ),
        (
            [revision("a", *["b"] * 17), revision("b")],
            ["revisions[0].depends_on: found 17, expected at most 16 names"],
        ),
    ],
)
def test_which_revisions_may_be_named(revisions: list[dict[str, Any]], expected: list[str]) -> None:
    assert problems_of(*revisions) == expected


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (["c", "d"], []),
        (["a", "c"], ['[0]: "a" has `depends_on`, and a member of a group is started at its turn: use one of the two']),
        (["d", "b"], ['[1]: "a" depends on "b", and a member of a group may be stopped: use one of the two']),
    ],
)
def test_turns_of_a_group_and_dependencies_exclude_each_other(members: list[str], expected: list[str]) -> None:
    revisions = [revision("a", "b"), revision("b"), revision("c"), revision("d")]
    found = problems_of(*revisions, groups=[{"name": "g", "members": members, "exclusive": True}])
    assert found == [f"groups[0].members{problem}" for problem in expected]


def test_a_model_is_a_member_of_a_group() -> None:
    models = dict.fromkeys(("llama", "qwen"), "llama-server --port {port}")
    (found,) = problems_of(revision("a", "llama"), models=models)
    assert found.endswith('"a" depends on "llama", and a member of a group may be stopped: use one of the two')
