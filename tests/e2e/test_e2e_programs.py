"""Local programs as people have them: with a port of their own, a way to be stopped, files of variables, a line that
says that they are ready.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from activator.runtime.process_stat import stat_fields
from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, Client, ask, burst, failures, request
from tests.e2e.running import CLI, SERVING, Activator, cli, configured, eventually, figures, process_revision


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


def serving_on(port: int) -> list[str]:
    """A program that is not told its port by the activator."""
    return [word.replace("{port}", str(port)) for word in SERVING]


def fixed(port: int, command: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return process_revision(command or serving_on(port), port=port, **more)


# --- ports ----------------------------------------------------------------------------------------------------------


def test_a_program_with_a_port_of_its_own_comes_and_goes(run_activator: RunActivator) -> None:
    """One copy, also with a limit of concurrency; each start waits until the copy before it has left the port."""
    revision = {**fixed(free_port(), idle="100ms"), "container_concurrency": 2}
    activator = run_activator(configured([revision]))
    pids = set()
    for _ in range(3):
        answers = burst(activator.address, 10, request("/sleep/0.01"))
        assert failures(answers) == []
        pids |= {one.body for one in answers if isinstance(one, Answer)}
        eventually(lambda: figures(activator)["processes"] == 0, "back at zero")
    assert len(pids) == 3
    assert activator.revision("app")["failed"] == {}


def test_requests_come_while_the_copy_before_leaves_the_port(run_activator: RunActivator, tmp_path: Path) -> None:
    """The program takes its time to end: the next one must not meet it on the port."""
    port = free_port()
    slowly = ["sh", "-c", 'trap "sleep 0.5; kill $!; exit 0" TERM; "$@" & wait', "sh", *serving_on(port)]
    activator = run_activator(configured([fixed(port, slowly, idle="100ms")]))
    first = ask(activator.address, request())
    eventually(lambda: figures(activator)["wanted"] == 0, "it is on its way out")
    second = ask(activator.address, request(method="POST"))
    assert (first.status, second.status) == (200, 200)
    assert first.body != second.body
    assert activator.revision("app")["failed"] == {}


def test_a_fixed_port_reaches_the_program_by_word_and_by_variable(run_activator: RunActivator) -> None:
    port = free_port()
    by_variable = ["sh", "-c", 'test "$PORT" = "$0" && exec "$@"', "{port}", *SERVING]
    activator = run_activator(configured([fixed(port, by_variable)]))
    assert ask(activator.address, request()).status == 200
    activator.wait_log(f"started default/app#1 on port {port}")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_port_in_use_is_told_before_the_program_starts(
    run_activator: RunActivator, tmp_path: Path, host: str
) -> None:
    started = tmp_path / "started"
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as foreign:
        try:
            foreign.bind((host, 0))
        except OSError as error:
            pytest.skip(f"this machine has no such address: {error}")
        foreign.listen()
        port = foreign.getsockname()[1]
        command = ["sh", "-c", 'touch "$0"; exec "$@"', str(started), *serving_on(port)]
        activator = run_activator(configured([fixed(port, command)]))
        answer = ask(activator.address, request())
        assert (answer.status, answer.reason) == (503, "revision_failed")
        told = answer.body.decode()
        assert f"port {port} is in use by " in told
        assert "(process " in told
        assert "set another `port`" in told
        assert not started.exists()
        foreign.setblocking(False)
        with pytest.raises(BlockingIOError):
            foreign.accept()  # it was not even looked at
    eventually(lambda: ask(activator.address, request()).status == 200, "the port is free")
    assert started.exists()


def test_another_program_that_takes_the_port_during_a_start_is_not_served(
    run_activator: RunActivator, tmp_path: Path
) -> None:
    port, started = free_port(), tmp_path / "started"
    activator = run_activator(configured([fixed(port, ["sh", "-c", 'touch "$0"; sleep 1000', str(started)])]))
    with ExitStack() as stack:
        client = stack.enter_context(Client(activator.address))
        client.send(request())
        eventually(started.exists, "it runs")
        foreign = stack.enter_context(socket.socket())
        foreign.bind(("127.0.0.1", port))
        foreign.listen()
        answer = client.answer()
    assert (answer.status, answer.reason) == (503, "revision_failed")
    assert f"port {port} is served by ".encode() in answer.body
    assert b"not by the program" in answer.body


def test_a_descendant_with_a_session_of_its_own_may_have_the_port(run_activator: RunActivator) -> None:
    port = free_port()
    activator = run_activator(configured([fixed(port, ["sh", "-c", 'setsid "$@" & wait', "sh", *serving_on(port)])]))
    assert ask(activator.address, request()).status == 200


def test_a_port_moves_to_another_revision_by_a_reload(run_activator: RunActivator, tmp_path: Path) -> None:
    port = free_port()
    activator = run_activator(configured([fixed(port)]))
    first = ask(activator.address, request())
    moved = configured([{**fixed(port), "name": "other"}])
    (tmp_path / "activator0.yaml").write_text(json.dumps(moved))
    activator.signal(signal.SIGHUP)
    activator.wait_log(" reloaded")
    second = ask(activator.address, request())
    assert (first.status, second.status) == (200, 200)
    assert first.body != second.body


# --- the end --------------------------------------------------------------------------------------------------------

# Writes the names of the signals that it gets, and ends by the one in argv[3] only.
SIGNALLED = """
import os, signal, socket, sys
def note(number, frame):
    with open(sys.argv[2], "a") as file:
        file.write(signal.Signals(number).name + "\\n")
    if signal.Signals(number).name == sys.argv[3]:
        os._exit(0)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, note)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = listener.accept()
    while connection.recv(65536):
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
    connection.close()
