"""The schema tells of every key, and says the same as the reader."""

from __future__ import annotations

import re

import msgspec

from activator.config.file import schema
from activator.config.model import Config
from activator.runtime.durations import parse_seconds


def test_the_schema_is_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(schema())) == schema()


def test_every_key_is_there_with_its_default() -> None:
    properties = schema()["properties"]
    assert set(properties) == set(Config.__struct_fields__)
    assert properties["admin"] == {"type": "string", "default": Config().admin}
    assert properties["workers"]["minimum"] == 1
    assert schema()["additionalProperties"] is False
    assert properties["limits"]["properties"]["held_bytes"]["default"] == 256 * 2**20


def test_the_pattern_of_a_duration_is_the_readers() -> None:
    revision = schema()["properties"]["revisions"]["items"]
    assert revision["required"] == ["name"]
    (pattern,) = [kind["pattern"] for kind in revision["properties"]["timeouts"]["properties"]["idle"]["anyOf"][1:]]
    for text in ("300ms", "5s", "2m", "7"):
        assert re.search(pattern, text) is not None
        assert parse_seconds(text) is not None
    assert re.search(pattern, "5 minutes") is None
