"""Clean up after the activator: kill its programs, and remove its folders and containers.

It runs as a separate program that imports only the smallest part of the standard library. It reads `+group` and
`-group` lines from its standard input. When that ends, however the activator died, it kills every process group that is
still listed and every process that carries the activator's mark in its environment, including descendants with sessions
of their own, and waits until they have ended, for at most `PATIENCE_S`. Then it removes the folders of `=folder` lines.
A line `+/path` names the socket of a container engine: it removes every container there that has the mark as a label.
"""

import os
import signal
import sys
import time

MARK = "ACTIVATOR_REAPER"
CONTAINER_MARK = "activator.instance"
PATIENCE_S = 5.0
EXECUTES_S = 0.2  # how long `living` waits for processes that execute another program
ANSWER_BYTES_MAX = 1 << 24
FLAGS, ENV_END = 6, 48  # fields of /proc/PID/stat after the command name
WITHOUT_MEMORY = 0x20_0004  # PF_KTHREAD and PF_EXITING in FLAGS


def living(groups: set[int], mark: bytes) -> list[int] | None:
    """Return the processes of these groups, or with the mark in their environment; None if there is no /proc.

    A group includes its session, which its first process leads: a shell with job control makes further groups. Zombies
    are left out: some inits wait for them only after a second, some never, and they cannot run.
    """
    try:
        names = os.listdir("/proc")
    except OSError:
        return None
    alive: list[int] = []
    unchecked = [name for name in names if name.isdigit() and int(name) != os.getpid()]
    give_up = time.monotonic() + EXECUTES_S
    while True:
        executing = []
        for name in unchecked:
            try:
                is_ours = belongs(name, groups, mark)
            except OSError:
                continue  # it has ended, or belongs to another user
            if is_ours:
                alive.append(int(name))
            elif is_ours is None:
                executing.append(name)
        if not executing or time.monotonic() > give_up:
            return alive
        unchecked = executing
        time.sleep(0.001)


def belongs(name: str, groups: set[int], mark: bytes) -> bool | None:
    """Return True if a process is one of those that `living` returns; None if that is not known yet. Raises OSError."""
    fields = stat(name)
    state, _, group, session = fields[:4]
    if state in (b"Z", b"X"):
        return False
    if int(group) in groups or int(session) in groups:
        return True
    variables = environment(name, fields)
    return None if variables is None else mark in variables


def environment(name: str, before: list[bytes]) -> bytes | None:
    """Return the environment of a process, whose fields in /proc/NAME/stat were `before`. Raises OSError.

    Return None if it executes another program just now: the kernel shows no environment until the new stack is made.
    """
    for _ in range(2):  # an empty one is read again: a mistake here ends another program
        with open(f"/proc/{name}/environ", "rb") as file:
            variables = file.read()
        if variables or int(before[FLAGS]) & WITHOUT_MEMORY:
            return variables
        if not before[ENV_END] == stat(name)[ENV_END] != b"0":  # another stack than before: it was replaced
            return None
    return b""


def stat(name: str) -> list[bytes]:
    """Return the fields of /proc/NAME/stat after the command name. Raises ProcessLookupError.

    It duplicates `stat_fields` of `runtime/process_stat.py`, which the reaper does not import.
    """
    for _ in range(3):
        with open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        if len(fields) > ENV_END:
            return fields
    raise ProcessLookupError


def kill_all(groups: set[int], mark: bytes) -> bool:
    """Kill the groups and the processes with the mark; True if there were any."""
    killed = [group for group in groups if kill(-group)]
    alive = living(groups, mark)
    if alive is None:
        return bool(killed)
    for process in alive:
        kill(process)
    return bool(alive)


def kill(process: int) -> bool:
    """Kill a process, or a group by a negative number; False if there is none."""
    try:
        os.kill(process, signal.SIGKILL)
    except OSError:
        return False
    return True


def remove_all(path: str, mark: str) -> bool:
    """Remove the containers of the engine at `path` that carry the mark; True if there were any.

    The next activator removes what cannot be removed now.
    """
    import json  # needed only if there are containers

    query = json.dumps({"label": [f"{CONTAINER_MARK}={mark}"]}).replace('"', "%22").replace(" ", "")
    try:
        listed = json.loads(call_engine(path, f"GET /containers/json?all=true&filters={query}"))
        names = [container["Id"] for container in listed if container["Id"].isalnum()]
        for name in names:
            call_engine(path, f"POST /containers/{name}/kill?signal=SIGKILL")
            call_engine(path, f"DELETE /containers/{name}?force=true&v=true")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # it is unreachable, or not an engine
    return bool(names)


def call_engine(path: str, request: str) -> bytes:
    """Return the body of the engine's response. Raises OSError."""
    import socket

    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(path)
        sock.sendall(f"{request} HTTP/1.0\r\nHost: engine\r\nContent-Length: 0\r\n\r\n".encode())
        data = b""
        while len(data) < ANSWER_BYTES_MAX and (part := sock.recv(65_536)):
            data += part
    return data.partition(b"\r\n\r\n")[2]


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    mark = f"{MARK}={sys.argv[1]}".encode()
    groups: set[int] = set()
    folders: list[str] = []
    engines: list[str] = []
    for line in sys.stdin:
        if line[0] == "=":
            folders.append(line[1:-1])
            continue
        if line[1] == "/":
            engines.append(line[1:-1])
            continue
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    give_up = time.monotonic() + PATIENCE_S
    while kill_all(groups, mark) and time.monotonic() < give_up:
        time.sleep(0.01)
    if any(os.path.lexists(folder) for folder in folders):
        import shutil

        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    give_up = time.monotonic() + PATIENCE_S
    for path in engines:
        while remove_all(path, sys.argv[1]) and time.monotonic() < give_up:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
