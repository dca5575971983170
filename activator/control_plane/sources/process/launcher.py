"""Limit this process (cgroup, processors, priority, memory, user) and then execute a program in it.

It runs as a separate program and imports only the smallest part of the standard library (8 ms), so that no code of the
activator runs between fork and exec in a process with threads. Arguments: `cgroup=PATH`, `KEY=NUMBER,…` for each limit,
`--`, and the command, which is looked up in PATH. The process number stays the same. A failure is one line on standard
error, and the exit code is NOT_POSSIBLE.
"""

import os
import resource
import sys

NOT_POSSIBLE = 126


def limit(key: str, values: list[int]) -> str:
    """Apply one setting to this process: a resource limit or the user. Return the error, or an empty string."""
    step = f"set `{key}`"
    try:
        if key == "cpus":
            step = "run on the processors of `cpus`"
            os.sched_setaffinity(0, values)
        elif key == "nice":
            step = "set `nice` (below 0 needs root)"
            os.setpriority(os.PRIO_PROCESS, 0, values[0])
        elif key == "memory":
            resource.setrlimit(resource.RLIMIT_DATA, (values[0], values[0]))
        elif key == "user":  # uid, gid, supplementary groups
            step = "become `user` (that needs root)"
            os.setgroups(values[2:])
            os.setgid(values[1])
            os.setuid(values[0])
    except (OSError, ValueError) as error:
        return f"cannot {step}: {error.strerror if isinstance(error, OSError) else error}"
    return ""


def join(cgroup: str) -> str:
    """Move this process into the cgroup; return why that is not possible, or an empty string."""
    try:
        with open(os.path.join(cgroup, "cgroup.procs"), "w") as procs:
            procs.write("0")
    except OSError as error:
        return f"cannot enter the cgroup {cgroup}: {error.strerror}"
    return ""


def start(paths: list[str], command: list[str]) -> str:
    """Execute the first of these programs that exists; return why that is not possible."""
    problem = "no such program"
    for path in paths:
        try:
            os.execv(path, command)
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = error.strerror or "not possible"
    return f"cannot start {command[0]}: {problem}"


def main() -> None:
    separator = sys.argv.index("--")
    command = sys.argv[separator + 1 :]
    # Found before the change of the user: the new user may not be able to read the modules that this imports.
    is_path = "/" in command[0]
    paths = [command[0]] if is_path else [os.path.join(folder, command[0]) for folder in os.get_exec_path()]
    for setting in sys.argv[1:separator]:
        key, _, words = setting.partition("=")
        problem = join(words) if key == "cgroup" else limit(key, [int(number) for number in words.split(",")])
        if problem:
            break
    else:
        problem = start(paths, command)
    sys.stderr.write(f"{problem}\n")
    sys.exit(NOT_POSSIBLE)


if __name__ == "__main__":
    main()