"""


def signalled(path: Path, ends_by: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", SIGNALLED, "{port}", str(path), ends_by]


def test_a_program_is_ended_by_its_signal(run_activator: RunActivator, tmp_path: Path) -> None:
    got = tmp_path / "signals"
    command = signalled(got, "SIGINT")
    activator = run_activator(configured([process_revision(command, idle="100ms", stop={"signal": "SIGINT"})]))
    assert ask(activator.address, request()).status == 200
    eventually(lambda: figures(activator)["processes"] == 0, "long before the grace is over", timeout_s=8.0)
    assert got.read_text().split() == ["SIGINT"]


def test_a_program_that_does_not_end_is_killed_after_its_grace(run_activator: RunActivator, tmp_path: Path) -> None:
    got = tmp_path / "signals"
    stop = {"signal": "SIGUSR1", "grace": "300ms"}
    activator = run_activator(configured([process_revision(signalled(got, "never"), idle="100ms", stop=stop)]))
    assert ask(activator.address, request()).status == 200
    eventually(got.exists, "it got its signal")
    asked_s = time.monotonic()
    eventually(lambda: figures(activator)["processes"] == 0, "killed", timeout_s=8.0)
    assert time.monotonic() - asked_s > 0.2
    assert got.read_text().split() == ["SIGUSR1"]


# Ends some time after its signal, and notes that. With a fourth argument its process group is not that of its parent.
FINISHING = """
import os, signal, socket, sys, time
if sys.argv[3:]:
    os.setsid()
