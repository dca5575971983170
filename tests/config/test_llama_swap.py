"""The conversion of llama-swap's file: what comes out is a file of the activator, whatever went in."""

from __future__ import annotations

import contextlib
import hashlib
import json
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
from activator.config.user_keys import users_of
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
    filters: {stripParams: "temperature, model,top_p", setParams: {seed: 1, stop: ["1"], model: x}, setParamsByID: {}}
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
    assert [revision.name for revision in config.revisions] == ["main", "qwen-7b", "small", "embed", "rerank"]
    assert {revision.timeouts.startup for revision in config.revisions} == {300.0}


def test_commands(config: Config) -> None:
    words = "podman run --rm -v /srv/models:/models -e CACHE=/models --name main-{port} --port {port}"
    assert process(config, "main").command == words.split()
    assert process(config, "main").stop.command == ["podman", "stop", "-t", "30", "main-{port}"]
    assert process(config, "qwen-7b").command == [
        "bash",
        "-c",
        "exec server-7b -m qwen:7b --port {port} --threads 90001",
    ]
    assert (process(config, "small").command, process(config, "small").port) == (["serve", "${env.NOT_SET}"], 7000)


def test_the_other_settings_of_a_model(config: Config) -> None:
    main, qwen, small, _, _ = config.revisions
    assert (main.aliases, main.container_concurrency) == (["default"], 8)
    assert (qwen.aliases, qwen.rewrite_model) == (["qwen:7b"], "qwen")
    assert (qwen.strip_params, qwen.set_params) == (["temperature", "top_p"], {"seed": "1", "stop": '["1"]'})
    assert [process(config, name).readiness.http_get for name in ("main", "qwen-7b", "small")] == [
        "/v1/models", "", "/health",
    ]  # fmt: skip
    assert {name: str(value) for name, value in process(config, "main").environment.items()} == {
        "A": "1",
        "B": 'x "y"=z',
    }
    assert (process(config, "main").idle, process(config, "main").stop.grace) == (3600.0, 30.0)
    assert (process(config, "qwen-7b").idle, process(config, small.name).idle) == (600.0, 86400.0)
    assert [name for name in ("main", "embed") if process(config, name).preload] == ["embed"]


def test_groups(config: Config) -> None:
    assert [(group.name, group.members) for group in config.groups] == [
        ("pair", ["small", "rerank"]), ("models", ["main", "qwen-7b"]),
    ]  # fmt: skip


def test_comments_say_what_has_no_counterpart(converted: str) -> None:
    comments = "\n".join(line.strip() for line in converted.splitlines() if line.strip().startswith("#"))
    for text in (
        "matrix has no counterpart", "filters.setParamsByID has no counterpart", "concurrencyLimit has no counterpart",
        "not needed: name", "NOT_SET is not set", "cmdStop: kill ${PID}", "the group together",
    ):  # fmt: skip
        assert text in comments
    assert "startPort" not in converted and "a comment" not in converted


def read(text: str, environ: dict[str, str] | None = None) -> tuple[Config, str]:
    """The file of the activator for such a file, and its comments."""
    made = convert(text, "config.yaml", environ or {})
    comments = [line.strip() for line in made.splitlines() if line.strip().startswith("#")]
    return parse(made, "activator.yaml", {}), "\n".join(comments[1:])


def entry(keys: str, more: str = "") -> str:
    return (
        f"{{models: {{a: {{cmd: 'x ${{PORT}}', {keys}}}, b: {{cmd: 'y ${{PORT}}'}}, c: {{cmd: 'z ${{PORT}}'}}}}{more}}}"
    )


