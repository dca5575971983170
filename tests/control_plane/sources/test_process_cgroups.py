"""Cgroups of programs, in the kernel's own hierarchy where there is one, with whatever controller that has."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activator.control_plane.sources.process.cgroups import Cgroup, Cgroups
from activator.control_plane.sources.process.launcher import NOT_POSSIBLE

LAUNCHER = Path(sys.modules[Cgroups.__module__].__file__ or "").with_name("launcher.py")
CONTROLLERS = {"memory": ("memory.max", 1 << 26), "pids": ("pids.max", 10), "hugetlb": ("hugetlb.2MB.max", 1 << 21)}

# Makes two cgroups below its own, runs a program in one, and says what has become of all.
SCRIPT = """
import json, logging, subprocess, sys
from activator.control_plane.sources.process.cgroups import Cgroups

class Those(Cgroups):
    CONTROLLER, LIMIT = sys.argv[1:3]
    MORE = {}

logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
those = Those()
first, second = those.create_limited(int(sys.argv[3])), those.create_limited(int(sys.argv[3]))
said = {"made": [None if one is None else str(one.path) for one in (first, second)]}
if first is not None:
    program = [sys.executable, "-I", "-S", sys.argv[4], f"cgroup={first.path}", "--", "cat", "/proc/self/cgroup"]
    said["program"] = subprocess.run(program, capture_output=True, text=True).stdout
    said["limit"] = (first.path / sys.argv[2]).read_text()
    said["leaf"] = [int(line) for line in (first.path.parent / "activator/cgroup.procs").read_text().split()]
    said["exceeded"] = first.was_exceeded()
    for one in (first, second):
        one.remove()
    said["left"] = sorted(one.name for one in first.path.parent.iterdir() if one.is_dir())
    one.remove()  # again
print(json.dumps(said))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A cgroup of the test's own."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    root = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if root is None or os.geteuid() != 0:
        pytest.skip("no cgroups of version 2 to write to")
    made = root / f"activator-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroups of version 2 to write to: {error.strerror}")
    yield made
    for path in [*made.iterdir(), made]:
        if path.is_dir():
            path.rmdir()


def controller(folder: Path) -> str:
    """One that the folder has; its parent is told to give it."""
    for name in (folder.parent / "cgroup.controllers").read_text().split():
        if name in CONTROLLERS:
            (folder.parent / "cgroup.subtree_control").write_text(f"+{name}")
            return name
    pytest.skip("no controller that is known here is one of version 2")


def run_in(folder: Path, name: str) -> tuple[dict[str, Any], str]:
    """What SCRIPT says, started in the folder."""
    file, limit = CONTROLLERS[name]
    words = [sys.executable, "-c", textwrap.dedent(SCRIPT), name, file, str(limit), str(LAUNCHER)]
    enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(folder), *words]
    done = subprocess.run(enter, capture_output=True, text=True, timeout=30, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found, done.stderr


def test_a_program_runs_in_a_cgroup_of_its_own_and_the_activator_in_a_leaf(folder: Path) -> None:
    name = controller(folder)
    (folder / "program-1-1").mkdir()  # of one that was killed
    said, told = run_in(folder, name)
    first, second = said["made"]
    assert Path(first).parent == Path(second).parent == folder and first != second
    assert said["program"].strip().endswith(f"/{folder.name}/{Path(first).name}")
    assert int(said["limit"]) == CONTROLLERS[name][1]
    assert len(said["leaf"]) == 1
    assert (said["exceeded"], said["left"]) == (False, ["activator"])
    assert f"is enforced by cgroups below {folder}" in told


def test_where_others_run_as_well_it_is_nobody_s(folder: Path) -> None:
    name = controller(folder)
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            (folder / "cgroup.procs").write_text(str(other.pid))
            said, told = run_in(folder, name)
            assert said["made"] == [None, None]
            assert told.count(f"other processes run in {folder}: a service with `Delegate=yes`") == 1
            assert (folder / "cgroup.procs").read_text().split() == [str(other.pid)], "nobody was moved"
        finally:
            other.kill()


def proc(folder: Path, cgroup: str, mount: str = "") -> str:
    (folder / "self").mkdir(parents=True)
    (folder / "self/cgroup").write_text(cgroup)
    (folder / "self/mountinfo").write_text(mount)
    return str(folder)


@pytest.mark.parametrize(
    ("cgroup", "root", "controllers", "reason"),
    [
        ("1:memory:/x\n", "/", "", "there are no cgroups of version 2"),
        ("0::/a/b\n", "/c", "", "our cgroup is not visible here"),
        ("0::/a\n", "/", "cpu pids", "has no controller `memory`"),
        ("0::/none\n", "/", "memory", "No such file or directory"),
    ],
)
def test_why_there_are_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cgroup: str, root: str, controllers: str, reason: str
) -> None:
    own = tmp_path / "cg/a"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text(controllers)
    mount = f"30 23 0:26 {root} {tmp_path}/cg rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
    cgroups = Cgroups(proc(tmp_path / "proc", cgroup, mount))
    with caplog.at_level(logging.INFO, "activator.process"):
        assert cgroups.create_limited(1) is None and cgroups.create_limited(2) is None
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("`memory` of programs is enforced by setrlimit: ") and reason in said


def test_of_memory_the_limit_is_for_the_whole_program(tmp_path: Path) -> None:
    own = tmp_path / "cg/a"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpu memory")
    (own / "cgroup.procs").touch()
    mount = f"30 23 0:26 / {tmp_path}/cg rw - cgroup2 cgroup2 rw\n"
    made = Cgroups(proc(tmp_path / "proc", "0::/a\n", mount)).create_limited(1 << 30)
    assert made is not None
    assert (own / "cgroup.subtree_control").read_text() == "+memory"
    assert (made.path / "memory.max").read_text() == str(1 << 30)
    assert (made.path / "memory.oom.group").read_text() == "1"
    assert not made.was_exceeded()
    (made.path / "memory.events").write_text("low 0\nhigh 3\nmax 9\noom 1\noom_kill 0\noom_group_kill 0\n")
    assert not made.was_exceeded(), "it came near to it"
    (made.path / "memory.events").write_text("oom 1\noom_kill 2\noom_group_kill 1\n")
    assert made.was_exceeded()


def test_a_cgroup_that_is_gone_stops_the_start(tmp_path: Path) -> None:
    words = [sys.executable, "-I", "-S", str(LAUNCHER), f"cgroup={tmp_path}/none", "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == NOT_POSSIBLE
    assert done.stderr == f"cannot enter the cgroup {tmp_path}/none: No such file or directory\n"


def test_one_in_which_something_runs_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/program").touch()
    Cgroup(tmp_path / "a", "memory.events").remove()
    assert f"the cgroup {tmp_path}/a cannot be removed: Directory not empty" in caplog.text
