"""The targets of `make fuzz` exist, and what libFuzzer writes is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import TARGETS, Outcome, covering, features_in, name_of, outcome_of, property_of

WRITTEN = """INFO: Running with entropic power schedule (0xFF, 100).
#2\tINITED cov: 17 ft: 17 corp: 1/1b exec/s: 0 rss: 61Mb
#131072\tpulse  cov: 1042 ft: 3120 corp: 80/4Kb lim: 1290 exec/s: 2114 rss: 93Mb
#140000\tDONE   cov: 1043 ft: 3121 corp: 81/4Kb lim: 1290 exec/s: 2114 rss: 93Mb
Done 140000 in 61 second(s)
"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_a_property_test(target: str) -> None:
    assert callable(property_of(target))


def test_a_property_of_any_bytes_gets_them_as_they_are() -> None:
    (target,) = [one for one in TARGETS if one.endswith(":test_random_bytes")]
    assert property_of(target)(b"\x13" * 50) == b"\x13" * 40


def test_names_are_folders_of_their_own() -> None:
    assert len({name_of(target) for target in TARGETS}) == len(TARGETS)


def test_what_is_written_is_read() -> None:
    assert outcome_of(0, WRITTEN) == Outcome(140_000, 1043, "")
    failed = outcome_of(77, WRITTEN + " === Uncaught Python exception: ===\nAssertionError: 1 != 2\n")
    assert failed == Outcome(140_000, 1043, "AssertionError: 1 != 2")
    assert outcome_of(1, "").find == "exit code 1"


def test_features_of_a_merge_are_read() -> None:
    written = "2\n0\n/a\n/b\nSTARTED 0 5\nFT 0 7 9\nCOV 0 1\nSTARTED 1 5\nFT 1\nCOV 1\n"
    assert features_in(written, [Path("/a"), Path("/b")]) == {Path("/a"): {7, 9}, Path("/b"): set()}


def test_a_few_inputs_cover_what_all_reach() -> None:
    reached = {b"long, all": {1, 2, 3}, b"all": {1, 2, 3}, b"one": {1}, b"new": {4}, b"none": set[int]()}
    assert covering(reached) == [b"all", b"new"]
    assert covering(reached, most=1) == [b"all"]
    assert covering({}) == []
