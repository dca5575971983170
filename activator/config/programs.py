"""The environment of a local program: its directory, its variables, and whether the program exists.

Rules
  1. Everything is looked up when a process starts, and by `activator check`; files are read at each start.
  2. A mistake is a `ConfigError` whose lines have the correction. No message shows the value of a variable.
  3. `~`, `$VAR` and `${VAR}` are expanded only in paths; `$$` is a dollar sign. A command is a list, as for exec.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from activator.config.model.containers import Container
from activator.config.model.programs import Process
from activator.config.tree import is_setting
from activator.runtime.errors import ConfigError
from activator.runtime.secret_text import VARIABLES
from activator.runtime.unix_address import problem_with

ENV_FILE_BYTES_MAX: Final = 256 * 1024  # variables and arguments of a program may have a few MiB together

_NUMBER: Final = re.compile(r"[0-9]{1,4}", re.ASCII)
_VARIABLE: Final = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\})", re.ASCII)
_LINE: Final = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*(.*)", re.ASCII | re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "$": "$"}


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Expand a path as a shell would. Raises ConfigError."""

    def value_of(match: re.Match[str]) -> str:
        name = match[2] or match[3]
        if match[1]:
            return "$"
        if name not in environ:
            raise ConfigError([f"{text}: the variable {name} is not set: set it, or write $$ for a dollar sign"])
        return environ[name]

    home = ""
    if text.startswith("~"):
        user, slash, rest = text.partition("/")
        home = (environ.get("HOME", "") if user == "~" else "") or os.path.expanduser(user)
        if home == user:
            raise ConfigError([f"{text}: there is no such user: correct the name behind ~"])
        text = slash + rest
    return home + _VARIABLE.sub(value_of, text)


def directory_of(process: Process, environ: Mapping[str, str]) -> str:
    """Return the working directory; empty: that of the activator. Raises ConfigError."""
    directory = expand(process.directory, environ)
    if directory and not os.path.isdir(directory):
        reason = "it is not a directory" if os.path.exists(directory) else "no such directory"
        raise ConfigError([f"cannot start in {directory}: {reason}; create it, or correct `directory`"])
    return directory


def socket_of(process: Process, environ: Mapping[str, str]) -> str:
    """Return the absolute path of the program's Unix socket; empty if there is none. Raises ConfigError."""
    text = process.socket_path()
    if not text:
        return ""
    path = os.path.abspath(os.path.join(expand(process.directory, environ), expand(text, environ)))
    problem = problem_with(path)
    if problem:
        raise ConfigError([f"{text}: {problem}"])
    return path


