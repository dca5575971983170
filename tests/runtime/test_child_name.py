"""Names of what Knative makes; the expected ones are what Go's kmeta.ChildName returns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.runtime.child_name import child_name, deployment, private_service


@pytest.mark.parametrize(
    ("parent", "suffix", "expected"),
    [
        ("asdf", "-deployment", "asdf-deployment"),
        ("f" * 55, "-private", "f" * 55 + "-private"),
        ("f" * 63, "-deployment", "ffffffffffffffffffff105d7597f637e83cc711605ac3ea4957-deployment"),
        ("f" * 63, "-deploy", "ffffffffffffffffffffffff105d7597f637e83cc711605ac3ea4957-deploy"),
        ("f" * 63, "f" * 63, "fffffffffffffffffffffffffffffff0502661254f13c89973cb3a83e0cbec0"),
        ("a", "f" * 63, "ab5cfd486935decbc0d305799f4ce4414ffffffffffffffffffffffffffffff"),
        ("b" * 32, "f" * 32, "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb329c7c81b9ab3ba71aa139066aa5625d"),
        ("aaaa", "b---a" * 20, "aaaa7a3f7966594e3f0849720eced8212c18b---ab---ab---ab---ab---ab"),
        ("a" * 17, "a.-.-.-.-.-.-." + "a" * 37, "aaaaaaaaaaaaaaaaaa1eb10dc911444f8434af83b7225442da"),
    ],
)
def test_as_knative_names_it(parent: str, suffix: str, expected: str) -> None:
    assert child_name(parent, suffix) == expected


@given(st.integers(1, 63))
def test_two_long_names_that_begin_alike_stay_apart_and_fit(length: int) -> None:
    for name_of in (private_service, deployment):
        one, other = name_of("a" * length), name_of("a" * length + "b")
        assert one != other and max(len(one), len(other)) <= 63
