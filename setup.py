"""Compiles the hot modules with mypyc; everything else about the distribution stands in pyproject.toml.

Rules
  1. All or nothing. If any step fails (no compiler, a type error, a C error, an import that fails) every compiled file
     is removed and the package goes on in plain Python, with one line that says why: half a group does not import.
  2. What is compiled is listed in pyproject.toml, [tool.activator.compile], with the reason for each exclusion.
  3. In place (a checkout) a stamp beside the compiled files holds the hashes of all that was read, so that `lb.world`
     can refuse them once a source has changed, and a second build has nothing to do.
  4. `ACTIVATOR_COMPILE=0` at build compiles nothing.

`python setup.py can_compile` exits with 0 if there is a C compiler that finds Python's headers.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.metadata
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from typing import Any, ClassVar

from setuptools import Command, Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
WORLD = runpy.run_path(str(ROOT / "lb" / "world.py"))  # not imported: `import lb` refuses stale files, which we replace
PACKAGES: tuple[str, ...] = WORLD["PACKAGES"]
WANTED = os.environ.get(WORLD["VARIABLE"]) != "0"

# Inside lb/, so that an installed package carries it along; `lb` is imported before any module of the group.
GROUP = "lb.native"
GROUP_LIBRARY = GROUP + "__mypyc"
WORK_DIR = ROOT / "build" / "mypyc"
TRIAL = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]; import lb; assert lb.COMPILED"
TRIAL_TIMEOUT_S = 60.0
PROBE = "#include <Python.h>\nPyObject *probe(void) { return PyLong_FromLong(1); }\n"


class CompileError(Exception):
    """Why there will be no compiled files."""


def compiled_sources() -> list[Path]:
    """The files that mypyc compiles, relative to the root, sorted."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["activator"]["compile"]
    included = {path.relative_to(ROOT) for pattern in listed["include"] for path in ROOT.glob(pattern)}
    excluded = {path.relative_to(ROOT) for pattern in listed["exclude"] for path in ROOT.glob(pattern)}
    return sorted(included - excluded)


def module_name(source: Path) -> str:
    return ".".join(source.with_suffix("").parts)


def with_imports(sources: list[Path]) -> list[Path]:
    """`sources` and whatever of ours they import, directly or not: mypyc copies `Final` values of those into its C."""
    found = set(sources)
    waiting = list(sources)
    while waiting:
        for name in _imported_names(waiting.pop()):
            for path in (Path(*name.split(".")).with_suffix(".py"), Path(*name.split("."), "__init__.py")):
                if path not in found and (ROOT / path).is_file():
                    found.add(path)
                    waiting.append(path)
    return sorted(found)


def _imported_names(source: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / source).read_text("utf-8"), str(source))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if name.partition(".")[0] in PACKAGES}


def stamp_text(sources: list[Path]) -> str:
    """What the compiled files were made by and from. The first line is for us, the others for `lb.world`."""
    maker = hashlib.sha256()
    for part in (sys.version, importlib.metadata.version("mypy"), WORLD["file_hash"](__file__), *map(str, sources)):
        maker.update(part.encode() + b"\0")
    lines = [f"# {maker.hexdigest()}"]
    lines += [f"{WORLD['file_hash'](ROOT / path)} {path.as_posix()}" for path in with_imports(sources)]
    return "\n".join(lines) + "\n"


def compiled_files(target: Path) -> list[Path]:
    """Every compiled file below `target`, for this Python or another."""
    return [path for package in PACKAGES for path in (target / package).rglob("*") if path.suffix in (".so", ".pyd")]


def remove_compiled(target: Path) -> None:
    for path in compiled_files(target):
        path.unlink()
    (target / "lb" / WORLD["STAMP_NAME"]).unlink(missing_ok=True)


