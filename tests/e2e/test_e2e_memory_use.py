"""The measured memory of programs: in `status`, JSON and metrics, beside what is declared, and in place of it."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import ask, request
from tests.e2e.running import Activator, cli, configured, eventually

MIB = 1 << 20
SERVES = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

data = b"x" * int(sys.argv[1])
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def revision(name: str, needs: str, uses: int = 60 * MIB) -> dict[str, Any]:
    command = [sys.executable, "-I", "-S", "-c", SERVES, str(uses), "{port}"]
    process = {"command": command, "idle": "1h", "max_scale": 1}
    return {"name": name, "hosts": [f"{name}.test"], "needs": {"memory": needs}, "process": process}


def started(run_activator: RunActivator, *revisions: dict[str, Any], **group: Any) -> Activator:
    groups = [{"name": "machine", "members": [one["name"] for one in revisions], **group}]
    return run_activator(configured(list(revisions), groups=groups))


def get(activator: Activator, name: str) -> None:
    assert ask(activator.address, request(host=f"{name}.test"), timeout_s=30.0).status == 200


def memory(activator: Activator, name: str) -> int:
    found: int = activator.revision(name).get("memory", {}).get("memory", 0)
    return found


def loaded(activator: Activator) -> list[str]:
    return [name for name, one in activator.revisions().items() if one["processes"]["processes"]]


def test_what_is_used_is_shown_and_more_than_declared_is_said(run_activator: RunActivator) -> None:
    activator = started(
        run_activator, revision("small", "10MiB"), revision("fits", "300MiB"), budget={"memory": "400MiB"}
    )
    get(activator, "small")
    get(activator, "fits")
    eventually(lambda: memory(activator, "small") > 60 * MIB and memory(activator, "fits") > 60 * MIB, "both measured")
    activator.wait_logged_once(r"WARNING .*default/small: a copy uses \d+MiB of memory, more than .*memory: 10MiB`")
    assert not activator.logged("default/fits: a copy uses")
    shown = cli("status", "--admin", f"http://{activator.admin}").stdout.replace("\n", " ")
    assert re.search(r"default/small .*?uses memory [\d.]+MiB", shown)
    assert re.search(r"group machine .*default/small: 1 running, uses memory [\d.]+MiB", shown)
    text = activator.ask("/metrics")[2].decode()
    pattern = r'^activator_program_memory_bytes{.*resource="memory",revision="small"} (\S+)$'
    found = re.search(pattern, text, re.MULTILINE)
    assert found is not None, [line for line in text.splitlines() if "program_memory" in line]
    assert 60 * MIB < float(found[1]) < 150 * MIB


def unload(activator: Activator, *names: str) -> None:
    for name in names:
        assert cli("unload", name, "--admin", f"http://{activator.admin}").returncode == 0
    eventually(lambda: not set(names) & set(loaded(activator)), "all are unloaded")


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_group_may_count_what_was_measured(run_activator: RunActivator, is_measured: bool) -> None:
    """Both fit by what they declare, and not by what they use: from their next load on."""
    members = [revision("one", "10MiB"), revision("two", "10MiB")]
    activator = started(run_activator, *members, budget={"memory": "110MiB"}, measured=is_measured)
    for name in ("one", "two"):
        get(activator, name)
        eventually(lambda: memory(activator, name) > 60 * MIB, "it is measured")  # noqa: B023
    assert loaded(activator) == ["one", "two"], "a measurement takes nothing away from a program that runs"
    unload(activator, "one", "two")
    get(activator, "one")
    get(activator, "two")
    wanted = ["two"] if is_measured else ["one", "two"]
    eventually(lambda: loaded(activator) == wanted, f"{wanted} are loaded")
    get(activator, "one")
    wanted = ["one"] if is_measured else ["one", "two"]
    eventually(lambda: loaded(activator) == wanted, f"{wanted} are loaded")


def test_a_program_that_uses_more_than_there_is_can_be_loaded(run_activator: RunActivator) -> None:
    """Beside one that always runs."""
    base = revision("base", "10MiB", 20 * MIB)
    base["process"]["min_scale"] = 1
    activator = started(run_activator, base, revision("two", "5MiB"), budget={"memory": "20MiB"}, measured=True)
    for _ in range(2):
        get(activator, "two")
        eventually(lambda: memory(activator, "two"), "it is measured")
        assert loaded(activator) == ["base", "two"]
        unload(activator, "two")
