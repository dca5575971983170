"""A value that cannot be read is reported once: nothing is said about the default that stands in its place."""

from __future__ import annotations

import pytest

from activator.config.file import parse
from activator.config.forms import FILE, sections
from activator.config.key_path import Findings, KeyPath
from activator.config.reader import Reader
from activator.config.tree import read_tree
from activator.runtime.errors import ConfigError

REVISION = "name: a, hosts: [a], pods: ['h:1']"


def place_of(text: str, problems: list[str]) -> tuple[KeyPath, Findings]:
    root = read_tree(text, "a", {}, problems)
    assert root is not None
    findings = Findings(root, problems)
    return KeyPath(findings), findings


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"revisions: [{{{REVISION}, queue: {{discipline: [], header: X}}}}]", "queue.discipline: found a list"),
        (f"revisions: [{{{REVISION}, filters: [{{options: {{}}}}]}}]", 'found none, expected the key "name"'),
        (f"revisions: [{{{REVISION}, weight: x, split_on: client_ip}}]", 'revisions[0].weight: found "x"'),
        (f"revisions: [{{{REVISION}, tls: 5, protocol: h2}}]", 'revisions[0].tls: found "5"'),
        (f"revisions: [{{{REVISION}, hash_on: client_ip, policy: []}}]", "revisions[0].policy: found a list"),
        ("revisions: [{name: a, hosts: [a], process: 5}]", "revisions[0].process: found a text"),
        ("revisions: [{name: a, hosts: [[]], pods: ['h:1']}]", "revisions[0].hosts[0]: found a list"),
        ("revisions: [5]", "revisions[0]: found a text"),
        ("push: {listen: [], token: t}\nrevisions: [{name: a, hosts: [a]}]", "push.listen: found a list"),
        ("admin: {listen: '0.0.0.0:1', token: []}\nrevisions: [{" + REVISION + "}]", "admin.token: found a list"),
    ],
)
def test_an_unreadable_value_is_reported_once(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "a", {})
    (found,) = caught.value.problems
    assert problem in found


def test_the_other_elements_of_a_list_keep_their_places() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"revisions: [5,\n {{{REVISION.replace('h:1', 'h')}, aliases: []}}]", "a", {})
    first, second = caught.value.problems
    assert first.startswith("a:1: revisions[0]: ")
    assert second.startswith('a:2: revisions[1].pods[0]: found "h"')


def test_a_message_that_depends_on_an_unreadable_key_is_left_out() -> None:
    problems: list[str] = []
    place, findings = place_of("limits: {headers: x}\nlog: {}", problems)
    config = Reader(findings).read(findings.root, FILE)
    assert config.limits.headers == 100
    problems.clear()
    limits, log = place["limits"], place["log"]
    assert limits["headers"].is_unread
    assert not limits.is_unread
    assert not limits.is_whole
    assert not limits.sets("headers")
    assert "headers" in limits
    log.advise("this depends on it", beside=(limits["headers"],))
    limits["headers"].found("anything")
    limits["headers"]["below"].found("anything")
    assert problems == []
    log.advise("this does not")
    assert problems == ["a:2: log: this does not"]


def test_a_key_that_is_absent_has_the_line_of_what_would_contain_it() -> None:
    place, _ = place_of("log:\n  level: x\nrevisions:\n- name: a\n- name: b", [])
    assert (place["log"]["level"].where, place["log"]["format"].where) == ("a:2", "a:2")
    assert place["revisions"][1]["queue"]["depth"].where == "a:5"
    assert str(place["revisions"][1]["queue"]["depth"]) == "revisions[1].queue.depth"
    assert "depth" not in place["revisions"][1]["queue"]


def test_a_key_that_can_be_left_out_has_a_value_without_it() -> None:
    for path, group in sections(FILE):
        for key in group.keys.values():
            assert key.required or key.attribute not in {one.attribute for one in group.required}, path
        assert isinstance(group.zero, group.cls), path
