"""The short form of model servers: what an entry stands for, and that messages name what the user wrote."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from activator.config.file import parse
from activator.config.machine_checks import machine_problems
from activator.config.model.file import Config
from activator.config.model_entries import revision_names
from activator.config.tree import read_tree
from activator.runtime.errors import ConfigError

COMMAND = "llama-server -m a.gguf --port {port}"


def read(models: Any, environ: dict[str, str] | None = None, **more: Any) -> Config:
    return parse(yaml.safe_dump({"models": models, **more}), "a.yaml", environ or {})


def problems(text: str) -> list[str]:
    try:
        parse(text, "a.yaml", {})
    except ConfigError as error:
        return [one.removeprefix("a.yaml:") for one in error.problems]
    return []


def members(config: Config) -> list[str]:
    (group,) = config.groups
    return group.members


def test_a_line_is_a_revision_with_what_a_model_server_needs() -> None:
    (revision,) = read({"llama": COMMAND}).revisions
    assert (revision.name, revision.hosts) == ("llama", ["*"])
    assert revision.match is not None and revision.match.json is not None
    assert revision.match.json.model == ["llama"]
    assert (revision.timeouts.startup, revision.timeouts.total) == (600.0, 3600.0)
    process = revision.process
    assert process is not None
    assert process.command == ["llama-server", "-m", "a.gguf", "--port", "{port}"]
    assert (process.readiness.http_get, process.idle, process.max_scale) == ("/health", 600.0, 1)


def test_it_is_the_same_as_what_it_stands_for() -> None:
    written = {
        "name": "llama", "hosts": ["*"], "match": {"json": {"model": ["llama"]}},
        "timeouts": {"startup": "10m", "total": "1h"},
        "process": {"command": COMMAND.split(), "readiness": {"http_get": "/health"}, "idle": "10m", "max_scale": 1},
    }  # fmt: skip
    expected = parse(yaml.safe_dump({"revisions": [written]}), "b.yaml", {})
    assert read({"llama": COMMAND}).revisions == expected.revisions


@pytest.mark.parametrize(
    ("entry", "names", "aliases"),
    [
        ({"rewrite_model": "org/a"}, [], ["a"]),
        ({"rewrite_model": "org/a", "aliases": ["b"]}, [], ["a", "b"]),
        ({"rewrite_model": "a", "aliases": ["b"]}, ["a"], ["b"]),
    ],
)
def test_a_program_with_another_name_for_its_model(entry: Any, names: list[str], aliases: list[str]) -> None:
    (revision,) = read({"a": {"command": COMMAND, **entry}}).revisions
    assert revision.match is not None and revision.match.json is not None
    assert (revision.match.json.model, revision.aliases, revision.rewrite_model) == (
        names, aliases, entry["rewrite_model"],
    )  # fmt: skip


def test_every_key() -> None:
    entry = {
        "command": ["srv", "--port", "{port}"], "aliases": ["b"], "rewrite_model": "a", "needs": {"gpu": "1GiB"},
        "set_params": {"temperature": 0.5}, "strip_params": ["top_p"], "queue": {"depth": 7},
        "idle": "1h", "container_concurrency": 4, "startup": "20m", "readiness": {"http_get": "/up"}, "port": 8123,
        "preload": True, "stop": {"grace": "5s"}, "directory": "/tmp", "environment": {"A": "b"},
        "hooks": {"before_stop": [{"http_post": "/save", "body": {"filename": "a"}}]},
    }  # fmt: skip
    config = read({"a": entry}, groups=[{"name": "models", "budget": {"gpu": "2GiB"}}])
    (revision,) = config.revisions
    process = revision.process
    assert process is not None
    assert (revision.aliases, revision.rewrite_model, revision.needs, revision.container_concurrency) == (
        ["b"], "a", {"gpu": 1 << 30}, 4,
    )  # fmt: skip
    assert (revision.set_params, revision.strip_params) == ({"temperature": "0.5"}, ["top_p"])
    assert revision.queue.depth == 7
    assert (process.idle, revision.timeouts.startup, process.readiness.http_get) == (3600.0, 1200.0, "/up")
    assert (process.port, process.preload, process.stop.grace) == (8123, True, 5.0)
    assert (process.directory, process.environment) == ("/tmp", {"A": "b"})
    assert [(one.http_post, one.body) for one in process.hooks.before_stop] == [("/save", {"filename": '"a"'})]
    assert members(config) == ["a"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("a 'b c' \"d e\"", ["a", "b c", "d e"]),
        ("a\n  --b c\n", ["a", "--b", "c"]),
        ("a \\\n  --b \\\n c", ["a", "--b", "c"]),
        ('bash -c "x\n y && z"', ["bash", "-c", "x\n y && z"]),
        ("# first\na \\\n  # second\n --b", ["a", "--b"]),
    ],
)  # fmt: skip
def test_a_command_is_split_into_words(command: str, words: list[str]) -> None:
    (revision,) = read({"a": {"command": command}}).revisions
    assert revision.process is not None and revision.process.command == words


def test_one_at_a_time_but_for_those_that_are_excepted() -> None:
    config = read({"a": COMMAND, "b:1": COMMAND, "c": {"command": COMMAND, "exclusive": False}})
    (group,) = config.groups
    assert (group.name, group.members, group.exclusive) == ("models", ["a", "b-1"], True)
    assert read({"a": COMMAND}).groups == [], "one alone needs no group"


def test_a_group_of_the_file() -> None:
    budget: dict[str, Any] = {"name": "models", "budget": {"gpu": "2GiB"}}
    other = {"name": "other", "exclusive": True, "members": ["b"]}
    needs = {"command": COMMAND, "needs": {"gpu": "1GiB"}}
    models = {"a": needs, "b": COMMAND, "c": needs}
    config = read(models, groups=[other, budget])
    assert [(group.name, group.members) for group in config.groups] == [("other", ["b"]), ("models", ["a", "c"])]
    others = [{"name": "image", "hosts": ["i"], "process": {"command": ["x", "{port}"]}}]
    alone = {"name": "models", "exclusive": True, "members": ["image", "default/b"]}
    config = read({"a": COMMAND, "b": COMMAND, "c": COMMAND}, groups=[alone], revisions=others)
    assert members(config) == ["image", "default/b", "a", "c"], "models are added to what the file lists"
    with pytest.raises(ConfigError, match=r"models\.b: set `needs`"):
        read({"a": needs, "b": COMMAND}, groups=[{**budget, "members": ["a"]}])


def test_a_model_with_needs_is_one_of_the_budget_whatever_exclusive_says() -> None:
    budget = {"name": "models", "budget": {"gpu": "2GiB"}}
    needs = {"command": COMMAND, "needs": {"gpu": "1GiB"}, "exclusive": False}
    assert members(read({"a": needs}, groups=[budget])) == ["a"]


def test_a_key_of_the_short_form_in_the_environment() -> None:
    (revision,) = read({"a": COMMAND}, {"ACTIVATOR_MODELS__A__IDLE": "5m"}).revisions
    process = revision.process
    assert process is not None and (process.idle, process.command) == (300.0, COMMAND.split())


def test_beside_revisions_and_with_the_environment() -> None:
    own = {"name": "rest", "hosts": ["*"], "default": True, "pods": ["127.0.0.1:1"]}
    config = read({"a": COMMAND}, {"ACTIVATOR_MODELS__A": "other {port}"}, revisions=[own])
    assert [revision.name for revision in config.revisions] == ["rest", "a"]
    process = config.revisions[1].process
    assert process is not None and process.command == ["other", "{port}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models: {a: {idle: 10 minutes, command: x}}", ['1: models.a.idle: found "10 minutes", expected a duration']),
        ("models: {a: {}}", ['1: models.a: found none, expected the key "command"']),
        ('models:\n  a: "x \'y"', ["2: models.a: found a command with a quote that is not closed, expected words"]),
        ("models: {a: {command: 'x \\'}}", ["1: models.a.command: found a command with a backslash at its end"]),
        ("models: {a: {command: x, ttl: 5}}", ['1: models.a: found the unknown key "ttl", expected "idle"']),
        ("models: {a: }", ["1: models.a: found nothing, expected text, or a mapping"]),
        ("models: [a]", ["1: models: found a list, expected a mapping"]),
        ("models: {a: {command: x, needs: {gpu: 1}}}", ["1: models.a.needs: declare the budget that it needs a part"]),
        ("models: {'': x}", ["1: models: found an empty name, expected that of a model"]),
        ("models: {}", ["1: revisions: at least one revision is required"]),
        (
            "{models: {a: x}, revisions: [{name: a, hosts: [h], pods: ['10.0.0.1:1']}]}",
            ['1: models.a: "default/a" is t'],
        ),
        (
            "models: {a: {command: x, aliases: [b]}, b: x}",
            ['1: models.b: models.a takes all requests for "*" that this model matches: use each name of a model once'],
        ),
        (
            "models: {a: x, b: {command: x, aliases: [a]}}",
            ['1: models.b.aliases[0]: models.a takes the requests for "a": remove one of the two names'],
        ),
        (
            "models: {a: {command: x, aliases: [b]}, b: {command: x, aliases: [c]}}",
            ['1: models.b: models.a takes the requests for "b": remove one of the two names'],
        ),
        (
            "models: {a: {command: x, aliases: [b]}, b: {command: x, aliases: [c], rewrite_model: d}}",
            ['1: models.b: models.a takes the requests for "b": remove one of the two names'],
        ),
        (
            "{models: {a: x}, revisions: [{name: site, hosts: ['*'], pods: ['10.0.0.1:1']}]}",
            ['1: models.a: revisions[0] takes all requests for "*" that this model matches: set `default: true` in '],
        ),
        ("models: {a: {command: x, rewrite_model: b, aliases: [c*]}}", ["1: models.a.aliases[0]: found "]),
        ("models: {a*: {command: x, rewrite_model: b}}", ["1: models.a*: found "]),
        ("models: {a: {command: x, readiness: {http_get: up}}}", ["1: models.a.readiness.http_get: "]),
        ("models: {a: {command: x, stop: {signal: NO}}}", ["1: models.a.stop.signal: "]),
        ("models: {a: {command: x, environment: {A: b}, directory: 5}, b: [x]}", ["1: models.b: found a list"]),
    ],
)
def test_a_message_names_what_the_user_wrote(text: str, expected: list[str]) -> None:
    found = problems(text)
    assert len(found) == len(expected), found
    for problem, beginning in zip(found, expected, strict=True):
        assert problem.startswith(beginning), problem


def test_the_advice_on_a_revision_for_all_requests_can_be_followed() -> None:
    site = {"name": "site", "hosts": ["*"], "pods": ["10.0.0.1:1"], "default": True}
    assert len(read({"a": "x"}, revisions=[site]).revisions) == 2


def test_a_program_that_is_not_there() -> None:
    text = "models:\n  a: no-such-program {port}\n"
    root = read_tree(text, "a.yaml", {}, [])
    assert root is not None
    (problem,) = machine_problems(parse(text, "a.yaml", {}), root, {"PATH": "/bin"})
    assert problem.startswith("a.yaml:2: models.a: cannot start no-such-program")


@given(
    st.lists(st.text(max_size=20) | st.sampled_from(["a", "a b", "a-b", "a-b-2", "é", "漢字", "model"]), unique=True)
)
def test_every_model_has_a_name_of_its_own_for_its_revision(models: list[str]) -> None:
    names = revision_names(models)
    assert list(names) == models and len(set(names.values())) == len(models)
    for name in names.values():
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name)