@pytest.mark.parametrize(
    ("ttl", "global_ttl", "idle_s"),
    [("-1", "300", 300.0), ("0", "300", 86_400.0), ("60", "300", 60.0), ("-1", "0", 86_400.0)],
)
def test_how_long_a_model_stays(ttl: str, global_ttl: str, idle_s: float) -> None:
    config, _ = read(entry(f"ttl: {ttl}", f", globalTTL: {global_ttl}"))
    assert process(config, "a").idle == idle_s


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("a: x", {"a": ("x", ["a"]), "b": ("", [])}),
        ("a: b", {"a": ("b", ["a"]), "b": ("", [])}),  # requests for b are not for the program of a
        ("a: x, b: x", {"a": ("x", ["a"]), "b": ("x", ["b"])}),
        ("a: b, b: d", {"a": ("b", ["a"]), "b": ("d", ["b"])}),
        ("a: z", {"a": ("z", ["a"]), "b": ("", ["z"])}),
        ("a: a", {"a": ("", []), "b": ("", [])}),
    ],
)
def test_a_program_gets_the_name_that_it_expects_under_the_models_name(names: str, expected: dict[str, Any]) -> None:
    wanted = yaml.safe_load(f"{{{names}}}")
    models: dict[str, Any] = {name: {"cmd": f"{name} ${{PORT}}"} for name in ("a", "b")}
    for name, one in wanted.items():
        models[name]["useModelName"] = one
    if names == "a: z":
        models["b"]["aliases"] = ["z"]
    config, comments = read(yaml.safe_dump({"models": models}))
    assert {one.name: (one.rewrite_model, one.aliases) for one in config.revisions} == expected
    assert "useModelName" not in comments


@pytest.mark.parametrize(
    ("groups", "expected", "comment"),
    [
        ("models: {exclusive: false, members: [a, b]}", [("models-2", ["a", "b"])], "unloads it for models of other"),
        ("'my group': {exclusive: no, members: [b, a]}", [("my-group", ["a", "b"])], "unloads it for models of other"),
        ("g: {swap: no, exclusive: off, members: [a]}", [("models", ["b", "c"])], "unloads it for models of other"),
        ("g: {persistent: true, members: [a]}", [("models", ["a", "b", "c"])], "`persistent`"),
        ("g: {members: [a, nope]}", [("models", ["a", "b", "c"])], "the group g: there is no model nope"),
        ("g: {members: [a], foo: 1}", [("models", ["a", "b", "c"])], "groups.g.foo has no counterpart"),
    ],
)
def test_groups_as_people_write_them(groups: str, expected: list[tuple[str, list[str]]], comment: str) -> None:
    config, comments = read(entry("ttl: 0", f", groups: {{{groups}}}"))
    assert [(group.name, group.members) for group in config.groups] == expected
    assert comment in comments


def test_no_key_of_routing_and_hooks_is_lost() -> None:
    groups = "groups: {g: {swap: false, exclusive: false, members: [a]}}"
    routing = f"routing: {{router: {{use: matrix, settings: {{matrix: {{x: y}}, {groups}}}}}}}"
    hooks = "hooks: {on_startup: {preload: [z], other: 3}, foo: 1}"
    config, comments = read(entry("aliases: [z], unlisted: true", f", {routing}, {hooks}"))
    assert process(config, "a").preload and [group.members for group in config.groups] == [["a", "b", "c"]]
    assert "# routing.router.settings.groups: not in use, as there is a matrix" in comments
    for key in (
        "routing.router.use",
        "routing.router.settings.matrix",
        "hooks.foo",
        "hooks.on_startup.other",
        "unlisted",
    ):
        assert f"# {key} has no counterpart" in comments
    assert "# unlisted has no counterpart: every name of a model is in `/v1/models`" in comments


@pytest.mark.parametrize(
    ("command", "port", "expected"),
    [
        ("docker run -p 8000:8000 image", "8000", "docker run -p {port}:8000 image"),
        ("docker run -p 127.0.0.1:8000:8000 image", "8000", "docker run -p 127.0.0.1:{port}:8000 image"),
        ("x --port=9001 --top 9001", "9001", "x --port={port} --top 9001"),
        ("x --listen 127.0.0.1:5000", "5000", "x --listen 127.0.0.1:{port}"),
        ("x 5000 5000", "5000", "x 5000 5000"),  # nobody knows which one it is
    ],
)
def test_a_fixed_port(command: str, port: str, expected: str) -> None:
    config, _ = read(f"models: {{a: {{cmd: '{command}', proxy: 'http://127.0.0.1:{port}'}}}}")
    assert process(config, "a").command == expected.split()
    assert process(config, "a").port == (None if "{port}" in expected else int(port))


