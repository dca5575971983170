"""`python -m bench crowd`: thousands of clients wait for a revision without a pod, and then time out together.

Measured on the running program: memory per connection and per waiting request, CPU while they wait, and how long the
event loop stalls when all requests time out together (the slowest response of the continuously polled admin port).

`--h2`: the same over HTTP/2, STREAMS_PER_CONNECTION requests on each connection.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from activator.codec.http2.field import Field
from activator.codec.http2.frames import HEADER_BYTES, HEADERS, PREFACE, header_frames, settings_frame
from activator.codec.http2.hpack.decoder import HpackDecoder
from activator.codec.http2.hpack.encoder import HpackEncoder
from bench import header, results
from bench.processes import ROOT, BenchError, UsageError
from bench.results import Document, Result, Value

WAIT_S = 12.0  # queue.timeout; all requests arrive well before the first one times out
UNITS = {
    "connection": "bytes",
    "waiting_request": "bytes, without its connection",
    "cpu_waiting": "of a core",
    "slowest_answer_waiting": "ms",
    "slowest_answer_telling": "ms",
}
UNITS_H2 = {"waiting_request": "bytes, without its connection", "connection": "bytes, HTTP/2 after the settings"}
STREAMS_PER_CONNECTION = 10
REQUEST = b"POST /x HTTP/1.1\r\nHost: a.test\r\nUser-Agent: crowd\r\nAccept: */*\r\nContent-Length: 0\r\n\r\n"


class Watch:
    """A poller of the admin port; `slowest_s` is its slowest response since `reset`."""

    def __init__(self, admin: str) -> None:
        self.slowest_s = 0.0
        self._admin = admin
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(self._admin, timeout=60)
        while not self._ends.wait(0.002):
            began_s = time.perf_counter()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            self.slowest_s = max(self.slowest_s, time.perf_counter() - began_s)
        connection.close()

    def reset(self) -> float:
        slowest_s, self.slowest_s = self.slowest_s, 0.0
        return slowest_s

    def close(self) -> None:
        self._ends.set()
        self._thread.join()


class Program:
    """An activator with one pod that does not listen."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            dead = nobody.getsockname()[1]
        revision = {
            "name": "a",
            "hosts": ["*"],
            "pods": [f"127.0.0.1:{dead}"],
            "queue": {"timeout": f"{WAIT_S}s"},
            "timeouts": {"unreachable": "0s"},  # otherwise requests would be refused after 3 s
        }
        path = folder / "crowd.yaml"
        path.write_text(json.dumps({"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "revisions": [revision]}))
        command = [sys.executable, "-m", "activator.cli", "run", "-c", str(path)]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.admin = self._logged(r" admin port on (\S+)")
        self.address = self._logged(r" serving on (\S+)")

    def _logged(self, pattern: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(pattern, line):
                return found[1]
        raise BenchError("the activator did not start")

    def resident_bytes(self) -> int:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _h1_statuses(reader: asyncio.StreamReader) -> list[str]:
    answer = await reader.readuntil(b"\r\n\r\n")
    return [answer.split(b" ", 2)[1].decode()]


async def _h2_statuses(reader: asyncio.StreamReader) -> list[str]:
    """Return the statuses of all streams: each HEADERS frame has one, which does not depend on the dynamic table."""
    decoder = HpackDecoder()
    statuses: list[str] = []
    while len(statuses) < STREAMS_PER_CONNECTION:
        head = await reader.readexactly(HEADER_BYTES)
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] == HEADERS:
            fields: list[Field] = []
            decoder.decode(payload, 0, len(payload), fields, 1 << 20, 100)
            statuses.append(fields[0].value.decode())
    return statuses


def _h2_requests() -> bytes:
    """Return one POST without a body for each stream."""
    encoder = HpackEncoder()
    frames = []
    for number in range(STREAMS_PER_CONNECTION):
        encoder.add_request_line(b"POST", b"http", b"a.test", b"/x")
        encoder.add_lines(b"\r\nUser-Agent: crowd\r\nAccept: */*")
        frames.append(header_frames((2 * number + 1).to_bytes(4, "big"), encoder.finish(), True))
    return b"".join(frames)


async def _measure(program: Program, count: int, h2: bool) -> dict[str, float]:
    host, _, port = program.address.rpartition(":")
    found: dict[str, float] = {}
    before = program.resident_bytes()
    connections = count // STREAMS_PER_CONNECTION if h2 else count
    streams: list[Stream] = []
    for _ in range(0, connections, 100):
        opened = (asyncio.open_connection(host, int(port)) for _ in range(min(100, connections - len(streams))))
        streams += await asyncio.gather(*opened)
    if h2:
        for _, writer in streams:
            writer.write(PREFACE + settings_frame([]))
    await asyncio.sleep(0.5)
    connected = program.resident_bytes()
    requests = _h2_requests() if h2 else REQUEST
    for _, writer in streams:
        writer.write(requests)
    await asyncio.sleep(2.0)
    waiting = program.resident_bytes()
    watch = Watch(program.admin)
    cpu_s, began_s = program.cpu_s(), time.perf_counter()
    await asyncio.sleep(3.0)
    found["slowest_answer_waiting"] = watch.reset() * 1e3
    found["cpu_waiting"] = (program.cpu_s() - cpu_s) / (time.perf_counter() - began_s)
    told = await asyncio.gather(*((_h2_statuses if h2 else _h1_statuses)(reader) for reader, _ in streams))
    found["slowest_answer_telling"] = watch.reset() * 1e3
    watch.close()
    reasons = Counter(status for statuses in told for status in statuses)
    if reasons != {"504": count}:
        raise BenchError(f"expected {count} answers with 504, got {dict(reasons)}")
    found["connection"] = (connected - before) / connections
    found["waiting_request"] = (waiting - connected) / count
    for _, writer in streams:
        writer.close()
    return found


def run(count: int, h2: bool, json_path: str | None) -> int:
    """Run `python -m bench crowd`. Raises BenchError."""
    head = header.collect([])
    print(header.one_line(head), flush=True)
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    if h2 and count % STREAMS_PER_CONNECTION:
        raise UsageError(f"--clients: with --h2 a multiple of {STREAMS_PER_CONNECTION}")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        program = Program(Path(name))
        try:
            found = asyncio.run(_measure(program, count, h2))
        finally:
            program.process.terminate()
            program.process.communicate(timeout=60)
    units = {**UNITS, **(UNITS_H2 if h2 else {})}
    rows = [[what, results.figure(value, 3), units[what]] for what, value in found.items()]
    print("\n" + results.table([f"{count:,} clients", "figure", "unit"], rows))
    print("\nslowest_answer: of the admin port, requested every 2 ms; an answer takes several turns of the event loop.")
    print("cpu_waiting includes the cost of these requests.")
    if json_path is not None:
        params: dict[str, Value] = {"clients": count}
        name = "crowd.h2" if h2 else "crowd"
        measured = [Result(f"{name}.{what}", value, units[what], True, params) for what, value in found.items()]
        results.write(json_path, Document(head, measured))
    return 0