def finish(number, frame):
    time.sleep(0.7)
    with open(sys.argv[2], "a") as file:
        file.write("finished\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, finish)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = listener.accept()
    while connection.recv(65536):
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
    connection.close()
"""


@pytest.mark.parametrize(
    "wrapper",
    ['"$@"; true', '"$@" & wait', 'set -m; "$@" & wait', '"$@" own & trap "exit 0" TERM; wait'],
    ids=["shell", "background", "job control", "own session"],
)
@pytest.mark.parametrize("end", ["idle", "activator"])
def test_a_wrapped_program_has_its_grace(run_activator: RunActivator, tmp_path: Path, wrapper: str, end: str) -> None:
    """The wrapper ends at once with the signal; the program in it does what it has to do first."""
    noted = tmp_path / "noted"
    program = [sys.executable, "-I", "-S", "-c", FINISHING, "{port}", str(noted)]
    idle = "100ms" if end == "idle" else "300s"
    activator = run_activator(configured([process_revision(["sh", "-c", wrapper, "sh", *program], idle=idle)]))
    assert ask(activator.address, request()).status == 200
    if end == "idle":
        eventually(lambda: figures(activator)["processes"] == 0, "it is stopped")
    else:
        activator.signal(signal.SIGTERM)
        activator.wait_end()
    assert noted.read_text() == "finished\n"
    assert not running(activator, str(noted))


def running(activator: Activator, word: str) -> list[int]:
    """The processes that came of the activator and have this in their command line."""
    found = []
    for pid in activator.processes():
        with suppress(OSError):
            if word in Path(f"/proc/{pid}/cmdline").read_bytes().decode():
                found.append(pid)
    return found


def anywhere(word: str) -> list[int]:
    """The living processes of this machine that have this word in their command line, whoever started them."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and word in Path(f"/proc/{name}/cmdline").read_bytes().decode().split("\0"):
                found.append(int(name))
    return found


def test_nginx_in_the_background_is_told_to_stay_and_in_the_foreground_writes_to_its_output(
    run_activator: RunActivator, need_program: Callable[[str], str], tmp_path: Path
) -> None:
    """It overwrites its environment, and opens its log by name."""
    nginx, port, path = need_program("nginx"), free_port(), tmp_path / "nginx.conf"

    def write(daemon: str) -> None:
        path.write_text(
            f"daemon {daemon}; pid {tmp_path}/pid; error_log /dev/stderr notice; events {{}}\n"
            f"http {{ access_log off; server {{ listen 127.0.0.1:{port}; return 200 served; }} }}\n"
        )

    write("on")
    activator = run_activator(configured([fixed(port, [nginx, "-c", str(path)], idle="100ms")]))
    # What it left behind serves until the activator has noticed that the first process ended.
    answer = eventually(partial(refused, activator))
    assert answer is not None
    assert (answer.status, answer.reason) == (503, "revision_failed")
    assert b"put itself into the background" in answer.body
    write("off")
    assert cli("load", "app", "--admin", f"http://{activator.admin}").returncode == 0
    eventually(lambda: not activator.revision("app")["failure"], "it may be tried again")
    assert ask(activator.address, request()).body == b"served"
    activator.wait_log("start worker processes", count=2)


def refused(activator: Activator) -> Answer | None:
    answer = ask(activator.address, request())
    return answer if (answer.status, answer.body) != (200, b"served") else None


def is_another(activator: Activator, body: bytes) -> bool:
    answer = ask(activator.address, request())
    return answer.status == 200 and answer.body != body


@pytest.mark.parametrize("restart", ["stopped", "crashed"])
def test_helpers_that_left_the_process_group_end_with_their_program(run_activator: RunActivator, restart: str) -> None:
    """A helper with a session of its own that takes no signal, for each start of the program."""
    helper = 'setsid sh -c "trap true TERM; while true; do sleep 0.1; done" left-behind & '
    command = ["sh", "-c", helper + 'exec "$@"', "sh", *SERVING]
    stop = {"grace": "200ms"}
    idle = "100ms" if restart == "stopped" else "300s"
    activator = run_activator(configured([process_revision(command, idle=idle, stop=stop)]))
    for _ in range(4):
        answer = ask(activator.address, request())
        assert answer.status == 200
        if restart == "stopped":
            eventually(lambda: figures(activator)["processes"] == 0, "it is stopped")
        else:
            os.kill(int(answer.body), signal.SIGKILL)
            eventually(partial(is_another, activator, answer.body), "another one")
    assert len(running(activator, "left-behind")) == (0 if restart == "stopped" else 1), (
        "one for each program that there is"
    )


def test_a_child_without_our_mark_in_a_session_of_its_own_ends_with_its_program(run_activator: RunActivator) -> None:
    """`env -i` takes the mark off; the parent says whose it is."""
    word = f"without-mark-{os.getpid()}"
    helper = f'env -i setsid sh -c "while true; do sleep 0.1; done" {word} & '
    command = ["sh", "-c", helper + '"$@"; true', "sh", *SERVING]
    activator = run_activator(configured([process_revision(command, idle="100ms", stop={"grace": "300ms"})]))
    for _ in range(3):
        assert ask(activator.address, request()).status == 200
        eventually(lambda: figures(activator)["processes"] == 0, "it is stopped")
        eventually(lambda: not anywhere(word), "nothing of it is left")


def test_what_a_crashed_wrapper_leaves_has_the_signal_and_the_grace(
    run_activator: RunActivator, tmp_path: Path
) -> None:
    """The real server is a child of the wrapper: it is asked to end, and may finish what it does."""
    said = tmp_path / "said"
    server = f"trap 'sleep 0.3; echo finished >> {said}; exit' TERM; while true; do sleep 0.05; done"
    command = ["sh", "-c", 'setsid sh -c "$0" left-by-wrapper & exec "$@"', server, *SERVING]
    activator = run_activator(configured([process_revision(command, stop={"grace": "5s"})]))
    answer = ask(activator.address, request())
    assert answer.status == 200
    os.kill(int(answer.body), signal.SIGKILL)
    eventually(lambda: said.exists() and said.read_text() == "finished\n", "it has had its time")
    eventually(partial(is_another, activator, answer.body), "another one")


# Becomes a daemon as the books have it, and serves as one.
DAEMON = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
null = os.open(os.devnull, os.O_RDWR)
for number in (0, 1, 2):
    os.dup2(null, number)
os.execve(sys.executable, [sys.executable, *sys.argv[2:]], {} if sys.argv[1] == "hidden" else os.environ)
"""


@pytest.mark.parametrize("environment", ["plain", "hidden"])
@pytest.mark.parametrize("is_fixed", [True, False], ids=["its own port", "any port"])
def test_a_program_that_goes_into_the_background_is_told_to_stay(
    run_activator: RunActivator, tmp_path: Path, is_fixed: bool, environment: str
) -> None:
    port = free_port() if is_fixed else 0
    serving = serving_on(port) if is_fixed else SERVING
    command = [sys.executable, "-I", "-S", "-c", DAEMON, environment, *serving[1:]]
    more: dict[str, Any] = {"port": port} if is_fixed else {}
    activator = run_activator(configured([process_revision(command, **more)]))
    answer = ask(activator.address, request())
    assert (answer.status, answer.reason) == (503, "revision_failed")
    assert b"put itself into the background" in answer.body
    assert b"run it in the foreground" in answer.body
    activator.wait_log("run it in the foreground")
    eventually(lambda: not anywhere(serving[-1] if is_fixed else DAEMON), "nothing of it serves any more")
    (tmp_path / "activator0.yaml").write_text(json.dumps(configured([process_revision(serving, **more)])))
    activator.signal(signal.SIGHUP)
    activator.wait_log(" reloaded")
    eventually(lambda: ask(activator.address, request()).status == 200, "the port is free")


# --- what a program is given ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["", "nobody"])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_program_opens_its_output_by_name(run_activator: RunActivator, user: str, stream: str) -> None:
    """As nginx does with `error_log /dev/stderr`, and every shell."""
    if user and os.geteuid() != 0:
        pytest.skip("only root may start a program as another user")
    command = ["sh", "-c", f'echo "error: written by name" > /dev/{stream} && exit 3']
    activator = run_activator(configured([process_revision(command, **({"user": user} if user else {}))]))
    assert b"exited with code 3: error: written by name" in ask(activator.address, request()).body


@pytest.mark.parametrize("limited", [False, True], ids=["plain", "with the launcher"])
def test_a_program_gets_three_descriptors_and_no_socket(run_activator: RunActivator, limited: bool) -> None:
    activator = run_activator(configured([process_revision(SERVING, **({"nice": 1} if limited else {}))]))
    with Client(activator.address) as client:
        client.send(request())
        pid = int(client.answer().body)
        kinds = {name: os.readlink(f"/proc/{pid}/fd/{name}").split(":")[0] for name in os.listdir(f"/proc/{pid}/fd")}
    others = [kind for name, kind in kinds.items() if int(name) > 2]
    assert (kinds["0"], kinds["1"], kinds["2"]) == ("/dev/null", "pipe", "pipe")
    assert others == ["socket", "socket"], "it listens, and has a connection"


# --- directory and variables ----------------------------------------------------------------------------------------

# Answers with the variables A and B and its directory.
TELLING = """
import os, socket
listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
body = " ".join([os.environ["A"], os.environ["B"], os.getcwd()]).encode()
while True:
    connection, _ = listener.accept()
    while connection.recv(65536):
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
    connection.close()
"""


def test_a_file_of_variables_is_read_at_each_start(run_activator: RunActivator, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "app").mkdir(parents=True)
    variables = home / "app" / ".env"
    variables.write_text("# mine\nexport A=one\nB='hidden'\n")
    revision = process_revision(
        [sys.executable, "-I", "-S", "-c", TELLING],
        directory="~/$FOLDER",
        env_file=".env",
        environment={"B": "configured"},
        idle="100ms",
    )
    activator = run_activator(configured([revision]), HOME=str(home), FOLDER="app")
    assert ask(activator.address, request()).body == f"one configured {home}/app".encode()
    eventually(lambda: figures(activator)["processes"] == 0)
    variables.write_text("A=two\n")
    assert ask(activator.address, request()).body == f"two configured {home}/app".encode()
    eventually(lambda: figures(activator)["processes"] == 0)
    variables.write_text("A=three\n\nB secret\n")
    answer = ask(activator.address, request())
    assert (answer.status, answer.reason) == (503, "revision_failed")
    assert answer.body == f"the revision cannot start: {variables}:3: expected KEY=VALUE\n".encode()


def test_check_finds_what_is_missing_here(tmp_path: Path) -> None:
    path = tmp_path / "activator.yaml"
    path.write_text(json.dumps(configured([process_revision(["no-such-program"], directory="~")])))
    done = cli("check", str(path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"activator: {path}:1: revisions[0].process.command: cannot start no-such-program: ")
    assert len(done.stderr.splitlines()) == 1
    path.write_text(json.dumps(configured([process_revision(SERVING, directory="~")])))
    assert cli("check", str(path)).returncode == 0


# --- the line that says that it is ready ----------------------------------------------------------------------------

# Takes one connection in its life, and says so on the stream of argv[2] some time after it listens.
ONE_SHOT = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("warming up", file=sys.stderr, flush=True)
time.sleep(0.3)
print("\\x1b[32mready\\x1b[0m on", sys.argv[1], file=getattr(sys, sys.argv[2]), flush=True)
connection, _ = listener.accept()
listener.close()
connection.recv(65536)
connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\nConnection: close\\r\\n\\r\\ndone")
connection.close()
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_program_that_takes_one_connection_is_ready_by_its_log(run_activator: RunActivator, stream: str) -> None:
    command = [sys.executable, "-I", "-S", "-c", ONE_SHOT, "{port}", stream]
    activator = run_activator(configured([process_revision(command, readiness={"log": r"^ready on \d+$"})]))
    for number in (1, 2):
        answer = ask(activator.address, request())
        assert (answer.status, answer.body) == (200, b"done")
        activator.wait_log("exited with code 0", count=number)  # another one is started 0.1 s later
    assert activator.revision("app")["failed"] == {}


def test_a_line_that_never_comes_ends_with_the_startup_timeout(run_activator: RunActivator) -> None:
    revision = process_revision(SERVING, readiness={"log": "ready"})
    activator = run_activator(configured([{**revision, "timeouts": {"startup": "1s"}}]))
    answer = ask(activator.address, request())
    assert (answer.status, answer.reason) == (503, "revision_failed")
    assert b"the program wrote no line with 'ready' within 1 s" in answer.body


# --- output ---------------------------------------------------------------------------------------------------------


def saying(script: str) -> list[str]:
    """A shell that writes, and the serving program behind it."""
    return ["sh", "-c", f'{script}\nexec "$@"', "sh", *SERVING]


def test_output_carries_the_name_of_its_process_and_stays_readable(run_activator: RunActivator, tmp_path: Path) -> None:
    file = tmp_path / "out.log"
    revision = process_revision(
        saying("echo to stdout; echo to stderr >&2; printf 'no end' >&2; sleep 0.1"), logs={"file": str(file)}
    )
    activator = run_activator(configured([revision]))
    assert cli("logs", "app", "--admin", activator.admin).stdout == ""
    assert ask(activator.address, request()).status == 200
    activator.wait_log(r"^app#1 \| to stderr$")

    def logged() -> str:
        return cli("logs", "app", "-n", "2", "--admin", activator.admin).stdout

    eventually(lambda: "to stdout" in logged() and "to stderr" in logged(), "both streams are there")
    assert {line.split(" ", 1)[1] for line in file.read_text().splitlines()} >= {"app#1 to stdout", "app#1 to stderr"}
    refused = cli("logs", "nobody", "--admin", activator.admin)
    assert refused.returncode == 1
    assert "there is no revision nobody; `activator status` lists them" in refused.stderr


def test_who_follows_sees_the_next_process_too(run_activator: RunActivator) -> None:
    activator = run_activator(configured([process_revision(saying('echo "I am $$"'), idle="100ms")]))
    with subprocess.Popen(
        [*CLI, "logs", "app", "-f", "--admin", activator.admin], stdout=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        try:
            for number in (1, 2):
                assert ask(activator.address, request()).status == 200
                assert follower.stdout.readline().startswith(f"app#{number} | I am ")
                eventually(lambda: figures(activator)["processes"] == 0, "back at zero")
        finally:
            follower.kill()


def test_a_program_that_writes_without_an_end_holds_nobody_up(run_activator: RunActivator) -> None:
    """Lines on one stream, a line without an end on the other; the other revision answers as if nothing were."""
    loud = saying("yes & cat /dev/zero >&2 &")
    revisions = [
        {**process_revision(loud, logs={"show": False}), "name": "loud", "hosts": ["loud.test"]},
        {**process_revision(SERVING), "hosts": ["app.test"]},
    ]
    activator = run_activator(configured(revisions))
    assert ask(activator.address, request(host="loud.test")).status == 200
    for _ in range(200):
        assert ask(activator.address, request(host="app.test"), timeout_s=10.0).status == 200
    assert activator.revision("loud")["failed"] == {}
    assert len(cli("logs", "loud", "--admin", activator.admin).stdout.splitlines()) <= 101


def test_nobody_reads_our_own_output(run_activator: RunActivator, tmp_path: Path) -> None:
    """Standard output is a pipe that is full: lines of the program are lost, and requests are served."""
    path, pipe = tmp_path / "one.yaml", tmp_path / "pipe"
    path.write_text(json.dumps(configured([process_revision(saying("yes $(printf %0400d 0) &"))])))
    os.mkfifo(pipe)
    prefix = ["sh", "-c", 'exec 9<>"$0"; exec "$@" >&9', str(pipe)]
    activator = run_activator(arguments=["-c", str(path)], prefix=prefix)
    for _ in range(100):
        assert ask(activator.address, request(), timeout_s=10.0).status == 200
    eventually(lambda: json.loads(activator.ask("/logs/app")[2])["lost"] > 0, "lines are lost")
    activator.wait_logged_once("dropping output of programs: the reader of our stdout is too slow")


# --- limits, and commands beside the program ------------------------------------------------------------------------


def test_a_program_is_limited_before_it_begins(run_activator: RunActivator) -> None:
    """A shell that answers nothing: another user may not be able to read where Python is."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    last = max(os.sched_getaffinity(0))
    said = 'echo "$(id -un) $(id -gn) $HOME $(nice) $(ulimit -d) $(taskset -cp $$ | sed "s/.*: //")"; exec sleep 1000'
    limits = {"user": "nobody", "nice": 7, "cpus": str(last), "memory": "512MiB", "directory": "/"}
    command = ["sh", "-c", said]
    activator = run_activator(
        configured([process_revision(command, min_scale=1, readiness={"log": "nobody"}, **limits)])
    )
    nobody = pwd.getpwnam("nobody")
    group = grp.getgrgid(nobody.pw_gid).gr_name
    shown = eventually(lambda: cli("logs", "app", "--admin", activator.admin).stdout)
    assert shown == f"app#1 | nobody {group} {nobody.pw_dir} 7 524288 {last}\n"


def test_memory_beyond_the_limit_is_refused(run_activator: RunActivator) -> None:
    greedy = [sys.executable, "-I", "-S", "-c", "x = bytearray(300 << 20)"]
    activator = run_activator(configured([process_revision(greedy, memory="100MiB")]))
    answer = ask(activator.address, request())
    assert (answer.status, answer.reason) == (503, "revision_failed")
    assert b"MemoryError" in answer.body


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"user": "nobody-here"}, b"this machine has no such user; name another, or create it"),
        ({"user": "root:nobody-here"}, b"this machine has no such group; name another, or create it"),
        ({"cpus": "0,4000"}, b"there is no processor 4000 here"),
        ({"readiness": {"command": ["nothing-like-it"]}}, b"cannot start nothing-like-it: there is no such program"),
    ],
)
def test_what_is_not_possible_is_told(run_activator: RunActivator, more: dict[str, Any], told: bytes) -> None:
    activator = run_activator(configured([process_revision(SERVING, **more)]))
    answer = ask(activator.address, request())
    assert (answer.status, answer.reason) == (503, "revision_failed")
    assert told in answer.body


