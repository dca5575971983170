"""The CustomResourceDefinition is structural, agrees with the reader, and has every key with its description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from activator.config.activation import SPEC, camel
from activator.config.crd import CONDITIONS, make_definition

Schema = dict[str, Any]


def version() -> Schema:
    found: Schema = make_definition()["spec"]["versions"][0]
    return found


def spec() -> Schema:
    found: Schema = version()["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def levels(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """The schema and every one within."""
    yield path, schema
    for name, one in schema.get("properties", {}).items():
        yield from levels(one, f"{path}.{name}")
    if "items" in schema:
        yield from levels(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from levels(schema["additionalProperties"], f"{path}{{}}")


def test_every_level_is_structural() -> None:
    """Kubernetes' rules: a type everywhere but for the two extensions; `anyOf` has no type but for int-or-string."""
    for path, one in levels(version()["schema"]["openAPIV3Schema"]):
        if one.get("x-kubernetes-int-or-string"):
            assert "type" not in one, path
            assert one["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
        elif one.get("x-kubernetes-preserve-unknown-fields"):
            assert "type" not in one, path
        else:
            assert one["type"] in {"object", "array", "string", "integer", "number", "boolean"}, path
            assert "anyOf" not in one, path
        assert not ("properties" in one and "additionalProperties" in one), path
        assert one.get("type") != "array" or "items" in one, path
        assert not (one.keys() & {"$ref", "definitions", "patternProperties", "uniqueItems", "$schema"}), path


def test_every_key_is_there_with_a_description_and_no_key_is_spelled_as_in_the_file() -> None:
    assert set(spec()["properties"]) == {camel(name) for name in SPEC.keys}
    for path, one in levels(spec()):
        for name, inner in one.get("properties", {}).items():
            assert "_" not in name, path
            if path in ("", ".target", ".queue", ".timeouts"):
                assert inner.get("description"), (path, name)
    assert "containerConcurrency" in spec()["properties"]["policy"]["description"]


def test_defaults_fit_their_own_types() -> None:
    kinds = {"string": str, "integer": int, "number": int | float, "boolean": bool}
    found = 0
    for path, one in levels(spec()):
        if "default" in one:
            found += 1
            expected = int | str if one.get("x-kubernetes-int-or-string") else kinds[one["type"]]
            assert isinstance(one["default"], expected), path
            assert one["default"] in one.get("enum", [one["default"]]), path
    assert found > 10


def test_it_has_a_status_columns_and_a_short_name() -> None:
    definition = make_definition()
    assert definition["metadata"]["name"] == "activations.activator.dev"
    assert definition["spec"]["names"]["shortNames"] == ["act"]
    assert version()["subresources"] == {"status": {}}
    assert {"Ready", "Reason", "Pods", "Wanted"} <= {one["name"] for one in version()["additionalPrinterColumns"]}
    status = version()["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert status["conditions"]["items"]["properties"]["type"]["enum"] == list(CONDITIONS)
    assert msgspec.json.decode(msgspec.json.encode(definition)) == definition
