"""The import of a file with each key of llama-swap's format: it passes `check`, and no key is lost or misdescribed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import yaml

from activator.config.file import parse
from activator.config.llama_swap import convert
from activator.config.model.file import Config
from activator.runtime.errors import ConfigError

FORMAT: Final = (Path(__file__).parent / "llama_swap_format.yaml").read_text("utf-8")
ENVIRONMENT: Final = {"MODELS": "/srv", "LLM_KEY": "key-of-the-environment"}
# Keys that are converted, or that need no counterpart.
QUIET: Final = {
    "healthCheckTimeout", "logLevel", "logTimeFormat", "logToStdout", "metricsMaxInMemory", "ui", "performance",
    "startPort", "includeAliasesInList", "globalTTL", "unloadTimeout", "macros", "apiKeys", "models", "hooks",
    "cmd", "env", "proxy", "checkEndpoint", "ttl", "useModelName", "aliases", "cmdStop",
    "routing", "filters",
}  # fmt: skip


def read(text: str) -> tuple[Config, list[str]]:
    """Return the file of the activator for such a file, and its comments."""
    made = convert(text, "config.yaml", ENVIRONMENT)
    comments = [line.strip().removeprefix("# ") for line in made.splitlines() if line.strip().startswith("#")]
    return parse(made, "activator.yaml", {}), comments[1:]


@pytest.fixture(name="environment", autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def test_every_name_of_a_model_is_served() -> None:
    config, comments = read(FORMAT)
    mistral, phi, boxed = config.revisions
    assert (mistral.name, mistral.rewrite_model) == ("mistral", "mistralai/mistral-small")
    assert mistral.aliases == ["mistral", "gpt-4o", "gpt-4.1", "assistant-large", "mistral:think"]
    assert (phi.aliases, boxed.aliases) == ([], [])
    assert mistral.process is not None and mistral.process.preload
    assert [(group.name, group.members) for group in config.groups] == [("models", ["mistral", "phi"])]
    assert "the alias phi is a name of phi, which gets its requests" in comments


def test_every_key_is_converted_or_named_in_a_comment() -> None:
    _, comments = read(FORMAT)
    text = "\n".join(comments)
    tree = yaml.safe_load(FORMAT)
    for key in {*tree, *tree["models"]["mistral"], *tree["models"]["phi"], *tree["models"]["boxed"]} - QUIET:
        assert key in text, key
    for key in (
        "filters.setParamsByID",
        "aliases.gpt-4o.unlisted",
        "routing.scheduler",
        "routing.router.settings.matrix",
    ):
        assert f"{key} has no counterpart" in text
    assert "use" not in {line.partition(" ")[0].rpartition(".")[2] for line in comments}


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("captureBuffer: 5", "captureBuffer has no counterpart: see `record.capture` (docs/records.md)"),
        ("store: {path: a}", "store has no counterpart: see `record.requests` (docs/records.md)"),
        ("logRequests: true", "logRequests has no counterpart: see `access_log`"),
    ],
)
def test_a_hint_names_what_there_is(key: str, hint: str) -> None:
    _, comments = read(f"{{models: {{a: {{cmd: 'x ${{PORT}}'}}}}, {key}}}")
    assert comments == [hint]


@pytest.mark.parametrize(
    ("others", "is_unloaded"),
    [
        ("h: {exclusive: false, members: [b]}", False),
        ("h: {exclusive: true, members: [b]}", True),
        ("h: {exclusive: false, members: []}", True),  # b is in llama-swap's own group of all other models
    ],
)
def test_only_exclusive_groups_unload_models_of_others(others: str, is_unloaded: bool) -> None:
    groups = f"groups: {{g: {{exclusive: false, members: [a]}}, {others}}}"
    _, comments = read(f"{{models: {{a: {{cmd: 'x ${{PORT}}'}}, b: {{cmd: 'y ${{PORT}}'}}}}, {groups}}}")
    assert any("unloads it for models of other groups" in line for line in comments) == is_unloaded


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("aliases: [{name: x}]", "models.a.aliases[0]: found a mapping, expected a text, or a mapping with `id`"),
        ("aliases: [b, [c]]", "models.a.aliases[1]: found a list, expected a text, or a mapping with `id`"),
        ("aliases: ['']", "models.a.aliases[0]: found an empty text, expected a text, or a mapping with `id`"),
        ("env: [{A: b}]", "models.a.env[0]: found a mapping, expected a text"),
        ("filters: {setParamsByID: [b]}", "models.a.filters.setParamsByID: found a list, expected a mapping"),
    ],
)
def test_an_element_of_the_wrong_kind_is_not_left_out(key: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(f"models: {{a: {{cmd: x, {key}}}}}", "config.yaml", {})
    assert caught.value.problems == [f"config.yaml:1: {problem}"]


def test_a_key_of_the_wrong_kind_does_not_appear_in_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        convert("{models: {a: {cmd: x}}, apiKeys: [{secret: value}, '']}", "config.yaml", {})
    assert caught.value.problems == [
        "config.yaml:1: apiKeys[0]: found a mapping, expected a text",
        "config.yaml:1: apiKeys[1]: found an empty text, expected a text",
    ]


def test_a_path_of_windows_is_pointed_out() -> None:
    _, comments = read("models: {a: {cmd: 'C:\\llama\\server.exe --port ${PORT}'}}")
    assert comments == ["write / in place of each backslash of a path: words are split as in a POSIX shell"]


def test_a_name_of_two_models_leads_to_the_first() -> None:
    config, comments = read(
        "{models: {a: {cmd: 'x ${PORT}', aliases: [c]}, b: {cmd: 'y ${PORT}', aliases: [c, d], unlisted: false}}}"
    )
    assert [revision.aliases for revision in config.revisions] == [["c"], ["d"]]
    assert comments == ["the alias c is a name of a, which gets its requests"]


def test_a_model_without_a_command_is_named_in_a_comment() -> None:
    config, comments = read(
        "{models: {a: {cmd: 'x ${PORT}'}, b: {proxy: 'https://b.example'}}, groups: {g: {members: [a, b]}}}"
    )
    assert [revision.name for revision in config.revisions] == ["a"]
    assert comments[-1].startswith("b has no `cmd`: add a revision with `pods`")
