"""The header of a run: the machine, the versions and the settings, without which figures cannot be interpreted.

`collect` must be called before the run, because afterwards the load average includes the run.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import sysconfig

import activator
import lb
from bench.processes import ROOT, find_program

NOISY_LOAD_PER_CORE = 0.5

# The option of each program that prints its version; most print to stderr.
_VERSION_ARGUMENTS = {"nginx": "-v", "haproxy": "-v", "caddy": "version", "wrk": "-v"}
_ASK_TIMEOUT_S = 10.0


def collect(programs: list[str]) -> dict[str, object]:
    """Return the header of a run that uses these programs."""
    libraries = ("uvloop", "httptools", "msgspec", "aiohttp")
    versions: dict[str, str] = {"activator": activator.__version__, "python": platform.python_version()}
    versions.update({name: importlib.metadata.version(name) for name in libraries})
    versions.update({name: version for name in programs if (version := program_version(name)) is not None})
    return {
        "command": ["python", "-m", "bench", *sys.argv[1:]],
        "started": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "compiled": lb.COMPILED,
        "python_optimisations": optimisations(sysconfig.get_config_vars()),
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
    """Return a line of warning if the machine was busy before the run."""
    machine = header["machine"]
    assert isinstance(machine, dict)
    load, count = machine["load_average_1min"], machine["cores"]
    if load <= NOISY_LOAD_PER_CORE * count:
        return None
    return f"warning: load average {load} on {count} cores before the run: figures are noisy"


def one_line(header: dict[str, object]) -> str:
    """Return the header as one line for the terminal."""
    machine, versions = header["machine"], header["versions"]
    assert isinstance(machine, dict)
    assert isinstance(versions, dict)
    python = versions["python"]
    if "python_optimisations" in header:  # not in older files
        python = f"{python} (built with {header['python_optimisations'] or 'no optimisations'})"
    world = "compiled" if header["compiled"] else "plain Python"
    parts = ", ".join(
        f"{name} {version}" for name, version in {**versions, "python": python}.items() if name != "activator"
    )
    return (
        f"activator {versions['activator']} ({world}, commit {header['commit']}); {parts}; "
        f"{machine['cores']} x {machine['cpu']}, Linux {machine['kernel']}, load average {machine['load_average_1min']}"
    )


def optimisations(variables: dict[str, object]) -> str:
    """Return the optimisations with which this Python was built, from sysconfig's variables; empty if there are none.

    Debian builds with PGO and LTO, but the variables do not have these options. It leaves an empty flag for the use of
    a profile, which `configure` sets with gcc whether or not a profile is used.
    """
    arguments = str(variables.get("CONFIG_ARGS"))
    found = [name for name in ("--enable-optimizations", "--with-lto") if name in arguments]
    if not found and variables.get("PGO_PROF_USE_FLAG") == "":
        return "PGO, as Debian does"
    return " ".join(found)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_model() -> str:
    """Return the kernel's name of the CPU model."""
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
    """Return the commit of the checkout, with a plus if files differ from it; "unknown" outside of a checkout."""
    head = _ask(["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"])
    if head is None:
        return "unknown"
    changed = _ask(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
    return head.strip() + ("+" if changed else "")


def program_version(name: str) -> str | None:
    """Return the version of a program on this machine; None if it is not installed or prints none."""
    path = find_program(name)
    answer = _ask([path, _VERSION_ARGUMENTS.get(name, "--version")]) if path is not None else None
    return parse_version(answer) if answer is not None else None


def parse_version(answer: str) -> str | None:
    """Return the first part of a program's output that looks like a version."""
    match = re.search(r"\d+\.\d+[\w.+~-]*", answer)
    return match[0] if match is not None else None


def _ask(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_ASK_TIMEOUT_S, text=True, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # wrk prints its version with exit code 1.
    return done.stdout if done.returncode == 0 or command[0].endswith("wrk") else None
