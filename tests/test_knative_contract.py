"""tests/knative_contract.md names a test for each behaviour of Knative's activator; each of these tests must exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "tests" / "knative_contract.md").read_text("utf-8")


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    found = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert named - found == set()


def test_all_of_the_73_behaviours_are_there() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 74))
    without_a_test = [int(number) for number, _, shown in rows if not re.search(r"`test_\w+`", shown)]
    assert without_a_test == [10], "a difference, which says why"
