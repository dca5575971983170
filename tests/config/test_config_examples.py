"""The configurations on the pages of the documentation are valid.

Only whole ones are read, which have `revisions`. Those that need certificates are left out; the recipes of the cookbook
are run by tests/e2e/test_e2e_cookbook.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from activator.config.file import parse

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)


def examples() -> list[tuple[str, str]]:
    """Each page's name with one of its configurations."""
    blocks = [
        (page, block) for page in (ROOT / "docs").glob("*.md") for block in BLOCK.findall(page.read_text("utf-8"))
    ]
    return [
        (page.name, block)
        for page, block in sorted(blocks)
        if re.search(r"^revisions:", block, re.MULTILINE) and ".crt" not in block
    ]


def test_there_are_examples_of_each_kind() -> None:
    pages = {page for page, _ in examples()}
    assert {"start-one-machine.md", "routing.md", "scaling.md", "groups.md", "waiting.md", "queueing.md"} <= pages


@pytest.mark.parametrize(("page", "text"), examples(), ids=lambda value: value if value.endswith(".md") else "")
def test_an_example_is_valid(page: str, text: str) -> None:
    assert parse(text, page, {}).revisions
