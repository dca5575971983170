"""An Activation is read as a revision of the file is, with the keys spelled as Kubernetes spells them."""

from __future__ import annotations

from typing import Any

import pytest

from activator.config.activation import Declared, camel, item_of, read_spec
from activator.config.crd import make_definition
from activator.config.model.revision import Revision
from lb.registry import names

TARGET = {"name": "model"}


def read(**spec: Any) -> tuple[Declared | None, list[str]]:
    problems: list[str] = []
    found = read_spec(
        item_of({"target": TARGET, **spec}, "Activation default/hello"), "default", "hello", set(names()), problems
    )
    return found, problems


def declared(**spec: Any) -> Declared:
    found, problems = read(**spec)
    assert problems == []
    assert found is not None
    return found


def test_what_is_not_said_is_as_in_the_file() -> None:
    found = declared()
    assert found.revision == Revision(name="hello")
    assert (found.activation.target.name, found.activation.target.kind) == ("model", "Deployment")
    assert (found.activation.port, found.activation.patience) == (8080, 60.0)


def test_a_transparent_one() -> None:
    found = declared(mode="transparent", transparent={"service": "web", "lookInterval": "10m", "zeroOnly": True})
    assert found.activation.mode == "transparent"
    said = found.activation.transparent
    assert (said.service, said.look_interval, said.zero_only, said.burst_capacity) == ("web", 600.0, True, None)
    assert declared().activation.mode == "proxy"


def test_keys_are_spelled_as_kubernetes_spells_them() -> None:
    found = declared(
        hosts=["model.example.com"],
        containerConcurrency=3,
        policy="consistent-hash",
        hashOn={"header": "X-User"},
        queue={"depth": 5, "timeout": "5s", "discipline": "fair", "header": "X-Tenant", "weights": {"paid_up": 3}},
        timeouts={"firstByte": 3, "tunnelIdle": "1m"},
        port="http",
        lenientPods=True,
    )
    revision = found.revision
    assert (revision.hosts, revision.container_concurrency) == (["model.example.com"], 3)
    assert revision.hash_on is not None
    assert (revision.queue.depth, revision.queue.timeout) == (5, 5.0)
    assert revision.queue.weights == {"paid_up": 3}, "text that is not a key stays as it is"
    assert (revision.timeouts.first_byte, revision.timeouts.tunnel_idle) == (3.0, 60.0)
    assert (found.activation.port, revision.lenient_pods) == ("http", True)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"mode": "transparant"}, 'spec.mode: found "transparant", expected one of proxy, transparent'),
        (
            {"mode": "transparent", "transparent": {"burstCapacity": -2}},
            'spec.transparent.burstCapacity: found "-2", expected -1, 0 or more requests',
        ),
        (
            {"mode": "transparent", "transparent": {"lookInterval": "0s"}},
            'spec.transparent.lookInterval: found "0s", expected more than 0s',
        ),
        (
            {"container_concurrency": 3},
            'spec: found the key "container_concurrency" of the file, expected "containerConcurrency"',
        ),
        (
            {"containerConcurency": 3},
            'spec: found the unknown key "containerConcurency", expected "containerConcurrency"',
        ),
        ({"target": {"nam": "x"}}, 'spec.target: found the unknown key "nam", expected "name"'),
        ({"queue": {"depth": -5}}, 'spec.queue.depth: found "-5", expected a whole number of at least 0'),
        ({"timeouts": {"firstByte": "soon"}}, "spec.timeouts.firstByte: found"),
        ({"timeouts": {"first_byte": "3s"}}, 'spec.timeouts: found the key "first_byte" of the file'),
        ({"port": 0}, "spec.port: found"),
        ({"port": "8080x_y"}, "spec.port: found"),
        ({"hosts": ["a b"]}, "spec.hosts[0]: found"),
        ({"process": {"command": ["x"]}}, 'spec: found the unknown key "process"'),
        ({"pods": ["127.0.0.1:1"]}, 'spec: found the unknown key "pods"'),
        ({"policy": "best"}, "spec.policy: found"),
        ({"target": "model"}, "spec.target: found"),
        ({"allow": ["10.0.0"]}, "spec.allow[0]: found"),
        ({"rateLimit": {"requests": "many"}}, "spec.rateLimit.requests: found"),
        ({"headers": {"request": {"set": {"a b": "c"}}}}, "spec.headers.request.set.a b: 'a b' is no name"),
        (
            {"headers": {"request": {"set": {"X": "env:HOME"}}}},
            "spec.headers.request.set.X: `env:` and `file:` are only",
        ),
        (
            {"headers": {"response": {"append": {"X": "file:/etc/passwd"}}}},
            "spec.headers.response.append.X: `env:` and",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line_with_the_keys_as_they_were_written(spec: dict[str, Any], problem: str) -> None:
    found, problems = read(**spec)
    assert found is None
    assert any(one.startswith(f"Activation default/hello: {problem}") for one in problems), problems
    assert all("\n" not in one for one in problems)


def test_all_mistakes_are_told() -> None:
    _, problems = read(containerConcurrency="many", queue={"depth": "deep"}, container_concurrency=1, bogus=1)
    assert len(problems) == 4


def test_one_kind_of_spelling() -> None:
    assert [camel(name) for name in ("port", "first_byte", "a_b_c")] == ["port", "firstByte", "aBC"]


# --- as an API server stores it ---


def stored(schema: dict[str, Any], value: Any) -> Any:
    """Fill the defaults of the schema in, wherever an object is given, as an API server does."""
    if isinstance(value, list):
        return [stored(schema["items"], one) for one in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    filled = {name: one["default"] for name, one in schema["properties"].items() if "default" in one} | value
    return {name: stored(schema["properties"][name], one) for name, one in filled.items()}


SPEC_SCHEMA = make_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
GIVEN: list[dict[str, Any]] = [
    *({name: {}} for name, one in SPEC_SCHEMA["properties"].items() if "properties" in one and "required" not in one),
    {"queue": {"timeout": "0s"}},
    {"queue": {"discipline": "priority", "header": "X-Priority"}},
    {"queue": {"rules": [{"pathPrefix": "/healthz", "exempt": True}]}},
]


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_defaults_that_an_api_server_fills_in_are_no_mistakes(given: dict[str, Any]) -> None:
    assert read(**given)[1] == [], "as it was written"
    spec = stored(SPEC_SCHEMA, {"target": TARGET, **given})
    problems: list[str] = []
    read_spec(item_of(spec, "Activation default/hello"), "default", "hello", set(names()), problems)
    assert problems == []
