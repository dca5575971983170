"""A short run of the endurance test (`make soak HOURS=1`): a few disturbances, and all of its judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.__main__ import Length, run

SHORT = Length(warm_up=8.0, rest=12.0, settle=2.0, stream=(0.5, 3.0))


@pytest.mark.deep
def test_nothing_is_violated_in_a_short_run(tmp_path: Path) -> None:
    violations, text = run(tmp_path, seed=16, length=SHORT, pause_s=0.3)
    print(text)
    assert violations == []
    assert "|upgrade|" in text and "|kept|ok|" in text
