"""Cold starts: what the first request of `activator run -- CMD` waits for, split into phases.

Rules
  1. One cold start per life of the activator: it is started, asked once, and stopped.
  2. The phases come from the clock that all processes share: the client's, and the started program's own notes.
  3. A first request that is not answered with 200 spoils the run: exit code 1.

Phases: "start" from the request's being sent to the program's first line (fork, exec, its interpreter); "listen" from
there to its port's answering (the program's own affair); "hand over" until the held request is at the program (the
activator's affair: it must see the port and connect); "answer" until the client has it.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import sys
import tempfile
import time
from pathlib import Path

import msgspec

import lb
from bench import header, results
from bench.generator import percentile
from bench.processes import LOOPBACK, ROOT, answers, free_port, running
from bench.results import Document, Result

ANSWER_TIMEOUT_S = 30.0


class Life(msgspec.Struct, frozen=True):
    """What the program says about itself."""

    started_s: float
    listening_s: float
    request_s: float


class ColdStart(msgspec.Struct, frozen=True):
    """One first request."""

    sent_s: float
    life: Life
    answered_s: float

    def phases_ms(self) -> dict[str, float]:
        """In the order of their happening, the sum last."""
        points = [self.sent_s, self.life.started_s, self.life.listening_s, self.life.request_s, self.answered_s]
        lasted = [(later - earlier) * 1e3 for earlier, later in itertools.pairwise(points)]
        return dict(zip(PHASES, [*lasted, (self.answered_s - self.sent_s) * 1e3]))


PHASES = ["start", "listen", "hand over", "answer", "total"]


def run(rounds: int, json_path: str | None) -> int:
    """The whole of `python -m bench cold`. Raises BenchError."""
    head = header.collect([])
    print(header.one_line(head))
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    starts: list[ColdStart] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        for number in range(rounds):
            try:
                starts.append(_once(Path(name) / f"{number}.log"))
            except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
                failures.append(f"{type(error).__name__}: {error}")
    print("\n" + results.table(*rows(starts)) + "\n")
    print(
        f"Measured: {rounds} lives of `activator run -- CMD`, one first request each, no core reserved for anybody.\n"
        "\"hand over\" is the activator's: from the port's answering until the held request is at the program.\n"
        f"The program is a bare Python server; {len(failures)} failures."
    )
    if json_path is not None:
        results.write(json_path, Document(head, figures(starts, len(failures))))
    for failure in failures:
        print(f"bench: a first request failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _once(log: Path) -> ColdStart:
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", "activator.cli", "run", "--log-level", "warning"]
    command += ["--listen", f"{LOOPBACK}:{port}", "--admin", f"{LOOPBACK}:{admin_port}"]
    command += ["--", sys.executable, str(ROOT / "bench" / "cold_program.py"), "{port}"]
    with running(command, log) as child:
        child.wait_until(answers(admin_port, "/readyz"))
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ANSWER_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.connect()
            assert isinstance(connection.sock, socket.socket)
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sent_s = time.monotonic()
            connection.request("GET", "/", headers={"Host": "bench.localhost"})
            answer = connection.getresponse()
            content = answer.read()
            answered_s = time.monotonic()
        if answer.status != 200:
            raise http.client.HTTPException(f"status {answer.status}: {content[:200]!r}")
        child.check_alive()
        return ColdStart(sent_s, msgspec.json.decode(content, type=Life), answered_s)


def sorted_phases_ms(starts: list[ColdStart]) -> dict[str, list[float]]:
    """By phase, ascending."""
    each = [start.phases_ms() for start in starts]
    return {phase: sorted(one[phase] for one in each) for phase in PHASES}


def rows(starts: list[ColdStart]) -> tuple[list[str], list[list[str]]]:
    """The table on the terminal."""
    lines = []
    for phase, ordered in sorted_phases_ms(starts).items():
        shares = [percentile(ordered, share) for share in (0.0, 0.50, 0.99)] if ordered else [None] * 3
        lines.append([phase, *map(results.figure, shares)])
    return ["phase", "min ms", "p50 ms", "p99 ms"], lines


def figures(starts: list[ColdStart], failures: int) -> list[Result]:
    """For the JSON file."""
    params: dict[str, results.Value] = {"compiled": lb.COMPILED, "rounds": len(starts) + failures}
    found = []
    for phase, ordered in sorted_phases_ms(starts).items():
        for name, share in (("p50", 0.50), ("p99", 0.99)):
            if ordered:
                figure = percentile(ordered, share)
                found.append(Result(f"cold.{phase.replace(' ', '_')}.{name}", figure, "ms", True, params))
    found.append(Result("cold.failures", float(failures), "requests", True, params))
    return found
