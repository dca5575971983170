"""The mistakes of the first hour: each gets a sentence that says what to write."""

from __future__ import annotations

import pytest

from activator.config.file import parse
from activator.runtime.errors import ConfigError

PROGRAM = """\
revisions:
  - name: a
    hosts: ["*"]
    process:
      command: [serve]
      {0}
"""


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml", {})
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            PROGRAM.format("").replace("[serve]", "[serve, --port, {port}]"),
            'f.yaml:5: revisions[0].process.command[2]: YAML reads {port} as a mapping: write "{port}", in quotes',
        ),
        (PROGRAM.format("memory: 2Gb"), "expected a size such as 32KiB or 1MiB: write 2GiB"),
        (PROGRAM.format("memory: 512 MB"), "expected a size such as 32KiB or 1MiB: write 512MiB"),
        (PROGRAM.format("stop: {grace: 10 minutes}"), "expected a duration such as 300ms, 5s or 2m: write 10m"),
        (PROGRAM.format("stop: {grace: 5 sec}"), "expected a duration such as 300ms, 5s or 2m: write 5s"),
        (
            PROGRAM.format("environment: [HOME=/tmp, KEY=secret]"),
            "process.environment: found a list, expected a mapping, with `HOME: VALUE` in place of `- HOME=VALUE`",
        ),
        (PROGRAM.format("env: {A: b}"), 'found the unknown key "env", expected "env_file" or "environment"'),
        ("listen: 8080\n" + PROGRAM.format(""), "expected 127.0.0.1:8080, or another host before the port"),
        (
            "listen: :8080\n" + PROGRAM.format(""),
            "expected 127.0.0.1:8080, or another host before the port",
        ),
        ("listn: 127.0.0.1:1\n" + PROGRAM.format(""), 'f.yaml:1: found the unknown key "listn", expected "listen"'),
        (
            PROGRAM.format("").replace("[serve]", "[serve, --port={port}]"),
            "did not find expected ',' or ']'; a text with {port} needs quotes: write \"--port={port}\")",
        ),
        (
            PROGRAM.format("").replace("[serve]", "[serve, 'x y', 127.0.0.1:{port}]"),
            'a text with {port} needs quotes: write "127.0.0.1:{port}"',
        ),
        (PROGRAM.format("").replace("[serve]", '"serve" --port {port}'), "write the whole text with {port} in quotes"),
        ("models: {a: {command: serve {socket}}}\n", "write the whole text with {socket} in quotes"),
        (
            PROGRAM.format("").replace("[serve]", "{port}"),
            'command: found a mapping, expected a list: [PROGRAM, "{port}"]',
        ),
        (PROGRAM.format("").replace("[serve]", "[serve"), 'the "[" in line 5 is not closed, or a comma is missing'),
        (PROGRAM.format("").replace("name: a", "name: 'a"), "the quote in line 2 is not closed"),
        (PROGRAM.format("").replace("name: a", "name:a"), 'write a space after the colon of "name"'),
        (PROGRAM.format("").replace("[serve]", "serve a: b"), "a text with a colon and a space needs quotes"),
        ("  listen: 127.0.0.1:1\nrevisions: []\n", "begin the keys of the file in the first column"),
        (
            PROGRAM.format("").replace("      command", "    command"),
            '"command", expected "command" indented below "process"',
        ),
        (
            PROGRAM.format("").replace("    hosts", "hosts").replace("    process", "#").replace("      command", "#"),
            'f.yaml:3: found the unknown key "hosts", expected "hosts" indented below "revisions", after "- "',
        ),
        ("revisions:\n  a: {hosts: [a]}\n", 'found a mapping, expected a list: write "- name: a" in place of "a:"'),
        ("revisions:\n  name: a\n", 'expected a list: write "- name: ..." in place of "name: ..."'),
        ("models:\n  - name: a\n", "models: found a list, expected a mapping, with `a:` in place of `- name: a`"),
        (
            "revisions: [{name: a, hosts: [a], process: serve}]\n",
            "expected a mapping, with `command: [PROGRAM, ARGUMENT]`",
        ),
        (PROGRAM.format("environment: [{name: A, value: s}]"), "with `A: VALUE` in place of `- name: A`"),
        (PROGRAM.format("environment: [{A: s}]"), "with `A: VALUE` in place of `- A: VALUE`"),
        (
            PROGRAM.format("environment: A=s"),
            "environment: found a text, expected a mapping, with `NAME: VALUE` in each line",
        ),
        (PROGRAM.format("idle: 2m30"), "expected a duration such as 300ms, 5s or 2m: write 150s"),
        (PROGRAM.format("idle: 1h30m"), "expected a duration such as 300ms, 5s or 2m: write 90m"),
        (PROGRAM.format("cwd: /tmp"), 'found the unknown key "cwd", expected "directory"'),
        (PROGRAM.format("idle_timeout: 5m"), 'found the unknown key "idle_timeout", expected "idle"'),
        (PROGRAM.format("").replace("name: a", "name: a\n    concurrency: 1"), 'expected "container_concurrency"'),
        (
            PROGRAM.format("").replace("name: a", "name: a\n    idle: 5m"),
            '"idle", expected "idle" indented below "process"',
        ),
        ("listen: http://127.0.0.1:8080/\n" + PROGRAM.format(""), "expected 127.0.0.1:8080, or unix:/path"),
        ("[http.routers.a]\n  rule = 1\n", "f.yaml:1: this is a file of Traefik: write each router as"),
        ("example.org {\n  reverse_proxy localhost:8080\n}\n", "f.yaml:1: this is a file of Caddy: write each site as"),
        ("http {\n  server {\n    listen 80;\n  }\n}\n", "f.yaml:1: this is a file of nginx: write each `server` as"),
        ("defaults\n  mode http\nbackend a\n", "f.yaml:1: this is a file of HAProxy: write each `backend` as"),
        ("revisions:\n\t- name: a\n", "; indent with spaces, not with tabs)"),
        ("revisions:\n  - name: a\n   hosts: 3\n", "; check the indentation: "),
        ("models:\n  llama:\n    cmd: llama-server\n", "f.yaml:1: this is a file of llama-swap: `activator import"),
        ("http:\n  routers:\n    a: {rule: x}\n", "f.yaml:1: this is a file of Traefik: write each router as"),
        ("services:\n  web: {image: nginx}\n", "f.yaml:1: this is a file of Docker Compose: write each service as"),
        ("static_resources: {}\n", "f.yaml:1: this is a file of Envoy: write each cluster as"),
    ],
)
def test_a_first_mistake_says_what_to_write(text: str, problem: str) -> None:
    assert any(problem in one for one in problems_of(text)), problems_of(text)