def test_a_command_says_when_it_is_ready(run_activator: RunActivator, tmp_path: Path) -> None:
    """Nothing connects before; a command that hangs is ended and asked again."""
    asked = tmp_path / "asked"
    script = 'echo x >> "$0"; n=$(wc -l < "$0"); [ $n = 1 ] && exec sleep 1000; [ $n -ge 4 ]'
    readiness = {"command": ["sh", "-c", script, str(asked)], "interval": "10ms"}
    revision = {**process_revision(SERVING, readiness=readiness), "timeouts": {"startup": "30s"}}
    activator = run_activator(configured([revision]))
    assert ask(activator.address, request(), timeout_s=30.0).status == 200
    assert len(asked.read_text().splitlines()) == 4
    activator.wait_logged_once("took longer than 10 s, and was killed")


def test_a_command_that_never_says_so_fails_the_start(run_activator: RunActivator) -> None:
    revision = {
        **process_revision(SERVING, readiness={"command": ["false"], "interval": "10ms"}),
        "timeouts": {"startup": "300ms"},
    }
    activator = run_activator(configured([revision]))
    answer = ask(activator.address, request())
    assert (answer.status, answer.reason) == (503, "revision_failed")
    assert b"false (`readiness.command`) did not end with exit code 0 within 0.3 s" in answer.body


