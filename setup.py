"""Compiles the hot modules with mypyc; everything else about the distribution stands in pyproject.toml.

Rules
  1. All or nothing. Compiled files are put in place only after all of them were made and have been imported in a copy
     of the packages; `lb.world` takes them only if the last one is there. If a step fails (no compiler, a type error, a
     C error, an import that fails) every compiled file is removed and the package goes on in plain Python, with one
     line that says why. An interrupt at any moment leaves one or the other.
  2. What is compiled is listed in pyproject.toml, [tool.activator.compile], with the reason for each exclusion.
  3. In place (a checkout) a stamp beside the compiled files holds the hashes of all that was read, so that `lb.world`
     can refuse them once a source has changed, and a second build has nothing to do.
  4. `ACTIVATOR_COMPILE=0` at build compiles nothing; with `ACTIVATOR_COMPILE=1` a build that cannot compile fails. A
     wheel without compiled files has the tag of one in plain Python.
  5. One C file per module, compiled on all cores. An object is kept under the hash of all that it is made from
     (build/mypyc/objects), so only what has changed is compiled again (a change of the shared header is one of all),
     and an interrupted build goes on where it was.
  6. One build at a time: a second one waits.

`python setup.py can_compile` exits with 0 if there is a C compiler that finds Python's headers; it needs no setuptools.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.metadata
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from types import FrameType
from typing import Any

TRIAL_TIMEOUT_S = 60.0
PROBE = "#include <Python.h>\nPyObject *probe(void) { return PyLong_FromLong(1); }\n"


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


if __name__ == "__main__" and "can_compile" in sys.argv[1:]:
    # Before setuptools: an old one, or none, must not look like a machine without a compiler.
    raise SystemExit(0 if missing_for_compiling() is None else 1)

from setuptools import Extension, setup  # noqa: E402
from setuptools.command.build_ext import build_ext  # noqa: E402

ROOT = Path(__file__).resolve().parent
WORLD = runpy.run_path(str(ROOT / "lb" / "world.py"))  # not imported: `import lb` refuses stale files, which we replace
PACKAGES: tuple[str, ...] = WORLD["PACKAGES"]
WANTED = os.environ.get(WORLD["VARIABLE"]) != "0"
DEMANDED = os.environ.get(WORLD["VARIABLE"]) == "1"

# Inside lb/, so that an installed package carries it along; `lb` is imported before any module of the group.
GROUP = "lb.native"
GROUP_LIBRARY = GROUP + "__mypyc"
WORK_DIR = ROOT / "build" / "mypyc"
TRIAL = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]; import lb; assert lb.COMPILED"
PROGRESS_INTERVAL_S = 5.0  # how often a build prints its progress
# Measured in one run (docs/performance.md, "How it is compiled"): one C file per module costs a request nothing beside
# one file for all, and neither do -O2 instead of -O3 and doing without -flto, which would link everything anew after
# each edit (38 s for 63 s of building).
OPT_LEVEL = "2"
C_FLAGS = [
    # Without it -fPIC keeps gcc from inlining between our own functions: a round-robin pick, reserve and release was
    # measured at 25 ns instead of 17.
    "-fno-semantic-interposition",
    # Calls between the C files are direct, not by way of the table for symbols that another library may replace.
    "-fvisibility=hidden",
]


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
    """The witness first: from then on `lb.world` takes none of the others."""
    for path in sorted(compiled_files(target), key=lambda path: not is_witness(path)):
        path.unlink(missing_ok=True)
    (target / "lb" / WORLD["STAMP_NAME"]).unlink(missing_ok=True)


def install_compiled(made: Path, target: Path, stamp: str | None) -> None:
    """The witness last. Each file is renamed into place: a process that has loaded the former one keeps it."""
    remove_compiled(target)
    if stamp is not None:
        (target / "lb" / WORLD["STAMP_NAME"]).write_text(stamp, "utf-8")
    for path in sorted(compiled_files(made), key=is_witness):
        place = target / path.relative_to(made)
        new = place.with_name(f"{place.name}.new")
        shutil.copy2(path, new)
        new.replace(place)


def is_witness(path: Path) -> bool:
    """Whether this is the file that `lb.world` looks for."""
    return path.parent.name == "lb" and path.name.partition(".")[0] == WORLD["WITNESS"]


# --- C files to libraries -------------------------------------------------------------------------------------------


class CachedCommands:
    """Runs compilers and linkers, as many at a time as there are cores, and keeps what they made in `folder`.

    `prepare` gives the file that a command would make: its name is the hash of the command and of all that goes in.
    What is there already is not made again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._used: set[Path] = set()
        self._commands: dict[Path, list[str]] = {}
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._closed = False
        folder.mkdir(parents=True, exist_ok=True)

    def prepare(self, suffix: str, command: list[str], hidden: list[str], contents: list[bytes]) -> Path:
        """`command` and `contents` decide what comes out; `hidden` words (paths) do not and are not hashed."""
        digest = hashlib.sha256("\0".join(command).encode())
        for content in contents:
            digest.update(hashlib.sha256(content).digest())
        made = self._folder / (digest.hexdigest()[:40] + suffix)
        self._used.add(made)
        if not made.exists():
            self._commands[made] = [*command, *hidden]
        return made

    def make(self, what: str) -> None:
        """Run what has been prepared. Raises CompileError with the first command's error; the others are stopped."""
        commands, self._commands = self._commands, {}
        if not commands:
            return
        began_s = time.monotonic()
        workers = _cores()
        print(f"build: {what}: {len(commands)} files on {workers} cores", flush=True)
        with ThreadPoolExecutor(workers) as pool:
            try:
                waiting = {pool.submit(self._run, command, made) for made, command in commands.items()}
                while waiting:
                    done, waiting = wait(waiting, PROGRESS_INTERVAL_S, FIRST_EXCEPTION)
                    for one in done:
                        one.result()
                    left = len(waiting)
                    took_s = time.monotonic() - began_s
                    if left:
                        print(f"build: {what}: {len(commands) - left} of {len(commands)}, {took_s:.0f} s", flush=True)
            except BaseException:  # an interrupt as well, from the first command on: the pool waits for those that run
                self._stop()
                raise
            finally:
                pool.shutdown(cancel_futures=True)

    def remove_unused(self) -> None:
        for path in self._folder.iterdir():
            if path not in self._used:
                path.unlink()

    def _run(self, command: list[str], made: Path) -> None:
        unfinished = made.with_suffix(".unfinished")  # an interrupted compiler leaves nothing that looks whole
        with self._lock:
            if self._closed:
                return
            process = subprocess.Popen(
                [*command, "-o", str(unfinished)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                process_group=0,  # gcc starts cc1 and as, which do not end with it
            )
            self._running.add(process)
        output = process.communicate()[0]
        with self._lock:
            self._running.discard(process)
        if process.returncode != 0:
            raise CompileError(f"{command[0]} failed: {_first_error(output)}")
        unfinished.replace(made)

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _first_error(output: str) -> str:
    lines = output.strip().splitlines() or ["no message"]
    return next((line for line in lines if "error" in line), lines[-1])


def build_libraries(extensions: list[Any], folder: Path) -> None:
    """Compile and link mypyc's extensions into `folder`, with the commands that setuptools would use."""
    from distutils.ccompiler import new_compiler
    from distutils.sysconfig import customize_compiler

    compiler: Any = new_compiler()
    customize_compiler(compiler)
    about = "\n".join([sys.version, importlib.metadata.version("mypy"), _version_of(compiler.compiler_so[0])]).encode()
    include = f"-I{sysconfig.get_path('include')}"
    commands = CachedCommands(WORK_DIR / "objects")
    objects: dict[str, list[Path]] = {}
    for extension in sorted(extensions, key=lambda extension: -len(extension.sources)):
        command = [*compiler.compiler_so, *extension.extra_compile_args]
        headers = [about, *(Path(name).read_bytes() for name in sorted(extension.depends) if name.endswith(".h"))]
        folders = [f"-I{name}" for name in extension.include_dirs]
        objects[extension.name] = [
            commands.prepare(".o", command, [include, *folders, "-c", source], [*headers, Path(source).read_bytes()])
            for source in sorted(extension.sources, key=os.path.getsize, reverse=True)  # the longest first
        ]
    commands.make("compiling")
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    libraries = {}
    for extension in extensions:
        parts = objects[extension.name]
        command = [*compiler.linker_so, *extension.extra_link_args]
        names = "\0".join(path.name for path in parts).encode()  # which are hashes of what is in them
        libraries[extension.name] = commands.prepare(".so", command, [*map(str, parts)], [about, names])
    commands.make("linking")
    for name, library in libraries.items():
        place = folder / (name.replace(".", "/") + suffix)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, place)
    commands.remove_unused()


