"""`no_wake`, `waiting_page`, `fallback`: what is refused, in one line, and what a revision gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from activator.config.file import parse, resolve
from activator.config.machine_checks import machine_problems
from activator.config.specs import AsyncSpec, FallbackSpec, ProgressSpec, QuietSpec, RevisionSpec, WaitingPageSpec
from activator.config.tree import read_tree
from activator.config.waiting_checks import PAGE_BYTES_MAX
from activator.runtime.errors import ConfigError

FILE = """\
revisions:
  - name: a
    hosts: [a]
    pods: ["127.0.0.1:1"]
    {}
"""


def problems_of(key: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(FILE.format(key), "f", {})
    return caught.value.problems


def resolved(key: str) -> RevisionSpec:
    (spec,) = resolve(parse(FILE.format(key), "f", {}), lambda limit: "round-robin")
    return spec


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("no_wake: [{}]", "f:5: revisions[0].no_wake[0]: say which requests: path, methods or user_agent"),
        ("no_wake: [{path: /x, status: 99}]", "revisions[0].no_wake[0].status"),
        (
            "waiting_page: {refresh: 100ms}",
            'f:5: revisions[0].waiting_page.refresh: found "100ms", expected at least 0.5s',
        ),
        ("fallback: {}", "f:5: revisions[0].fallback: one of `file`, `redirect` and `revision` is required"),
        (
            "fallback: {file: a, redirect: /b}",
            "revisions[0].fallback: one of `file`, `redirect` and `revision` is required",
        ),
        ("fallback: {redirect: status.example.com}", "expected an address such as"),
        ('fallback: {redirect: "/a\\r\\nSet-Cookie: b"}', "expected an address such as"),
        ("waiting_page: {output: true}", "only a revision with `process` or `container` has output to show"),
        ("progress: {interval: 100ms}", "at least 0.5s"),
        ("fallback: {revision: other}", 'there is no revision "other" in this file'),
        ("fallback: {revision: a}", "fallback loop: a -> a"),
        (
            "fallback: {redirect: /x, statuses: [503, 399]}",
            'revisions[0].fallback.statuses[1]: found "399", expected a status from 400 to 599, 4xx or 5xx',
        ),
        ("fallback: {redirect: /x, statuses: [3xx]}", 'found "3xx", expected a status from 400'),
        ("fallback: {redirect: /x, statuses: [5XX]}", 'found "5XX", expected a status from 400'),
        ("fallback: {statuses: [503]}", "one of `file`, `redirect` and `revision` is required"),
        ("fallback: {redirect: /x, while_starting: true}", "it has no effect without `revision`"),
        ("fallback: {redirect: /x, any_method: true}", "it has no effect without `revision` and `statuses`"),
        ("activity: {websocket: closed}", "open or traffic"),
        ("activity: {quiet_after: 500ms}", "at least 1s"),
        ("activity: {busy: {http_get: /x}}", "only a revision with `process` or `container` has a program to ask"),
        ('fallback: {redirect: "javascript:alert(1)"}', "expected an address such as"),
    ],
)
def test_mistakes_are_told_in_one_line(key: str, problem: str) -> None:
    (found,) = problems_of(key)
    assert problem in found and "\n" not in found


def test_what_a_revision_gets(tmp_path: Path) -> None:
    page = tmp_path / "wait.html"
    page.write_text("<p>$name</p>")
    spec = resolved("no_wake: [{path: /healthz, methods: [GET], user_agent: probe, status: 200}]")
    assert spec.filters.no_wake == (QuietSpec("/healthz", ("GET",), "probe", 200),)
    assert resolved("waiting_page: {}").filters.waiting_page == WaitingPageSpec(2.0)
    spec = resolved(f"waiting_page: {{refresh: 5s, file: {page}}}")
    assert spec.filters.waiting_page == WaitingPageSpec(5.0, "<p>$name</p>", output=False)
    assert resolved("progress: {interval: 7s}").filters.progress == ProgressSpec(1.0, 7.0)
    later = resolved("respond_async: {keep: 7s, requests: 8, answer_bytes: 9, bytes: 10, body_bytes: 11}")
    assert later.filters.respond_async == AsyncSpec(7.0, 8, 9, 10, 11)
    spec = resolved(f"fallback: {{file: {page}, content_type: text/plain}}")
    assert spec.filters.fallback == FallbackSpec("<p>$name</p>", "text/plain")
    spec = resolved('fallback: {redirect: /x, statuses: [503, "502", 4xx, 404]}')
    assert spec.filters.fallback == FallbackSpec(redirect="/x", statuses=(*range(400, 500), 502, 503))
    assert resolved("server_timing: false").filters.waiting_page is None


@pytest.mark.parametrize("key", ["waiting_page", "fallback"])
def test_a_file_that_cannot_be_had(key: str, tmp_path: Path) -> None:
    large, binary = tmp_path / "large", tmp_path / "binary"
    large.write_bytes(b"x" * (PAGE_BYTES_MAX + 1))
    binary.write_bytes(b"\xff")
    for path, cause in (
        (tmp_path / "missing", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (large, "is larger than 256 KiB"),
        (binary, "is not UTF-8 text"),
    ):
        text = FILE.format(f"{key}: {{file: {path}}}")
        with pytest.raises(ConfigError) as caught:
            resolve(parse(text, "f", {}), lambda limit: "round-robin")
        assert caught.value.problems == [f"{path}: {cause}"], "a start and a reload refuse it"
        root = read_tree(text, "f", {}, [])
        assert root is not None
        problems = machine_problems(parse(text, "f", {}), root, os.environ)
        assert problems == [f"f:5: revisions[0].{key}.file: {path}: {cause}"], "`check` finds it with its line"


def test_circles_of_fallbacks_are_found_once() -> None:
    names = {"a": "b", "b": "other/c", "c": "d", "d": "a", "e": "a", "f": "f"}
    revisions = [
        f"  - {{name: {name}, namespace: {'other' if name == 'c' else 'default'}, hosts: [{name}.test], "
        f"pods: ['127.0.0.1:1'], fallback: {{revision: {'default/' if name == 'c' else ''}{to}}}}}"
        for name, to in names.items()
    ]
    with pytest.raises(ConfigError) as caught:
        parse("\n".join(["revisions:", *revisions]), "f", {})
    assert [problem.partition("revision: ")[2] for problem in caught.value.problems] == [
        "fallback loop: d -> a -> b -> other/c -> d",
        "fallback loop: f -> f",
    ]


def test_a_chain_of_fallbacks() -> None:
    text = """revisions:
  - {name: a, hosts: [a.test], pods: ['127.0.0.1:1'], fallback: {revision: b, while_starting: true}}
  - {name: b, namespace: default, hosts: [b.test], pods: ['127.0.0.1:1'], fallback: {revision: other/c}}
  - {name: c, namespace: other, hosts: [c.test], pods: ['127.0.0.1:1']}