def test_what_would_be_refused_again_is_not_suggested() -> None:
    found = problems_of("listen: 70000\n" + PROGRAM.format("memory: 99999999999GiB"))
    assert found[0].endswith("expected host:port such as 127.0.0.1:8080 or [::1]:8080, or unix:/path")
    assert found[1].endswith("expected a size such as 32KiB or 1MiB")


def test_a_list_of_variables_shows_no_value() -> None:
    assert "secret" not in " ".join(problems_of(PROGRAM.format("environment: [HOME=/tmp, KEY=secret]")))


def test_a_hint_about_yaml_shows_no_value() -> None:
    for line in ("[x://u:secret@127.0.0.1:{port}/x]", "[a, --key=secret:{port}]", "{key: secretvalue{port}b}"):
        text = PROGRAM.format("").replace("[serve]", line)
        assert "secret" not in " ".join(problems_of(text)), line
    for line in ("KEY:secret", "KEY: [secret", "KEY: 'secret", "KEY: se: secret"):
        text = PROGRAM.format(f"environment:\n        {line}\n        B: c")
        assert "secret" not in " ".join(problems_of(text)), line


@pytest.mark.parametrize(
    "line", ["x {port} [", "'" * 999 + '"', "[" * 40 + "'x", "{port}" * 300, "a: " * 400, '"\\' * 400]
)
def test_a_hint_about_any_line_is_short(line: str) -> None:
    assert len(" ".join(problems_of(f"a: 1\n  {line}\n"))) < 2_000


def test_a_broken_file_of_ours_is_not_taken_for_another_ones() -> None:
    (problem,) = problems_of("revisions:\n- name: a\n   mode http\nserver {\n")
    assert "not YAML" in problem


def test_a_file_with_keys_of_ours_is_judged_by_them() -> None:
    found = problems_of("kubernetes: {mode: activations}\nhttp: {}\nwrkers: 2\n")
    assert [one.partition("expected")[0] for one in found] == [
        'f.yaml:2: found the unknown key "http", ',
        'f.yaml:3: found the unknown key "wrkers", ',
    ]


def test_a_file_with_revisions_is_ours_whatever_else_is_in_it() -> None:
    found = problems_of("services:\n  web: {image: nginx}\n" + PROGRAM.format(""))
    assert any('the unknown key "services"' in one for one in found)