def _version_of(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the lock of the work folder; say so where another build has it."""
    WORK_DIR.mkdir(parents=True, exist_ok=True)
    with open(WORK_DIR / "lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("build: waits for another build of this checkout", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


# --- setuptools' commands -------------------------------------------------------------------------------------------


class BuildOrGoOn(build_ext):
    """`build_ext` that leaves either every compiled file or none."""

    def run(self) -> None:
        if not WANTED:
            self.extensions = []
            return
        os.chdir(ROOT)
        signal.signal(signal.SIGTERM, _terminated)  # as Ctrl-C: the compilers are stopped as well
        target = ROOT if self.inplace or self.editable_mode else Path(self.build_lib).resolve()
        with one_at_a_time():
            self._run(target, compiled_sources())
        self.extensions = []  # setuptools has nothing left to copy

    def _run(self, target: Path, sources: list[Path]) -> None:
        try:
            if target != ROOT or not self._is_fresh(sources):
                self._compile(sources, target)
        except (Exception, SystemExit) as error:  # mypyc ends the program where it meets a type error
            remove_compiled(target)
            reason = str(error) if isinstance(error, CompileError) else f"mypyc or the C compiler failed ({error})"
            if DEMANDED:
                raise SystemExit(f"error: not compiled: {reason}") from error
            print(f"warning: not compiled, going on in plain Python: {reason}", file=sys.stderr)
            self._make_pure()

    def _make_pure(self) -> None:
        """Let a wheel without compiled files say that it is one for every platform."""
        wheel: Any = self.distribution.get_command_obj("bdist_wheel", create=False)
        if wheel is not None:
            wheel.root_is_pure = True

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

        for name in ("c", "lib", "trial"):  # nothing of an earlier attempt may be taken for this one's
            shutil.rmtree(WORK_DIR / name, ignore_errors=True)
        stamp = stamp_text(sources)  # before compiling: an edit meanwhile makes the result stale, as it is
        print(f"build: mypyc turns {len(sources)} modules into C", flush=True)
        # Its own flags, not those of `make lint`: a build must not depend on which stubs are installed.
        flags = ["--config-file=", "--ignore-missing-imports", f"--cache-dir={WORK_DIR / 'cache'}"]
        extensions: list[Any] = mypycify(
            [*flags, *map(str, sources)],
            opt_level=OPT_LEVEL,
            debug_level="0",
            multi_file=True,
            group_name=GROUP,
            target_dir=str(WORK_DIR / "c"),
        )
        for extension in extensions:
            # Where mypyc puts the group's headers: the name of the group has a dot, which its include path leaves out.
            extension.include_dirs.append(str(WORK_DIR / "c" / "lb"))
            extension.extra_compile_args.extend(C_FLAGS)
        build_libraries(extensions, WORK_DIR / "lib")
        _try_import(sources)
        install_compiled(WORK_DIR / "lib", target, stamp if target == ROOT else None)


def _try_import(sources: list[Path]) -> None:
    """In a copy of the packages with the compiled files beside their sources."""
    trial = WORK_DIR / "trial"
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", WORLD["STAMP_NAME"])
        shutil.copytree(ROOT / package, trial / package, ignore=ignore)
    install_compiled(WORK_DIR / "lib", trial, None)
    environment = {name: value for name, value in os.environ.items() if name != WORLD["VARIABLE"]}
    names = [module_name(source) for source in sources]
    # In front of what stands there: an isolated build finds its requirements through this very variable.
    paths = [str(trial), *filter(None, [environment.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, "-c", TRIAL, *names],
        cwd=trial,
        env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=TRIAL_TIMEOUT_S,
        check=False,
    )
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise CompileError(f"the compiled modules do not import: {lines[-1]}")
    shutil.rmtree(trial)


def stand_in() -> list[Extension]:
    """Tells setuptools that this package depends on the platform; mypyc makes the real list. None where nothing will be
    compiled: the wheel is then one for every platform.
    """
    if not WANTED:
        return []
    if "bdist_wheel" in sys.argv:
        missing = missing_for_compiling()
        if missing is not None:
            print(f"warning: not compiled, a wheel in plain Python: {missing}", file=sys.stderr)
            return []
    return [Extension(GROUP_LIBRARY, sources=[])]


if __name__ == "__main__":
    setup(cmdclass={"build_ext": BuildOrGoOn}, ext_modules=stand_in())
