"""Classes of other packages: found by name or path, searched for once, and refused with a reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import DistributionFinder
from pathlib import Path

import pytest

from activator.runtime.plugins import PluginError, load_plugin

GROUP = "activator.test_plugins"


class Searches(DistributionFinder):
    """Counts the searches through all packages, and finds none."""

    def __init__(self) -> None:
        self.count = 0

    def find_spec(self, *_: object) -> None:
        return None

    def find_distributions(self, context: object = None) -> list[object]:  # type: ignore[override]
        self.count += 1
        return []


@pytest.fixture
def searches() -> Iterator[Searches]:
    finder = Searches()
    sys.meta_path.append(finder)
    yield finder
    sys.meta_path.remove(finder)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package with one entry point; returns its name."""
    name = "plugin_of_this_test"
    (tmp_path / f"{name}.py").write_text("class Made:\n    pass\n", "utf-8")
    info = tmp_path / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nmade = {name}:Made\nbroken = {name}:Missing\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_thousand_uses_search_once(package: str, searches: Searches) -> None:
    found = load_plugin(GROUP, "made", "filter")
    assert found is load_plugin(GROUP, f"{package}:Made", "filter")
    before = searches.count
    assert before > 0
    assert all(load_plugin(GROUP, "made", "filter") is found for _ in range(1_000))
    assert searches.count == before


def test_what_is_not_found_is_said(package: str) -> None:
    with pytest.raises(
        PluginError, match=r"no filter is called 'nobody'; there are broken, made, package\.module:Class"
    ):
        load_plugin(GROUP, "nobody", "filter")
    with pytest.raises(PluginError, match="filter 'broken' cannot be loaded: AttributeError"):
        load_plugin(GROUP, "broken", "filter")
    with pytest.raises(PluginError, match=r"filter 'no\.such:Class' cannot be loaded: ModuleNotFoundError"):
        load_plugin(GROUP, "no.such:Class", "filter")
