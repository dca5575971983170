"""The guided tour, as it runs where there is no terminal."""

from __future__ import annotations

import json

from tests.e2e.running import cli


def test_demo_without_a_terminal() -> None:
    done = cli("demo", timeout_s=90.0)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    result = json.loads(lines[-1])
    assert result["failures"] == 0
    assert result["max_pods"] >= 2
    assert result["requests"] > 100
    assert 0 < result["p50_ms"] <= result["p99_ms"]
    assert result["cold_start_ms"] > 0
    assert isinstance(result["compiled"], bool)
    assert "\x1b" not in done.stdout
    assert len(lines) > 4
