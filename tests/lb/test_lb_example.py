"""A policy of somebody else's: installed as a package, found by its name or its path, under contract, in this world."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import lb
from tests.installed_example import InstalledExample

Run = Callable[..., str]


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return InstalledExample("lb_policy", tmp_path_factory.mktemp("installed")).run


TABLE = """
import lb
from lb.registry import create, names
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY

assert "emptiest" in names()
for name in ("emptiest", "emptiest_policy:Emptiest"):
    policy = create(name, Rng(1))
    assert policy.name == "emptiest"
    table = TrackerTable(policy, 4)
    small, large = table.add("s", "10.0.0.1:80", 2, READY), table.add("l", "10.0.0.2:80", 8, READY)
    for _ in range(5):
        table.reserve(table.pick(0, 0.0))
    assert (small.in_flight, large.in_flight) == (1, 4), table
    table.release(large, large.generation, 0.1)
    assert table.pick(0, 0.0) is large
    table.check_invariants()
print("compiled" if lb.COMPILED else "plain")
"""


def test_it_runs_a_table_by_its_name_and_by_its_path(run: Run) -> None:
    assert run("-c", TABLE).strip() == ("compiled" if lb.COMPILED else "plain")


MANY = """
import sys
from lb.registry import create, problem_with
from lb.rng import Rng

searches = 0

class Search:
    def find_spec(self, *_):
        return None
    def find_distributions(self, *_):
        global searches
        searches += 1
        return ()

sys.meta_path.append(Search())
assert problem_with("nobody") and searches >= 1
assert problem_with("emptiest") == ""
searches = 0
for _ in range(1_000):
    assert create("emptiest", Rng(1)).name == "emptiest" and problem_with("emptiest") == ""
assert searches == 0
"""


def test_many_tables_search_for_it_once(run: Run) -> None:
    run("-c", MANY)


def test_it_keeps_the_contract(run: Run) -> None:
    found = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "source/test_emptiest_policy.py")
    assert "13 passed" in found


def test_a_configuration_may_name_it(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    text = "revisions: [{name: a, hosts: [a], pods: ['127.0.0.1:1'], policy: POLICY}]"
    for policy in ("emptiest", "emptiest_policy:Emptiest"):
        file.write_text(text.replace("POLICY", policy), "utf-8")
        assert "fine" in run("-m", "activator.cli", "check", str(file))
    file.write_text(text.replace("POLICY", "emptiest_policy:Fullest"), "utf-8")
    assert "cannot be loaded" in run("-m", "activator.cli", "check", str(file), code=1)
