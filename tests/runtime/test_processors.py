"""How many processors there are to use: the fewer of affinity and quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from activator.runtime.processors import processors

USABLE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000\n", USABLE),
        ("50000 100000\n", 1),
        ("100000 100000\n", 1),
        ("100001 100000\n", min(2, USABLE)),
        ("9999900000 100000\n", USABLE),
        ("0 100000\n", 1),
        ("", USABLE),
        ("x y\n", USABLE),
        ("100000 0\n", USABLE),
        ("100000\n", USABLE),
    ],
)
def test_the_quota_of_the_control_group_counts(tmp_path: Path, quota: str, expected: int) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    assert processors(file) == expected


def test_without_a_control_group(tmp_path: Path) -> None:
    assert processors(tmp_path / "none") == USABLE