def test_a_command_ends_the_program(run_activator: RunActivator, tmp_path: Path) -> None:
    """In the place of the signal; what it leaves running is killed after the grace."""
    told, got = tmp_path / "told", tmp_path / "signals"
    stop = {"command": ["sh", "-c", 'echo "$PORT {port}" >> "$0"', str(told)], "grace": "300ms"}
    activator = run_activator(configured([process_revision(signalled(got, "SIGTERM"), idle="100ms", stop=stop)]))
    assert ask(activator.address, request()).status == 200
    eventually(lambda: figures(activator)["processes"] == 0, "it is ended")
    one, other = told.read_text().split()
    assert one == other
    assert not got.exists(), "no signal that it could have seen"


@pytest.mark.parametrize(
    ("command", "how"),
    [
        (["sh", "-c", "exit 3"], "ended with exit code 3"),
        (["sleep", "1000"], "did not run to its end"),
        (["./no-such-program"], "did not run to its end"),
    ],
    ids=["fails", "hangs", "missing"],
)
def test_where_its_command_fails_the_program_gets_the_signal_and_the_grace(
    run_activator: RunActivator, tmp_path: Path, command: list[str], how: str
) -> None:
    got, gate = tmp_path / "signals", tmp_path / "no-such-program"
    if "/" in command[0]:  # `check` has seen it, and somebody has removed it
        gate.write_text("#!/bin/sh\n")
        gate.chmod(0o755)
    stop = {"command": command, "grace": "500ms"}
    program = signalled(got, "SIGTERM")
    activator = run_activator(configured([process_revision(program, idle="100ms", directory=str(tmp_path), stop=stop)]))
    assert ask(activator.address, request()).status == 200
    gate.unlink(missing_ok=True)
    eventually(lambda: figures(activator)["processes"] == 0, "it is ended")
    assert got.read_text().split() == ["SIGTERM"]
    activator.wait_log(rf"\(`stop.command`\) {how}: the program gets SIGTERM")


