"""The development environment is the one that requirements-dev.txt writes down, and that file is whole."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

import pytest
from packaging.specifiers import SpecifierSet

from tests.sources import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCKED = [line for line in (ROOT / "requirements-dev.txt").read_text("utf-8").splitlines() if line[:1] not in ("", "#")]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_versions() -> dict[str, str]:
    return {canonical(name): version for name, _, version in (line.partition("==") for line in LOCKED)}


def name_and_rest(requirement: str) -> tuple[str, str]:
    match = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?(.*)", requirement)
    assert match is not None
    return canonical(match[1]), match[2]


def test_every_line_is_an_exact_version() -> None:
    assert [line for line in LOCKED if re.fullmatch(r"[\w.-]+==[\w.]+", line) is None] == []


def test_every_dependency_is_locked() -> None:
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    ours = {f"{project['name']}[all]"}
    exact = [*(set(extras["dev"]) - ours), *PYPROJECT["build-system"]["requires"]]
    locked = locked_versions()
    for requirement in exact:
        name, rest = name_and_rest(requirement)
        assert rest == f"=={locked[name]}", f"{requirement}: run `make lock`"
    for requirement in [*project["dependencies"], *extras["kubernetes"], *extras["tracing"]]:
        assert name_and_rest(requirement)[0] in locked, f"{requirement}: run `make lock`"


@pytest.mark.parametrize(("name", "version"), sorted(locked_versions().items()))
def test_the_environment_is_the_locked_one(name: str, version: str) -> None:
    assert importlib.metadata.version(name) == version, "run `make build`"


@pytest.mark.parametrize("name", sorted(locked_versions()))
def test_what_is_locked_installs_on_the_oldest_python(name: str) -> None:
    """Debian 12 has 3.11.2: one package that needed 3.11.5 made `make test` fail there."""
    needed = importlib.metadata.metadata(name).json.get("requires_python")
    assert needed is None or SpecifierSet(str(needed)).contains("3.11.0"), needed