def test_keys_are_those_that_clients_have() -> None:
    keys = "apiKeys: ['env:a-real-key', none, '${m}', 'k${env.ZZ}-and-more'], macros: {m: of-a-macro}"
    config, _ = read(entry("ttl: 0", f", {keys}"), {"ZZ": "zz"})
    digests = [user.digest for user in users_of(config.keys)]
    assert digests == [
        hashlib.sha256(key).digest() for key in (b"env:a-real-key", b"none", b"of-a-macro", b"kzz-and-more")
    ]


def test_what_is_expanded_merged_and_bounded() -> None:
    config, comments = read(
        entry(
            "checkEndpoint: '${path}', env: [A=1, A=2, 'B=env:X'], concurrencyLimit: -1",
            ", macros: {path: up}, healthCheckTimeout: 0",
        )
    )
    assert process(config, "a").readiness.http_get == "/up"
    assert {name: str(value) for name, value in process(config, "a").environment.items()} == {"A": "2"}
    assert config.revisions[0].timeouts.startup == 15.0 and config.revisions[0].container_concurrency == 0
    assert "env: B begins with env:" in comments
    config, _ = read("x: &base {cmd: 'x ${PORT}', ttl: 5}\nmodels: {a: {<<: *base, ttl: 9}, b: {<<: [*base]}}")
    assert [(one.command, one.idle) for one in (process(config, "a"), process(config, "b"))] == [
        (["x", "{port}"], 9.0), (["x", "{port}"], 5.0),
    ]  # fmt: skip


def test_a_line_end_in_a_key_does_not_leave_its_comment() -> None:
    _, comments = read(entry('"k\\nrevisions": 3', ', "z\\nlisten: 3": 4'))
    assert "# k revisions has no counterpart" in comments and "# z listen: 3 has no counterpart" in comments


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (entry("ttl: 0", ", apiKeys: s3cret-s3cret"), "config.yaml:1: apiKeys: found a text, expected a list"),
        (entry("aliases: x"), "config.yaml:1: models.a.aliases: found a text, expected a list"),
        (entry("env: 5"), "config.yaml:1: models.a.env: found a text, expected a list"),
        (entry("macros: [1]"), "config.yaml:1: models.a.macros: found a list, expected a mapping"),
        (entry("cmdStop: [x]"), "config.yaml:1: models.a.cmdStop: found a list, expected a text"),
        (
            entry("ttl: 0", ", groups: {g: {members: a}}"),
            "config.yaml:1: groups.g.members: found a text, expected a list",
        ),
        ("models: {a: x}", "config.yaml:1: models.a: found a text, expected a mapping"),
    ],
)
def test_a_value_of_the_wrong_kind_is_not_left_out(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        convert(text, "config.yaml", {})
    (found,) = raised.value.problems
    assert found.startswith(problem)


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


def test_parameters_reach_our_file_whatever_they_contain() -> None:
    text = """
macros: {seven: 7, quote: 'say "hi"', name: qwen}
models:
  a:
    cmd: x ${PORT}
    filters:
      stripParams: "${name}, top_p,top_p, model"
      setParams: {p: "${quote}", q: "${seven}", r: "${seven} up",
        s: ["\\U0001F600 \\u0085x"], t: {u: "1"}, "": 1, model: m}
"""
    config, comments = read(text)
    (revision,) = config.revisions
    assert revision.strip_params == ["qwen", "top_p"] and "filters" not in comments
    assert {name: json.loads(value) for name, value in revision.set_params.items()} == {
        "p": 'say "hi"',
        "q": 7,
        "r": "7 up",
        "s": ["\U0001f600 \u0085x"],
        "t": {"u": "1"},
    }


@pytest.mark.parametrize(
    ("filters", "problem"),
    [
        ("{stripParams: [a]}", "models.a.filters.stripParams: found a list, expected a text"),
        ("{setParams: [a]}", "models.a.filters.setParams: found a list, expected a mapping"),
        ("[a]", "models.a.filters: found a list, expected a mapping"),
    ],
)
def test_filters_of_another_kind_are_mistakes(filters: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(f"models: {{a: {{cmd: x, filters: {filters}}}}}", "config.yaml", {})
    assert [one.partition(" ")[2] for one in caught.value.problems] == [problem]
