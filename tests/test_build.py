"""setup.py: compiled files are put in place whole or not at all, and nothing is compiled twice."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.sources import ROOT

BUILD: dict[str, Any] = runpy.run_path(str(ROOT / "setup.py"))
CachedCommands: Any = BUILD["CachedCommands"]
CompileError: type[Exception] = BUILD["CompileError"]
# A compiler: `-o` names what it makes; it writes a line in the log for each run.
COPY = ["sh", "-c", 'echo run >> "$0"; cp "$1" "$3"']


def runs(log: Path) -> int:
    return len(log.read_text("utf-8").splitlines()) if log.exists() else 0


def made(folder: Path, source: Path, log: Path) -> Path:
    commands = CachedCommands(folder)
    path: Path = commands.prepare(".o", [*COPY, str(log)], [str(source)], [source.read_bytes()])
    commands.make("copying")
    commands.remove_unused()
    return path


def test_what_has_not_changed_is_not_made_again(tmp_path: Path) -> None:
    source, log = tmp_path / "a.c", tmp_path / "log"
    source.write_text("1", "utf-8")
    first = made(tmp_path / "objects", source, log)
    assert first.read_text("utf-8") == "1"
    source.touch()  # the time says nothing, the content does
    assert made(tmp_path / "objects", source, log) == first
    assert runs(log) == 1
    source.write_text("2", "utf-8")
    second = made(tmp_path / "objects", source, log)
    assert runs(log) == 2
    assert second.read_text("utf-8") == "2"
    assert list((tmp_path / "objects").iterdir()) == [second]


def test_a_header_and_a_flag_count_and_a_path_does_not(tmp_path: Path) -> None:
    commands = CachedCommands(tmp_path)
    path = commands.prepare(".o", ["cc", "-O3"], ["-I/a"], [b"header", b"source"])
    assert commands.prepare(".o", ["cc", "-O3"], ["-I/b"], [b"header", b"source"]) == path
    assert commands.prepare(".o", ["cc", "-O2"], ["-I/a"], [b"header", b"source"]) != path
    assert commands.prepare(".o", ["cc", "-O3"], ["-I/a"], [b"headers", b"ource"]) != path


def test_a_failing_compiler_stops_the_others_and_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    commands = CachedCommands(tmp_path)
    slow = commands.prepare(".o", ["sh", "-c", 'echo half > "$1"; sleep 60'], [], [])
    failing = commands.prepare(".o", ["sh", "-c", "echo 'x.c:1: error: no'; exit 1"], [], [])
    began_s = time.monotonic()
    with pytest.raises(CompileError, match=r"sh failed: x\.c:1: error: no"):
        commands.make("compiling")
    assert time.monotonic() - began_s < 30.0
    assert not slow.exists()
    assert not failing.exists()


def folder_of(path: Path, names: list[str]) -> Path:
    for package in ("lb", "activator"):
        (path / package).mkdir(parents=True)
    for name in names:
        (path / name).write_text(name, "utf-8")
    return path


def test_the_witness_comes_last_and_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["activator/x.cpython.so", "lb/native__mypyc.cpython.so", "lb/table.cpython.so", "lb/zebra.cpython.so"]
    built = folder_of(tmp_path / "built", names)
    target = folder_of(tmp_path / "target", names)
    order: list[str] = []
    replace, unlink = Path.replace, Path.unlink

    def noted_replace(path: Path, place: Path) -> Path:
        order.append(f"+{place.relative_to(target)}")
        return replace(path, place)

    def noted_unlink(path: Path, missing_ok: bool = False) -> None:
        order.append(f"-{path.relative_to(target)}")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "replace", noted_replace)
    monkeypatch.setattr(Path, "unlink", noted_unlink)
    BUILD["install_compiled"](built, target, "stamp")
    assert order[0] == "-lb/table.cpython.so"
    assert order[-1] == "+lb/table.cpython.so"
    assert {word[1:] for word in order if word[0] == "+"} == set(names)
    assert (target / "lb" / ".compiled").read_text("utf-8") == "stamp"


def test_a_process_that_has_loaded_a_file_keeps_it(tmp_path: Path) -> None:
    built = folder_of(tmp_path / "built", ["lb/table.cpython.so"])
    target = folder_of(tmp_path / "target", ["lb/table.cpython.so"])
    former = (target / "lb" / "table.cpython.so").open("rb")
    (built / "lb" / "table.cpython.so").write_text("new", "utf-8")
    BUILD["install_compiled"](built, target, None)
    with former:
        assert former.read() == b"lb/table.cpython.so"


def test_a_plain_process_does_not_load_compiled_files_that_appear(tmp_path: Path) -> None:
    """As a demo in plain Python does, with the compiler behind it."""
    for name in ("__init__", "world"):
        (tmp_path / "lb").mkdir(exist_ok=True)
        (tmp_path / "lb" / f"{name}.py").write_bytes((ROOT / "lb" / f"{name}.py").read_bytes())
    for name in ("table", "other"):
        (tmp_path / "lb" / f"{name}.py").write_text("kind = 'plain'", "utf-8")
    code = """
        import importlib, importlib.machinery, pathlib
        import lb, lb.table
        for name in ("table", "other"):
            pathlib.Path("lb", name + importlib.machinery.EXTENSION_SUFFIXES[0]).write_bytes(b"not a library")
        importlib.invalidate_caches()
        import lb.other
        print(lb.COMPILED, lb.table.kind, lb.other.kind)
    """
    lines = "\n".join(
        line.strip() if "write_bytes" not in line else "    " + line.strip() for line in code.splitlines()
    )
    kept = {name: value for name, value in os.environ.items() if name not in {"ACTIVATOR_COMPILE", "PYTHONPATH"}}
    done = subprocess.run(
        [sys.executable, "-c", lines], cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["False", "plain", "plain"], done.stderr


def test_an_interrupt_stops_the_compilers(tmp_path: Path) -> None:
    """SIGTERM, as `make demo` sends it when the demo is over."""
    code = f"""
        import runpy, signal
        from pathlib import Path
        build = runpy.run_path({str(ROOT / "setup.py")!r})
        signal.signal(signal.SIGTERM, build["_terminated"])
        commands = build["CachedCommands"](Path({str(tmp_path)!r}))
        for number in range(4):
            commands.prepare(".o", ["sh", "-c", "echo $$; sleep 60 > pid" + str(number)], [], [b"%d" % number])
        commands.make("compiling")
    """
    lines = "\n".join(line.strip() if "prepare" not in line else "    " + line.strip() for line in code.splitlines())
    process = subprocess.Popen(
        [sys.executable, "-c", lines], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    give_up_s = time.monotonic() + 20.0
    while not list(tmp_path.glob("pid*")) and time.monotonic() < give_up_s:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20.0)
    assert process.returncode != 0
    sleepers = [path for path in Path("/proc").glob("[0-9]*/cwd") if _is_in(path, tmp_path)]
    assert sleepers == []


def _is_in(link: Path, folder: Path) -> bool:
    try:
        return link.readlink() == folder
    except OSError:
        return False
