"""Where and with what a run was made: figures mean nothing without it.

`collect` is called before the run, since the machine's load average is only telling then.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import re
import subprocess
import sys

import activator
import lb
from bench.processes import ROOT, find_program

NOISY_LOAD_PER_CORE = 0.5

# How each program is asked for its version; most answer on stderr.
_VERSION_ARGUMENTS = {"nginx": "-v", "haproxy": "-v", "caddy": "version", "wrk": "-v"}
_ASK_TIMEOUT_S = 10.0


def collect(programs: list[str]) -> dict[str, object]:
    """The header of a run that uses these programs."""
    libraries = ("uvloop", "httptools", "msgspec", "aiohttp")
    versions: dict[str, str] = {"activator": activator.__version__, "python": platform.python_version()}
    versions.update({name: importlib.metadata.version(name) for name in libraries})
    versions.update({name: version for name in programs if (version := program_version(name)) is not None})
    return {
        "command": ["python", "-m", "bench", *sys.argv[1:]],
        "started": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "compiled": lb.COMPILED,
        "commit": commit(),
        "machine": {
            "cpu": cpu_model(),
            "cores": cores(),
            "kernel": platform.release(),
            "load_average_1min": round(os.getloadavg()[0], 2),
        },
        "versions": versions,
    }


def warning(header: dict[str, object]) -> str | None:
    """One line where the machine was busy before the run."""
    machine = header["machine"]
    assert isinstance(machine, dict)
    load, count = machine["load_average_1min"], machine["cores"]
    if load <= NOISY_LOAD_PER_CORE * count:
        return None
    return f"warning: load average {load} on {count} cores before the run: figures are noisy"


def one_line(header: dict[str, object]) -> str:
    """For the terminal."""
    machine, versions = header["machine"], header["versions"]
    assert isinstance(machine, dict)
    assert isinstance(versions, dict)
    world = "compiled" if header["compiled"] else "plain Python"
    parts = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "activator")
    return (
        f"activator {versions['activator']} ({world}, commit {header['commit']}); {parts}; "
        f"{machine['cores']} x {machine['cpu']}, Linux {machine['kernel']}, load average {machine['load_average_1min']}"
    )


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_model() -> str:
    """As the kernel names it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.machine()


def commit() -> str:
    """The commit of the checkout, with a plus where files differ from it; "unknown" outside of one."""
    head = _ask(["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"])
    if head is None:
        return "unknown"
    changed = _ask(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
    return head.strip() + ("+" if changed else "")


def program_version(name: str) -> str | None:
    """Of a program on this machine, None where there is none or it does not say."""
    path = find_program(name)
    answer = _ask([path, _VERSION_ARGUMENTS.get(name, "--version")]) if path is not None else None
    return parse_version(answer) if answer is not None else None


def parse_version(answer: str) -> str | None:
    """The first thing in a program's answer that looks like a version."""
    match = re.search(r"\d+\.\d+[\w.+~-]*", answer)
    return match[0] if match is not None else None


def _ask(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_ASK_TIMEOUT_S, text=True, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # wrk answers its version with exit code 1.
    return done.stdout if done.returncode == 0 or command[0].endswith("wrk") else None