def variables_of(process: Process, directory: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return all environment variables of a program. Raises ConfigError.

    Variables that configure the activator are left out because they may be secrets (`ACTIVATOR_ADMIN__TOKEN`), as are
    those from which a secret of the configuration was read (`env:NAME`).
    """
    variables = {name: value for name, value in environ.items() if not is_setting(name) and name not in VARIABLES}
    if process.user:
        user, _ = _user(process.user)
        variables |= {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    if process.env_file:
        variables |= read_env_file(os.path.join(directory, expand(process.env_file, environ)))
    return variables | process.environment


def container_variables(container: Container, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a container, in addition to its image's. Raises ConfigError."""
    variables = read_env_file(os.path.abspath(expand(container.env_file, environ))) if container.env_file else {}
    return variables | container.environment


def split_volume(text: str) -> tuple[str, str, str] | None:
    """Return source, target and options of a volume; None if it is malformed."""
    source, colon, rest = text.partition(":")
    target, _, options = rest.partition(":")
    if not colon or not source or not target.startswith("/") or ":" in options or "\0" in text:
        return None
    return source, target, options


def volumes_of(container: Container, environ: Mapping[str, str]) -> list[str]:
    """Return the volumes as an engine takes them: absolute paths, or names of its volumes. Raises ConfigError."""
    volumes = []
    for text in container.volumes:
        parts = split_volume(text)
        if parts is None:
            raise ConfigError([f"{text}: expected SOURCE:/TARGET, or SOURCE:/TARGET:ro"])
        source, target, options = parts
        if "/" in source or source.startswith(("~", "$", ".")):
            source = os.path.abspath(expand(source, environ))
            if not os.path.exists(source):
                raise ConfigError([f"{text}: there is no {source}; create it, or correct `volumes`"])
        volumes.append(":".join([source, target, options] if options else [source, target]))
    return volumes


def limits_of(process: Process) -> list[str]:
    """Return the limits of a program as launcher.py takes them, in the order of application; empty: there are none.

    Raises ConfigError.
    """
    limits = []
    if process.cpus:
        limits.append(f"cpus={_listed(_processors(process.cpus))}")
    if process.nice:
        limits.append(f"nice={process.nice}")
    if process.memory:
        limits.append(f"memory={int(process.memory)}")
    if process.user:
        user, group = _user(process.user)
        groups = sorted({group, *os.getgrouplist(user.pw_name, group)})
        limits.append(f"user={_listed([user.pw_uid, group, *groups])}")
    return limits


def _listed(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def parse_processors(text: str) -> list[int] | None:
    """Parse numbers and ranges such as `0-3,6`; None if the list is malformed."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        last = last if dash else first
        if not (_NUMBER.fullmatch(first) and _NUMBER.fullmatch(last)) or int(first) > int(last):
            return None
        numbers.update(range(int(first), int(last) + 1))
    return sorted(numbers)


def _processors(text: str) -> list[int]:
    """Return the processors that a text lists. Raises ConfigError if this machine lacks one of them."""
    wanted, available = parse_processors(text) or [], os.sched_getaffinity(0)
    missing = [str(number) for number in wanted if number not in available]
    if missing:
        have = f"{len(available)} processors, {min(available)} to {max(available)}"
        raise ConfigError([f"cpus: {text}: there is no processor {missing[0]} here ({have}); correct `cpus`"])
    return wanted


def _user(text: str) -> tuple[pwd.struct_passwd, int]:
    """Return the user and the number of the group in `USER` or `USER:GROUP`. Raises ConfigError."""
    name, _, group = text.partition(":")
    try:
        user = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except (KeyError, OverflowError):
        raise ConfigError([f"user: {text}: this machine has no such user; name another, or create it"]) from None
    if not group:
        return user, user.pw_gid
    try:
        return user, (grp.getgrgid(int(group)) if group.isdecimal() else grp.getgrnam(group)).gr_gid
    except (KeyError, OverflowError):
        raise ConfigError([f"user: {text}: this machine has no such group; name another, or create it"]) from None


def owner_of(process: Process) -> tuple[int, int]:
    """Return the numbers of the user and the group of a program that has a `user`. Raises ConfigError."""
    user, group = _user(process.user)
    return user.pw_uid, group


def log_file_of(program: Process | Container, environ: Mapping[str, str]) -> str:
    """Return the file for the output. Raises ConfigError."""
    directory = expand(program.directory, environ) if isinstance(program, Process) else ""
    path = os.path.abspath(os.path.join(directory, expand(program.logs.file, environ)))
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise ConfigError([f"{path}: there is no directory {folder}; create it, or correct `file`"])
    if os.path.isdir(path):
        raise ConfigError([f"{path}: is a directory; give a file"])
    return path


def check_program(command: list[str], directory: str, variables: Mapping[str, str]) -> None:
    """Raise ConfigError if the first word of a command is not a program that can be run."""
    word = command[0]
    if "/" not in word:
        if shutil.which(word, path=variables.get("PATH", os.defpath)) is None:
            is_in_directory = os.access(os.path.join(directory, word), os.X_OK)
            advice = f"write ./{word}" if is_in_directory else "check its spelling, or give its whole path"
            raise ConfigError([f"cannot start {word}: there is no such program in the PATH; {advice}"])
        return
    path = os.path.join(directory, word)
    if not os.path.exists(path):
        raise ConfigError([f"cannot start {word}: no such file; check its spelling (~ and $VAR are not expanded here)"])
    if os.path.isdir(path):
        raise ConfigError([f"cannot start {word}: it is a directory; give a program"])
    if not os.access(path, os.X_OK):
        advice = "make it so (chmod +x), or put its interpreter before it"
        raise ConfigError([f"cannot start {word}: it is not executable; {advice}"])


def read_env_file(path: str) -> dict[str, str]:
    """Read the variables of a file. Raises ConfigError with the line of each mistake."""
    if os.path.exists(path) and not os.path.isfile(path):  # reading a pipe would block
        raise ConfigError([f"{path}: is not a file; correct `env_file`"])
    try:
        with Path(path).open("rb") as file:
            data = file.read(ENV_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}; correct `env_file`"]) from None
    if len(data) > ENV_FILE_BYTES_MAX:
        raise ConfigError([f"{path}: has more than {ENV_FILE_BYTES_MAX} bytes; variables are meant to be short"])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError([f"{path}:{line}: found bytes that are not UTF-8, expected text"]) from None
    return parse_env(text, path)


def parse_env(text: str, name: str) -> dict[str, str]:
    """Parse `KEY=VALUE` lines: comments, `export`, values in single quotes (literal) or double ones (with escapes)."""
    variables: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            problems.append(f"{name}:{number}: expected KEY=VALUE")
            continue
        value = _value_of(match[2])
        if value is None:
            problem = "the quotes do not fit: close them on the line, and put nothing but a comment behind them"
            problems.append(f"{name}:{number}: {match[1]}: {problem}")
        elif "\0" in value:
            problems.append(f"{name}:{number}: {match[1]}: a value cannot have a null byte: remove it")
        else:
            variables[match[1]] = value
    if problems:
        raise ConfigError(problems)
    return variables


def _value_of(text: str) -> str | None:
    """Return the value in the text behind `=`; None if its quotes do not match."""
    if text[:1] not in ("'", '"'):
        if text.startswith("#"):
            return ""
        return re.split(r"\s#", text, maxsplit=1)[0].rstrip()
    quote, value, index = text[0], [], 1
    while index < len(text) and text[index] != quote:
        letter = text[index]
        if quote == '"' and letter == "\\" and text[index + 1 : index + 2] in _ESCAPES:
            index += 1
            letter = _ESCAPES[text[index]]
        value.append(letter)
        index += 1
    rest = text[index + 1 :].lstrip()
    if index >= len(text) or (rest and not rest.startswith("#")):
        return None
    return "".join(value)