# --- process 1 of a container -----------------------------------------------------------------------------------------


def zombies_of(parent: int) -> int:
    """How many children of a process have ended, and it has not waited for."""
    count = 0
    for name in os.listdir("/proc"):
        with suppress(OSError):
            count += name.isdigit() and stat_fields(name)[:2] == [b"Z", b"%d" % parent]
    return count


@pytest.mark.parametrize("workers", [1, 2])
def test_as_process_1_it_waits_for_what_nobody_else_waits_for(run_activator: RunActivator, workers: int) -> None:
    """As in a container whose entry point is the activator. The exit codes of its own children are not lost."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no process namespaces here")
    orphans = 'for n in 1 2 3 4 5 6 7 8 9; do (sh -c "exit 0" & ); done; exec "$@"'
    command = ["sh", "-c", orphans, "sh", *SERVING]
    revisions = [process_revision(command, idle="100ms"), {**process_revision(["sh", "-c", "exit 3"]), "name": "bad"}]
    revisions[1]["hosts"] = ["bad.test"]
    activator = run_activator(configured(revisions, workers=workers), prefix=alone)
    first = int(Path(f"/proc/{activator.process.pid}/task/{activator.process.pid}/children").read_text())
    for _ in range(3):
        assert ask(activator.address, request()).status == 200
        eventually(lambda: figures(activator)["processes"] == 0, "the program has gone")
    answer = ask(activator.address, request(host="bad.test"))
    assert b"exited with code 3" in answer.body, "its exit code was not lost"
    eventually(lambda: zombies_of(first) == 0, "no zombies are left")
    os.kill(first, signal.SIGTERM)
    assert activator.wait_end() == 0


# --- failed starts ----------------------------------------------------------------------------------------------------


def failed_until(activator: Activator, at_least_s: int) -> int:
    """Ask until the revision waits so long for its next start; the last `Retry-After`."""
    for _ in range(10):
        answer = ask(activator.address, request())
        assert (answer.status, answer.reason) == (503, "revision_failed"), answer
        retry_s = int(dict(answer.headers)["retry-after"])
        if retry_s >= at_least_s:
            return retry_s
        eventually(lambda: not activator.revision("app")["failure"], "another start may be tried")
    raise AssertionError("the backoff does not grow, or `Retry-After` does not follow it")


def test_a_client_is_told_when_the_next_start_may_be_tried(run_activator: RunActivator) -> None:
    activator = run_activator(configured([process_revision(["sh", "-c", "exit 3"])]))
    # 3.2 s, rounded up; an answer that comes late says less, and the next one 6.4 s.
    assert 4 <= failed_until(activator, 4) <= 7


@pytest.mark.parametrize("way", ["reload", "load"])
def test_who_corrects_a_program_does_not_wait_for_its_backoff(
    run_activator: RunActivator, tmp_path: Path, way: str
) -> None:
    gate = tmp_path / "gate"
    command = ["sh", "-c", 'test -e "$0" && exec "$@"', str(gate), *SERVING]
    activator = run_activator(configured([process_revision(command)]))
    failed_until(activator, 7)
    asked_s = time.monotonic()
    if way == "reload":
        (tmp_path / "activator0.yaml").write_text(json.dumps(configured([process_revision(SERVING)])))
        activator.signal(signal.SIGHUP)
        activator.wait_log(" reloaded")
    else:
        gate.touch()
        assert cli("load", "app", "--admin", f"http://{activator.admin}").returncode == 0
    eventually(lambda: not activator.revision("app")["failure"], "it may be tried again")
    assert ask(activator.address, request()).status == 200
    assert time.monotonic() - asked_s < 5.0, "the backoff is 6.4 s"


# --- restart --------------------------------------------------------------------------------------------------------


def test_a_restart_fails_no_request(run_activator: RunActivator) -> None:
    """Those under way are finished by the program that has them; the next ones wait for the other one."""
    activator = run_activator(configured([process_revision(SERVING, idle="300s")]))
    before = ask(activator.address, request("/sleep/0")).body
    with ExitStack() as stack:
        slow = [stack.enter_context(Client(activator.address)) for _ in range(4)]
        for client in slow:
            client.send(request("/sleep/1"))
        eventually(lambda: activator.revision("app")["in_flight"] == 4, "four requests are at the pod")
        done = cli("restart", "app", "--admin", f"http://{activator.admin}")
        assert (done.returncode, done.stdout) == (0, "restarting app\n")
        answers = burst(activator.address, 20, request("/sleep/0"))
        assert failures(answers) == []
        assert {one.body for one in answers if isinstance(one, Answer)}.isdisjoint({before})
        assert {client.answer().body for client in slow} == {before}
    eventually(lambda: figures(activator)["processes"] == 1, "the former one is gone")
    done = cli("restart", "nobody", "--admin", f"http://{activator.admin}")
    assert done.returncode == 1 and "there is no revision nobody" in done.stderr
    status, _, body = activator.command("/restart/nobody")
    assert (status, b"nobody: there is no such revision" in body) == (409, True)