def missing_for_compiling() -> str | None:
    """What keeps us from compiling C for this Python; None if nothing does."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "probe.c").write_text(PROBE, "utf-8")
        include = "-I" + sysconfig.get_path("include")
        try:
            result = subprocess.run(
                [*command, include, "-fPIC", "-shared", "probe.c", "-o", "probe.so"],
                cwd=folder,
                capture_output=True,
                timeout=TRIAL_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return f"no C compiler ({command[0]})"
    return None if result.returncode == 0 else f"{command[0]} does not find Python's headers or the C library"


class BuildOrGoOn(build_ext):
    """`build_ext` that leaves either every compiled file or none."""

    def run(self) -> None:
        if not WANTED:
            self.extensions = []
            return
        os.chdir(ROOT)
        target = ROOT if self.inplace or self.editable_mode else Path(self.build_lib).resolve()
        sources = compiled_sources()
        try:
            if target != ROOT or not self._is_fresh(sources):
                self._compile(sources, target)
        except (Exception, SystemExit) as error:  # mypyc ends the program where it meets a type error
            remove_compiled(target)
            reason = str(error) if isinstance(error, CompileError) else f"mypyc or the C compiler failed ({error})"
            print(f"warning: not compiled, going on in plain Python: {reason}", file=sys.stderr)
        except BaseException:
            remove_compiled(target)
            raise
        self.extensions = []  # setuptools has nothing left to copy

    def get_outputs(self) -> list[str]:
        return [str(path) for path in compiled_files(Path(self.build_lib))]

    def get_output_mapping(self) -> dict[str, str]:
        return {}  # what is built in place already lies where it is used

    def _is_fresh(self, sources: list[Path]) -> bool:
        try:
            stamp = (ROOT / "lb" / WORLD["STAMP_NAME"]).read_text("utf-8")
        except OSError:
            return False
        suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
        expected = {source.with_suffix("").as_posix() + suffix for source in sources}
        expected.add(GROUP_LIBRARY.replace(".", "/") + suffix)
        present = {path.relative_to(ROOT).as_posix() for path in compiled_files(ROOT)}
        return expected == present and stamp == stamp_text(sources)

    def _compile(self, sources: list[Path], target: Path) -> None:
        missing = missing_for_compiling()
        if missing is not None:
            raise CompileError(missing)
        from mypyc.build import mypycify  # costs a second, so not where it is not needed

        shutil.rmtree(WORK_DIR, ignore_errors=True)  # nothing of an earlier attempt may be taken for this one's
        stamp = stamp_text(sources)  # before compiling: an edit meanwhile makes the result stale, as it is
        # Its own flags, not those of `make lint`: a build must not depend on which stubs are installed.
        flags = ["--config-file=", "--ignore-missing-imports", f"--cache-dir={WORK_DIR / 'cache'}"]
        extensions: list[Any] = mypycify(
            [*flags, *map(str, sources)],
            opt_level="3",
            debug_level="0",
            group_name=GROUP,
            target_dir=str(WORK_DIR),
        )
        for extension in extensions:
            # Without it -fPIC keeps gcc from inlining between our own functions: a round-robin pick, reserve and
            # release was measured at 25 ns instead of 17.
            extension.extra_compile_args.append("-fno-semantic-interposition")
        self.distribution.ext_modules = extensions
        plain = build_ext(self.distribution)
        plain.build_lib = str(WORK_DIR / "lib")
        plain.build_temp = str(WORK_DIR / "temp")
        plain.ensure_finalized()
        plain.run()
        remove_compiled(target)
        for path in compiled_files(WORK_DIR / "lib"):
            shutil.copy2(path, target / path.relative_to(WORK_DIR / "lib"))
        if target == ROOT:
            (ROOT / "lb" / WORLD["STAMP_NAME"]).write_text(stamp, "utf-8")
        _try_import(sources, target)


def _try_import(sources: list[Path], target: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != WORLD["VARIABLE"]}
    names = [module_name(source) for source in sources]
    # In front of what stands there: an isolated build finds its requirements through this very variable.
    paths = [str(target), *filter(None, [environment.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, "-c", TRIAL, *names],
        cwd=target,
        env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=TRIAL_TIMEOUT_S,
        check=False,
    )
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise CompileError(f"the compiled modules do not import: {lines[-1]}")


class CanCompile(Command):
    """Says whether compiling is possible here; for the Makefile."""

    user_options: ClassVar[list[tuple[str, str | None, str]]] = []

    def initialize_options(self) -> None:
        pass

    def finalize_options(self) -> None:
        pass

    def run(self) -> None:
        if missing_for_compiling() is not None:
            raise SystemExit(1)


if __name__ == "__main__":
    setup(
        cmdclass={"build_ext": BuildOrGoOn, "can_compile": CanCompile},
        # A stand-in that tells setuptools that this package depends on the platform; mypyc makes the real list.
        ext_modules=[Extension(GROUP_LIBRARY, sources=[])] if WANTED else [],
    )
