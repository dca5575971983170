"""In a container the default of `listen` is on another host; what somebody has written stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from activator.cli import BIND_HOST, _load

REVISIONS = "revisions: [{name: a, hosts: ['*'], pods: ['127.0.0.1:9']}]\n"


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("", "", "0.0.0.0:8012"),
        ("push: {listen: '127.0.0.1:8020'}\n", "", "0.0.0.0:8012"),
        ("listen: 127.0.0.1:8012\n", "", "127.0.0.1:8012"),
        ("listen: 127.0.0.1:9000\n", "", "127.0.0.1:9000"),
        ("", "127.0.0.1:8012", "127.0.0.1:8012"),
    ],
)
def test_only_what_nobody_has_written_is_moved(
    text: str, environment: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "activator.yaml"
    path.write_text(text + REVISIONS, "utf-8")
    monkeypatch.setenv(BIND_HOST, "0.0.0.0")
    if environment:
        monkeypatch.setenv("ACTIVATOR_LISTEN", environment)
    assert _load(str(path))[0].listen == expected
