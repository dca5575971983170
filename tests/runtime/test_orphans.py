"""Orphans of process 1: reaped, while the activator's own children are left to those who wait for them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from activator.runtime import orphans
from tests.sources import ROOT

# Makes five orphans and a child of its own, whose exit code has to be there after the orphans have been reaped.
_AS_PROCESS_1 = """
import asyncio, json, os, subprocess, sys
from activator.runtime.orphans import CHECKS, CHECK_S, Orphans, adopt
from activator.runtime.process_stat import stat_fields

def zombies():
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = stat_fields(name)
        except OSError:  # another program of this machine, which has ended meanwhile
            continue
        if fields[0] == b"Z" and fields[1] == str(os.getpid()).encode():
            found.append(int(name))
    return found

async def main():
    is_adopting = adopt()
    for _ in range(5):
        subprocess.run(["sh", "-c", "sleep 0.2 & exit 0"], check=True)
    own = await asyncio.create_subprocess_exec("sh", "-c", "exit 7")
    while made.reaped_total < 5:
        await asyncio.sleep(CHECK_S)
        made.check()
    print(json.dumps([is_adopting, os.getpid(), zombies(), await own.wait(), made.reaped_total]))

made = Orphans()
asyncio.run(asyncio.wait_for(main(), 20.0))
"""


def test_a_process_that_is_not_the_first_one_adopts_orphans_as_well() -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", _AS_PROCESS_1]
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 0, done.stderr
    is_adopting, number, *rest = json.loads(done.stdout)
    assert (is_adopting, rest) == (True, [[], 7, 5]) and number != 1


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_process_1_reaps_orphans_and_takes_no_exit_code_from_others() -> None:
    words = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _AS_PROCESS_1]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, 1, [], 7, 5]


def test_a_child_is_an_orphan_only_after_several_checks() -> None:
    made = orphans.Orphans()
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and has not been waited for
    for _ in range(orphans.CHECKS - 1):
        made.check()
    assert made.reaped_total == 0
    assert child.wait() == 0
    made.check()
    assert made.reaped_total == 0


def test_a_child_that_nothing_waits_for_is_reaped() -> None:
    made = orphans.Orphans()
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    for _ in range(orphans.CHECKS):
        made.check()
    assert made.reaped_total == 1
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, 0)
    child.wait()  # it has been reaped, which the library bears
