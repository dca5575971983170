"""The conversion of llama-swap's file: what comes out is a file of the activator, whatever went in."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from activator.config.file import parse
from activator.config.llama_swap import convert
from activator.config.model.file import Config
from activator.config.model.programs import Process
from activator.config.tree import read_tree
from activator.runtime.errors import ConfigError

# With each key, as its users write them.
FILE = """
listen: ":9292"
healthCheckTimeout: 300
logLevel: WARN
startPort: 10001
globalTTL: 600
apiKeys: ["${env.LLM_KEY}", "key-in-the-file"]
matrix: {vars: {a: main}, sets: {b: a}}
macros:
  base: >
    podman run --rm -v ${folder}:/models
    -e "CACHE=/models"
  folder: ${env.FOLDER}/models
models:
  main:
    name: The main one
    cmd: |
      ${base}
      # a comment
      --name main-${PORT} \\
      --port ${PORT}
    cmdStop: podman stop -t 30 main-${PORT}
    aliases: [main, default]
    checkEndpoint: /v1/models
    env: ["A=1", 'B=x "y"=z']
    concurrencyLimit: 8
    ttl: 3600
    unloadTimeout: 30
  "qwen:7b":
    macros: {size: 7}
    cmd: bash -c "exec server-${size}b -m ${MODEL_ID} --port 9000 --threads 90001"
    proxy: http://127.0.0.1:9000
    checkEndpoint: none
    useModelName: qwen
    filters: {stripParams: temperature}
  small:
    cmd: serve ${env.NOT_SET}
    proxy: http://localhost:7000/
    cmdStop: kill ${PID}
    ttl: 0
  embed:
    cmd: embed --port ${PORT}
  rerank:
    cmd: rerank --port ${PORT}
groups:
  always: {swap: false, exclusive: false, persistent: true, members: [embed]}
  pair: {swap: true, exclusive: false, members: [small, rerank]}
  together: {swap: false, members: [main]}
hooks: {on_startup: {preload: [embed]}}
"""
ENVIRONMENT = {"FOLDER": "/srv", "LLM_KEY": "key-of-the-environment"}


@pytest.fixture(name="converted")
def _converted() -> str:
    return convert(FILE, "config.yaml", ENVIRONMENT)


@pytest.fixture(name="config")
def _config(converted: str, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("LLM_KEY", "key-of-the-environment")
    return parse(converted, "activator.yaml", {})


def process(config: Config, name: str) -> Process:
    (found,) = [revision.process for revision in config.revisions if revision.name == name]
    assert found is not None
    return found


def test_the_file_as_a_whole(config: Config) -> None:
    assert (config.listen, config.log.level) == ("0.0.0.0:9292", "warning")
    assert [(key.name, str(key.key)) for key in config.keys] == [("user1", "env:LLM_KEY"), ("user2", "key-in-the-file")]
    assert [revision.name for revision in config.revisions] == ["main", "qwen", "small", "embed", "rerank"]
    assert {revision.timeouts.startup for revision in config.revisions} == {300.0}


def test_commands(config: Config) -> None:
    words = "podman run --rm -v /srv/models:/models -e CACHE=/models --name main-{port} --port {port}"
    assert process(config, "main").command == words.split()
    assert process(config, "main").stop.command == ["podman", "stop", "-t", "30", "main-{port}"]
    assert process(config, "qwen").command == ["bash", "-c", "exec server-7b -m qwen:7b --port {port} --threads 90001"]
    assert (process(config, "small").command, process(config, "small").port) == (["serve", "${env.NOT_SET}"], 7000)


def test_the_other_settings_of_a_model(config: Config) -> None:
    main, qwen, small, _, _ = config.revisions
    assert (main.aliases, main.container_concurrency) == (["default"], 8)
    assert (qwen.aliases, qwen.rewrite_model) == (["qwen:7b"], "qwen")
    assert [process(config, name).readiness.http_get for name in ("main", "qwen", "small")] == [
        "/v1/models", "", "/health",
    ]  # fmt: skip
    assert {name: str(value) for name, value in process(config, "main").environment.items()} == {
        "A": "1",
        "B": 'x "y"=z',
    }
    assert (process(config, "main").idle, process(config, "main").stop.grace) == (3600.0, 30.0)
    assert (process(config, "qwen").idle, process(config, small.name).idle) == (600.0, 86400.0)
    assert [name for name in ("main", "embed") if process(config, name).preload] == ["embed"]


def test_groups(config: Config) -> None:
    assert [(group.name, group.members) for group in config.groups] == [
        ("pair", ["small", "rerank"]), ("models", ["main", "qwen"]),
    ]  # fmt: skip


def test_comments_say_what_has_no_counterpart(converted: str) -> None:
    comments = "\n".join(line.strip() for line in converted.splitlines() if line.strip().startswith("#"))
    for text in (
        "matrix has no counterpart", "filters has no counterpart", "concurrencyLimit has no counterpart",
        "not needed: name", "NOT_SET is not set", "cmdStop: kill ${PID}", "the group together",
    ):  # fmt: skip
        assert text in comments
    assert "startPort" not in converted and "a comment" not in converted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models: {", "config.yaml:2: found text that is not YAML"),
        ("", "config.yaml:1: found no `models`, expected a configuration of llama-swap"),
        ("models: [a]", "config.yaml:1: found no `models`"),
    ],
)
def test_what_is_no_file_of_llama_swap(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        convert(text, "config.yaml", {})
    assert raised.value.problems[0].startswith(expected)


def test_a_macro_that_names_itself_ends() -> None:
    text = convert("macros: {a: '${a} ${a}', b: '${c}', c: '${b}'}\nmodels: {m: {cmd: 'x ${a} ${b} ${PORT}'}}", "c", {})
    assert len(text) < 1_000_000 and "{port}" in text


def test_the_message_for_such_a_file_names_the_command() -> None:
    with pytest.raises(
        ConfigError, match="this is a file of llama-swap: `activator import llama-swap FILE` converts it"
    ):
        parse("models: {a: {cmd: x}}", "a.yaml", {})


WORDS = st.sampled_from(
    ["", "a", "b:c", "x ${PORT}", "'", "\\", "a\nb", "#", "true", "5", "null", "${a}", "ä", "{port}", "-"]
)
KEYS = st.sampled_from([*re.findall(r"\b(\w+):", FILE), "unknown"])
VALUES = st.recursive(
    WORDS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | WORDS, inner, max_size=4),
    max_leaves=8,
)


@given(
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.dictionaries(WORDS, st.dictionaries(KEYS, VALUES, max_size=5), max_size=3),
)
def test_any_file_gives_yaml_whose_problems_have_places(top: dict[str, Any], models: dict[str, Any]) -> None:
    text = yaml.safe_dump({**top, "models": models}, allow_unicode=True)
    try:
        made = convert(text, "config.yaml", {})
    except ConfigError:
        return
    problems: list[str] = []
    assert read_tree(made, "activator.yaml", {}, problems) is not None or problems
    with contextlib.suppress(ConfigError):  # and no other exception
        parse(made, "activator.yaml", {})
