"""The versions of a release agree, and a tag that does not is refused."""

from __future__ import annotations

import pytest

import activator
from tests.release import problems


def test_the_versions_agree() -> None:
    assert problems(f"v{activator.__version__}") == []


@pytest.mark.parametrize("tag", ["v9.9.9", activator.__version__, "latest"])
def test_a_tag_that_does_not_match_is_refused(tag: str) -> None:
    assert any("the tag is" in one for one in problems(tag))
