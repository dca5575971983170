"""The key `record`: defaults, limits, and the default of models."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from activator.config.file import parse, resolve
from activator.config.model.file import Config
from activator.config.specs import RecordSpec
from activator.runtime.errors import ConfigError

MATCH = {"json": {"model": ["llama"]}}


def read(record: Any, **more: Any) -> Config:
    revision = {"name": "a", "hosts": ["*"], "pods": ["127.0.0.1:1"], **more}
    if record is not None:
        revision["record"] = record
    return parse(yaml.safe_dump({"revisions": [revision]}), "a.yaml", {})


def recorded(config: Config) -> RecordSpec | None:
    (spec,) = resolve(config, lambda _limit: "first-available")
    return spec.filters.record


@pytest.mark.parametrize(
    ("record", "more", "expected"),
    [
        (None, {}, None),
        (None, {"match": MATCH}, RecordSpec(True, 100, 0)),
        ({}, {}, RecordSpec(True, 100, 0)),
        ({"tokens": False, "requests": 0}, {"match": MATCH}, None),
        ({"tokens": False, "requests": 5}, {}, RecordSpec(False, 5, 0)),
        ({"include_usage": True}, {}, RecordSpec(True, 100, 0, include_usage=True)),
        ({"include_usage": True, "capture": {}}, {}, RecordSpec(True, 100, 16_384, 600.0, True)),
        ({"capture": {}}, {}, RecordSpec(True, 100, 16_384, 600.0)),
        ({"capture": {"bytes": "1KiB", "keep": "24h"}}, {}, RecordSpec(True, 100, 1_024, 86_400.0)),
    ],
)
def test_what_is_recorded(record: Any, more: dict[str, Any], expected: RecordSpec | None) -> None:
    assert recorded(read(record, **more)) == expected


def test_a_model_has_its_own() -> None:
    model = {"command": "llama-server --port {port}", "record": {"requests": 7}}
    assert recorded(parse(yaml.safe_dump({"models": {"llama": model}}), "a.yaml", {})) == RecordSpec(True, 7, 0)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"requests": 1001}, 'revisions[0].record.requests: found "1001", expected at most 1000'),
        ({"requests": -1}, 'revisions[0].record.requests: found "-1", expected a whole number of at least 0'),
        (
            {"capture": {"bytes": "65KiB"}},
            'revisions[0].record.capture.bytes: found "65KiB", expected more than 0, at most 64KiB',
        ),
        (
            {"capture": {"bytes": 0}},
            'revisions[0].record.capture.bytes: found "0", expected more than 0, at most 64KiB',
        ),
        (
            {"capture": {"keep": "25h"}},
            'revisions[0].record.capture.keep: found "25h", expected more than 0s, at most 24h',
        ),
        ({"requests": 0, "capture": {}}, "a capture belongs to a record: set `requests` above 0"),
        ({"tokenz": True}, 'found the unknown key "tokenz", expected "tokens"'),
    ],
)
def test_mistakes(record: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(record)
    (found,) = raised.value.problems
    assert problem in found
