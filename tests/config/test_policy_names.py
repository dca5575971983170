"""Policies by name: what is built in costs no search for packages."""

from __future__ import annotations

import os
import subprocess
import sys

from activator.config.policy_names import PolicyNames
from lb.registry import names


def test_they_are_the_names_of_the_registry() -> None:
    found = PolicyNames()
    assert set(found) == set(names()) and len(found) == len(names())
    assert all(name in found for name in names())
    assert "nobody" not in found


def test_many_names_that_are_not_built_in_cost_one_search() -> None:
    searches = []

    def counted() -> tuple[str, ...]:
        searches.append(1)
        return names()

    found = PolicyNames(counted)
    assert not any(f"nobody-{number}" in found for number in range(1_000)) and "nobody" not in sorted(found)
    assert len(searches) == 1


def test_a_name_that_is_built_in_is_found_without_a_search() -> None:
    code = """if True:
        import sys
        from activator.config.policy_names import PolicyNames
        assert "round-robin" in PolicyNames() and "importlib.metadata" not in sys.modules
        assert "nobody" not in PolicyNames() and "importlib.metadata" in sys.modules
    """
    environment = {**os.environ, "ACTIVATOR_COMPILE": "0"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