"""
    specs = resolve(parse(text, "f", {}), lambda limit: "round-robin")
    to_b, to_c = FallbackSpec(revision="default/b", while_starting=True), FallbackSpec(revision="other/c")
    assert [spec.filters.fallback for spec in specs] == [to_b, to_c, None]


@pytest.mark.parametrize(
    ("busy", "problem"),
    [
        ("http_get: /x, interval: 500ms", "at least 1s"),
        ("http_get: x", "a path such as /api/status"),
        ("http_get: '/x y'", "a path such as /api/status"),
        ("field: y", "http_get"),
    ],
)
def test_how_a_program_cannot_be_asked(busy: str, problem: str) -> None:
    text = f"revisions:\n  - {{name: a, hosts: [a], process: {{command: [x]}}, activity: {{busy: {{{busy}}}}}}}\n"
    with pytest.raises(ConfigError) as caught:
        parse(text, "f", {})
    (found,) = caught.value.problems
    assert problem in found


def test_a_container_is_a_program_that_is_asked_and_has_output() -> None:
    text = (
        "revisions: [{name: a, hosts: [a], container: {image: x}, waiting_page: {output: true},"
        " activity: {busy: {http_get: /api/status}}}]"
    )
    (revision,) = parse(text, "f", {}).revisions
    assert revision.activity.busy is not None and revision.waiting_page is not None and revision.waiting_page.output


def test_what_counts_as_activity() -> None:
    filters = resolved("server_timing: false").filters
    assert (filters.quiet_tunnels_s, filters.quiet_streams_s) == (0, 0)
    filters = resolved("activity: {websocket: traffic, stream: traffic, quiet_after: 90s}").filters
    assert (filters.quiet_tunnels_s, filters.quiet_streams_s) == (90.0, 90.0)
