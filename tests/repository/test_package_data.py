"""Each file that the program reads is part of its package, so that an installed wheel has it."""

from __future__ import annotations

import tomllib

from tests.sources import ROOT

NOT_READ = {".py", ".pyc", ".so", ".pyi", ".proto"}  # modules, and what only tools read


def test_every_file_beside_the_modules_is_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    listed = {
        path.relative_to(ROOT)
        for package, patterns in settings["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package).glob(pattern)
    }
    files = (path for package in settings["package-data"] for path in (ROOT / package).rglob("*") if path.is_file())
    data = {path.relative_to(ROOT) for path in files if path.suffix not in NOT_READ and path.name[0] != "."}
    assert data == listed and len(data) > 5
