"""The schema has every key with its description, default and bounds, and agrees with the reader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from activator.config.checks import Checker
from activator.config.file import schema
from activator.config.forms import FILE, Key
from activator.config.key_path import Findings, KeyPath
from activator.config.model.file import Config
from activator.config.reader import UNREADABLE, Reader
from activator.config.reference import keys
from activator.config.tree import read_tree
from activator.runtime.durations import parse_seconds


def properties_of(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property, at any depth, with its path."""
    for name, one in schema.get("properties", {}).items():
        yield path + name, one
        yield from properties_of(one, f"{path}{name}.")
    if "items" in schema:
        yield from properties_of(schema["items"], f"{path}[].")
    for one in schema.get("anyOf", []):
        yield from properties_of(one, path)


def test_the_schema_is_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(schema())) == schema()


def test_every_key_is_there_with_its_default() -> None:
    properties = schema()["properties"]
    assert set(properties) == set(Config.__struct_fields__)
    assert (properties["metrics"]["type"], properties["admin"]["default"]) == ("object", Config().admin)
    assert properties["workers"]["anyOf"] == [
        {"type": "integer", "minimum": 1, "maximum": 256},
        {"enum": ["auto"]},
    ]
    assert properties["workers"]["default"] == 1
    assert schema()["additionalProperties"] is False
    assert properties["limits"]["properties"]["held_bytes"]["default"] == 256 * 2**20


def test_every_property_has_a_description() -> None:
    properties = dict(properties_of(schema()))
    assert len(properties) > 120
    assert [path for path, one in properties.items() if not one.get("description", "").endswith(".")] == []


def test_the_words_of_the_schema_are_those_of_the_checks() -> None:
    properties = dict(properties_of(schema()))
    assert properties["revisions.[].queue.discipline"]["enum"] == ["fifo", "priority", "fair", "priority-fair"]
    for path, one in properties.items():
        assert one.get("default", "") in one.get("enum", [one.get("default", "")]), path
        assert set(one.get("examples", [])) <= set(one["enum"]) if "enum" in one else True, path


def test_the_pattern_of_a_duration_is_the_readers() -> None:
    revision = schema()["properties"]["revisions"]["items"]
    assert revision["required"] == ["name"]
    (pattern,) = [kind["pattern"] for kind in revision["properties"]["timeouts"]["properties"]["idle"]["anyOf"][1:]]
    for text in ("300ms", "5s", "2m", "7"):
        assert re.search(pattern, text) is not None
        assert parse_seconds(text) is not None
    assert re.search(pattern, "5 minutes") is None


@pytest.mark.parametrize(("path", "key"), [pytest.param(path, key, id=path) for path, key in keys()])
def test_every_key_has_an_example_that_can_be_read(path: str, key: Key) -> None:
    assert key.examples or key.group is not None, path
    for example in key.examples:
        problems: list[str] = []
        text = yaml.safe_dump({"value": example})
        root = read_tree(text, "example", {}, problems)
        assert root is not None
        assert root.entries is not None
        reader = Reader(Findings(root, problems))
        assert reader.read(root.entries["value"], key.form, ("value",)) is not UNREADABLE, problems
        assert problems == []


# But for those that need another key, or a file.
CHECKABLE = [
    pytest.param(path, key, id=path)
    for path, key in keys()
    if key.examples
    and not path.startswith(("listen.", "revisions[]", "groups[]", "keys[]", "models."))
    and path not in {"push.token", "push.token_file", "push.networks", "state"}
]
MEMBERS = {"listen": "0.0.0.0:8015", "peers": ["10.0.0.1:8015"], "key_file": "k"}  # none of which stands alone


@pytest.mark.parametrize(("path", "key"), CHECKABLE)
def test_the_examples_of_the_file_itself_pass_the_checks(path: str, key: Key) -> None:
    for example in key.examples:
        if "certificate" in str(example):
            continue
        tree: Any = example
        for name in reversed(path.split(".")):
            tree = {name: tree}
        if path.startswith("admin.") and path != "admin.listen":
            tree["admin"].setdefault("address", "unix:/run/admin.sock")
        if path in {"kubernetes.namespace", "kubernetes.service"}:
            tree["kubernetes"]["mode"] = "activations"
        if "members" in tree:
            tree["members"] = {**MEMBERS, **tree["members"]}
        problems: list[str] = []
        text = yaml.safe_dump({"revisions": [{"name": "a", "hosts": ["*"], "pods": ["h:1"]}], **tree})
        root = read_tree(text, "example", {}, problems)
        assert root is not None
        findings = Findings(root, problems)
        Checker(KeyPath(findings), None).check(Reader(findings).read(root, FILE))
        assert problems == []
