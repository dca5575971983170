"""The committed corpora of the fuzzer: each input is replayed through the property of its target.

A find is mended, and becomes an example of its test. Hypothesis takes an input for the strategies that a test has now:
of one that has changed, some inputs may have become invalid.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.fuzz import COMMITTED, INPUT_MAX_BYTES, INPUTS_MAX, TARGETS, committed, name_of, property_of


@pytest.mark.parametrize("target", TARGETS, ids=name_of)
def test_a_committed_corpus_is_replayed(target: str) -> None:
    inputs = committed(target)
    assert inputs, f"{target} has no corpus: make fuzz, and python -m tests.fuzz --minimise {name_of(target)}"
    assert len(inputs) <= INPUTS_MAX and max(map(len, inputs)) <= INPUT_MAX_BYTES
    assert settings.default is not None and settings.default.database is None, "nothing is written to the repository"
    one_input = property_of(target)
    used = sum(one_input(one) is not None for one in inputs)
    assert 2 * used >= len(inputs), f"only {used} of {len(inputs)} inputs are valid: python -m tests.fuzz --minimise"


def test_a_corpus_has_a_target() -> None:
    assert {path.name for path in COMMITTED.iterdir()} == {f"{name_of(target)}.txt" for target in TARGETS}
