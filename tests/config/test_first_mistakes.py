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


def test_a_file_with_keys_of_ours_is_judged_by_them() -> None:
    found = problems_of("kubernetes: {mode: activations}\nhttp: {}\nwrkers: 2\n")
    assert [one.partition("expected")[0] for one in found] == [
        'f.yaml:2: found the unknown key "http", ',
        'f.yaml:3: found the unknown key "wrkers", ',
    ]


def test_a_file_with_revisions_is_ours_whatever_else_is_in_it() -> None:
    found = problems_of("services:\n  web: {image: nginx}\n" + PROGRAM.format(""))
    assert any('the unknown key "services"' in one for one in found)
