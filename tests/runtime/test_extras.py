"""Without the packages of an extra, the program says which extra to install, and starts where none is used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from activator.runtime.errors import StartError
from activator.runtime.extras import DISTRIBUTION, EXTRAS, need
from tests.sources import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NOT_STARTED = 3
FREE = "listen: 127.0.0.1:0\nadmin: ''\nrevisions:\n  - {name: app, hosts: ['*'], pods: [127.0.0.1:9]}\n"
# The command line in a Python where the packages of all extras are missing.
BARE = """
import sys
from activator.runtime.extras import EXTRAS
missing = {name.partition(".")[0] for names in EXTRAS.values() for name in names}
class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing)
from activator.cli import main
sys.exit(main(sys.argv[1:]))
"""


def bare(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "ACTIVATOR_"))}
    if "ACTIVATOR_COMPILE" in os.environ:
        kept["ACTIVATOR_COMPILE"] = os.environ["ACTIVATOR_COMPILE"]
    return subprocess.run(
        [sys.executable, "-c", BARE, *words],
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that is not of the log: its lines have a time and a level, or are JSON."""
    (line,) = (line for line in done.stderr.splitlines() if not re.match(r"\S+ \S+ (INFO|WARNING) |\{", line))
    assert line.startswith("activator: ")
    return line


@pytest.mark.parametrize(
    ("added", "variables", "extra"),
    [
        pytest.param("tracing: {exporter: otlp}\n", {}, "tracing", id="tracing in the file"),
        pytest.param("", {"OTEL_TRACES_EXPORTER": "otlp"}, "tracing", id="tracing by OpenTelemetry's variable"),
        pytest.param("metrics: {knative: {protocol: http/protobuf}}\n", {}, "tracing", id="Knative's metrics by OTLP"),
    ],
)
def test_a_feature_without_its_extra_is_one_line(
    tmp_path: Path, added: str, variables: dict[str, str], extra: str
) -> None:
    (tmp_path / "activator.yaml").write_text(FREE + added, "utf-8")
    done = bare("run", cwd=tmp_path, **variables)
    assert done.returncode == NOT_STARTED, done.stderr
    assert error_of(done).endswith(f"pip install '{DISTRIBUTION}[{extra}]'")


def test_kubernetes_mode_without_its_extra_is_one_line(tmp_path: Path) -> None:
    knative = {"POD_NAME": "activator", "POD_IP": "127.0.0.1", "SYSTEM_NAMESPACE": "knative-serving"}
    done = bare("run", cwd=tmp_path, **knative, ACTIVATOR_LISTEN="127.0.0.1:0", ACTIVATOR_ADMIN="")
    assert done.returncode == NOT_STARTED, done.stderr
    assert error_of(done).endswith(f"pip install '{DISTRIBUTION}[kubernetes]'")


def test_what_needs_no_extra_runs_without(tmp_path: Path) -> None:
    (tmp_path / "activator.yaml").write_text(FREE, "utf-8")
    for words in (["check", "activator.yaml"], ["version"], ["schema"]):
        done = bare(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    # Every module that the demo imports, without running it.
    done = subprocess.run(
        [sys.executable, "-c", BARE.replace("sys.exit(main(sys.argv[1:]))", "import activator.demo.tour")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "tracing", ("json", "no_such_package", "no_such.module"))
    with pytest.raises(StartError, match=r"^x needs .* \(no_such_package, no_such\.module\): "):
        need("tracing", "x")
    monkeypatch.setitem(EXTRAS, "tracing", ("json",))
    need("tracing", "x")


def test_the_extras_are_those_of_the_distribution() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    extras = PROJECT["optional-dependencies"]
    assert extras["all"] == [f"{DISTRIBUTION}[{','.join(EXTRAS)}]"]
    assert f"{DISTRIBUTION}[all]" in extras["dev"]
    for name, packages in EXTRAS.items():
        distributions = {re.split(r"[<>=\[]", requirement)[0] for requirement in extras[name]}
        assert len(distributions) == len(packages)
