"""The load generator, wrk or our own client if wrk is not installed, and its summary of a run.

Both send the same request over keep-alive connections, one at a time on each, as fast as responses arrive, and print
the same line of JSON at the end. wrk can also send bodies, close each connection after its response, and pause between
requests.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from bench.processes import LOOPBACK, BenchError, UsageError, running

ANSWER_TIMEOUT_S = 5.0
_GRACE_S = 20.0  # after its measurement time, before a generator counts as hung

# The header fields of a browser behind another proxy; `--headers N` sends the first N.
_HEADERS = [
    ("Host", "bench.localhost"),
    ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"),
    ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    ("Accept-Language", "en-GB,en;q=0.7,de;q=0.3"),
    ("Accept-Encoding", "gzip, deflate, br"),
    ("Cache-Control", "no-cache"),
    ("Referer", "http://bench.localhost/from/here"),
    ("Cookie", "session=7f2c1b9ad0e84f6c; theme=dark; seen=1"),
    ("X-Request-Id", "5b0e6a4e-3d0b-4f5c-9f5e-0c8a5d2a7c11"),
    ("Authorization", "Bearer 0123456789abcdef0123456789abcdef"),
    ("Sec-Fetch-Mode", "navigate"),
    ("DNT", "1"),
]

# The script defines neither `request` nor `response`, since wrk would then call Lua for every request.
_WRK_SCRIPT = """
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "duration_us": %d, "bytes": %d, "p50_us": %d, "p99_us": %d, ' ..
    '"connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d}\\n',
    summary.requests, summary.duration, summary.bytes, latency:percentile(50), latency:percentile(99),
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
"""


class Shape(msgspec.Struct, frozen=True):
    """The shape of the requests. All fields but the first three need wrk."""

    connections: int = 64
    headers: int = 12
    target: str = "/small"
    send_bytes: int = 0  # the size of a POST's body; 0: a GET
    close: bool = False  # use a new connection for each request
    rate: int = 0  # total requests per second, by pauses of random length; 0: unlimited


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The summary of one run. All fields but the first five are failures, by kind."""

    requests: int
    duration_us: int
    bytes: int
    p50_us: float
    p99_us: float
    connect: int
    read: int
    write: int
    status: int
    timeout: int

    @property
    def failures(self) -> int:
        """The number of socket errors and of responses that are not 2xx."""
        return self.connect + self.read + self.write + self.status + self.timeout

    @property
    def requests_per_s(self) -> float:
        return self.requests / (self.duration_us / 1e6) if self.duration_us > 0 else 0.0


def parse_summary(output: str) -> Summary:
    """Parse the last line of JSON in a generator's output. Raises BenchError."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                return msgspec.json.decode(line, type=Summary)
            except msgspec.MsgspecError as error:
                raise BenchError(f"the output of the load generator is invalid: {error}") from None
    raise BenchError("the load generator printed no summary")


def percentile(ordered: list[float], share: float) -> float:
    """Return a percentile of an ascending list by nearest rank; 0 if it is empty."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def headers(count: int) -> list[tuple[str, str]]:
    """Return `count` request headers, Host first."""
    more = [(f"X-Bench-{number}", f"value-{number}") for number in range(len(_HEADERS), count)]
    return [*_HEADERS, *more][:count]


def request_head(target: str, count: int) -> bytes:
    """Return the request as our own client sends it."""
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers(count)), "", ""]
    return "\r\n".join(lines).encode()


def _script(shape: Shape) -> str:
    """Return the script for wrk, which prints the summary and sets the options of the shape."""
    script = _WRK_SCRIPT
    if shape.send_bytes:
        script += f'wrk.method = "POST"\nwrk.body = string.rep("x", {shape.send_bytes})\n'
    if shape.rate:
        # The pause is in milliseconds; at paced rates, the response time is negligible.
        mean_ms = shape.connections * 1000 / shape.rate
        script += f"delay = function() return math.floor(math.random() * {2 * mean_ms:.3f} + 0.5) end\n"
    return script


class Generator:
    """The generator: wrk by its path, or our own client."""

    def __init__(self, wrk: str | None, shape: Shape, folder: Path) -> None:
        if wrk is None and (shape.send_bytes or shape.close or shape.rate):
            raise UsageError("--send, --close and --rate need wrk")
        self.name = "bench.client" if wrk is None else "wrk"
        self._wrk = wrk
        self._shape = shape
        self._folder = folder
        self._script = folder / "summary.lua"
        self._script.write_text(_script(shape), "utf-8")

    def paced(self, rate: int) -> Generator:
        """Return the same generator with this rate."""
        return Generator(self._wrk, msgspec.structs.replace(self._shape, rate=rate), self._folder)

    def command(self, port: int, seconds: int) -> list[str]:
        """Return the command line of one run."""
        address = f"{LOOPBACK}:{port}"
        shape = self._shape
        if self._wrk is None:
            numbers = [str(shape.connections), str(seconds), str(shape.headers)]
            return [sys.executable, "-m", "bench.client", address, *numbers, shape.target]
        words = ["-t1", f"-c{shape.connections}", f"-d{seconds}s", "--timeout", f"{ANSWER_TIMEOUT_S:.0f}s"]
        for name, value in headers(shape.headers):
            words += ["-H", f"{name}: {value}"]
        if shape.close:
            words += ["-H", "Connection: close"]
        return [self._wrk, *words, "-s", str(self._script), f"http://{address}{shape.target}"]

    def run(self, port: int, seconds: int, core: int | None) -> Summary:
        """Send load to this port for `seconds`. Raises BenchError."""
        log = self._folder / "generator.log"
        with running(self.command(port, seconds), log, core, capture=True) as child:
            return parse_summary(child.output(seconds + _GRACE_S))
