"""docs/configuration.md is what the code says (`make docs` writes it)."""

from __future__ import annotations

import re

from activator.config.model.file import FIXED_KEYS, Config
from activator.config.reference import keys, markdown
from tests.sources import ROOT


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs/configuration.md").read_text("utf-8") == markdown(), "run `make docs`"


def test_every_key_of_the_file_is_in_the_page() -> None:
    text = markdown()
    paths = {path for path, _ in keys()}
    assert set(Config.__struct_fields__) <= paths
    for path in ("revisions[].process.directory", "revisions[].process.min_scale", "limits.idle", "listen.key"):
        assert path in paths
    for path, key in keys():
        assert f"\n|`{key.name}`|" in text, path


def test_the_page_names_what_a_reload_cannot_change() -> None:
    (line,) = [line for line in markdown().splitlines() if line.startswith("A reload does not change")]
    assert set(re.findall(r"`(\w+)`", line)) == set(FIXED_KEYS)
