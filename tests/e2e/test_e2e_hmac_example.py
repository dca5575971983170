"""A filter of somebody else's: installed as a package, found by its name or its path, under contract, in this world."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.installed_example import InstalledExample

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", name="installed")
def _installed(tmp_path_factory: pytest.TempPathFactory) -> InstalledExample:
    return InstalledExample("hmac_filter", tmp_path_factory.mktemp("installed"))


@pytest.mark.deep
def test_it_keeps_the_contract(installed: InstalledExample) -> None:
    assert "9 passed" in installed.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "source/test_hmac_filter.py")


def test_a_configuration_may_name_it(installed: InstalledExample, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    text = "revisions: [{name: a, hosts: [a], pods: ['127.0.0.1:1'], filters: [{name: 'NAME', options: {KEY: s}}]}]"
    for name in ("hmac", "hmac_filter:HmacFilter"):
        file.write_text(text.replace("NAME", name).replace("KEY", "secret"), "utf-8")
        assert "fine" in installed.run("-m", "activator.cli", "check", str(file))
    file.write_text(text.replace("NAME", "hmac").replace("KEY", "sekret"), "utf-8")
    assert "the options are `secret`" in installed.run("-m", "activator.cli", "check", str(file), code=1)
    file.write_text(text.replace("NAME", "hmac_filter:hashlib"), "utf-8")
    assert "no subclass of activator.filters.Filter" in installed.run("-m", "activator.cli", "check", str(file), code=1)
