"""The list of planted bugs fits the sources: `python -m tests.planted` can run each row."""

from __future__ import annotations

import pytest

from tests.planted import Bug, bugs, out_of_date, with_bug
from tests.sources import ROOT

BUGS = bugs()


def test_numbers_are_unique() -> None:
    assert [bug.number for bug in BUGS] == [str(number) for number in range(1, len(BUGS) + 1)]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.number)
def test_no_row_is_out_of_date(bug: Bug) -> None:
    assert out_of_date(bug) == ""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.number)
def test_a_bug_changes_one_line(bug: Bug) -> None:
    source = (ROOT / bug.file).read_text("utf-8")
    planted = with_bug(source, bug)
    compile(planted, bug.file, "exec")
    pairs = zip(source.splitlines(), planted.splitlines(), strict=True)
    assert [(old.strip(), new.strip()) for old, new in pairs if old != new] == [(bug.line, bug.bug)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"file": "activator/none.py"}, "activator/none.py does not exist"),
        ({"function": "none"}, "occurs 0 times"),
        ({"line": "def none():"}, "occurs 0 times"),
        ({"bug": BUGS[0].line}, "changes nothing"),
        ({"found_by": ""}, "`new` is found and `found_by` is empty"),
        ({"new": "missed"}, "`new` is missed"),
        ({"found_by": "tests/none.py"}, "tests/none.py does not exist"),
    ],
)
def test_a_row_that_is_out_of_date_is_reported(changes: dict[str, str], reason: str) -> None:
    assert reason in out_of_date(BUGS[0]._replace(**changes))


def test_the_counts_in_contributing_are_those_of_the_list() -> None:
    """CONTRIBUTING.md has the number of rows, and how many each suite finds."""
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text("utf-8").split())
    found = sum(bug.new == "found" for bug in BUGS)
    assert f"lists {len(BUGS)} bugs" in text
    assert f"finds {found} of them (column `new`)" in text
