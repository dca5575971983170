"""CPU per proxied request, latency and throughput of each proxy with the same upstream, beside haproxy and the floor.

Rules
  1. Rounds are interleaved (A B C A B C …), and a ratio or an own part is taken within a round, so that a disturbance
     of the machine for some seconds affects all proxies. Figures are medians of the rounds, ratios medians of the
     rounds' ratios. The own part of a proxy is its CPU beyond that of a forwarder that parses nothing (floor.py).
  2. A proxy is started for each of its turns and stopped after it: no other proxy runs during a measurement.
  3. CPU time is that of the proxy and all processes it started, read before and after the measured load; the warm-up
     is not counted.
  4. One failed request in any row invalidates the run: exit code 1.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

import lb
from bench import header, peers, results
from bench.generator import Generator, Shape, Summary
from bench.peers import FLOORS, REFERENCE, Peer
from bench.processes import Cores, UsageError, answers, find_program, free_port, running
from bench.results import Document, Result, Value, figure
from bench.upstream import BODY_BYTES

_MIB = 1 << 20

WARM_UP_S = 1
TAKEN_SHARE_MAX = 0.05  # above this share of the time the run is reported as noisy


class Options(msgspec.Struct, frozen=True):
    """The options of the command line."""

    peers: str | None = None
    rounds: int = 3
    seconds: int = 4
    connections: int = 64
    headers: int = 12
    body: str = "small"
    upstream: str = "auto"  # auto | nginx | own
    client: str = "auto"  # auto | wrk | own
    send_bytes: int = 0  # size of each request's body
    close: bool = False  # open a connection for each request
    workers: str = "1"  # per proxy; several numbers are separated by commas
    rate: str = ""  # requests per second, or "half" of what haproxy can do; empty: as many as possible


class Turn(msgspec.Struct, frozen=True):
    """The figures of one proxy in one round."""

    summary: Summary
    cpu_s: float | None  # None: there is no proxy between client and upstream
    waited_s: float = 0.0  # ready to run while others had the core
    memory_bytes: int = 0  # all its processes; shared memory counts once

    @property
    def cpu_us_per_request(self) -> float | None:
        if self.cpu_s is None or self.summary.requests == 0:
            return None
        return self.cpu_s * 1e6 / self.summary.requests

    @property
    def busy_share(self) -> float | None:
        """Return the share of the time in which the proxy used its core."""
        if self.cpu_s is None or self.summary.duration_us == 0:
            return None
        return self.cpu_s * 1e6 / self.summary.duration_us

    @property
    def waited_share(self) -> float | None:
        """Return the share of the time in which others kept the proxy from its core."""
        if self.cpu_s is None or self.summary.duration_us == 0:
            return None
        return self.waited_s * 1e6 / self.summary.duration_us

    @property
    def failures(self) -> int:
        """Return the number of failures; a turn without any response counts as one."""
        return self.summary.failures if self.summary.requests > 0 else max(self.summary.failures, 1)


Turns = dict[str, list[Turn]]  # by the name of the peer, one turn per round


def run(options: Options, json_path: str | None) -> int:
    """Run `python -m bench load`. Raises BenchError or UsageError."""
    chosen = peers.choose(options.peers, options.workers)
    upstream = _program("nginx", options.upstream, "--upstream")
    wrk = _program("wrk", options.client, "--client")
    programs = [peer.program for peer in chosen if peer.program is not None]
    used = [*programs, *(["nginx"] if upstream else []), *(["wrk"] if wrk else [])]
    head = header.collect(list(dict.fromkeys(used)))
    head["upstream"] = "bench.upstream" if upstream is None else "nginx"
    print(header.one_line(head))
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        generator = Generator(wrk, _shape(options), folder)
        head["client"] = generator.name
        turns = _all_rounds(options, chosen, upstream is not None, generator, folder)
    return show(options, head, chosen, turns, json_path)


def show(options: Options, head: dict[str, object], chosen: list[Peer], turns: Turns, json_path: str | None) -> int:
    """Print the results and the problems found; return the exit code."""
    print("\n" + results.table(*rows(turns)) + "\n")
    print(_how(options, head, Cores().apart))
    if json_path is not None:
        results.write(json_path, Document(head, figures(options, chosen, turns)))
    if taken := disturbed(turns):
        print(
            f"warning: other processes used the core of {', '.join(taken)} meanwhile: figures are noisy",
            file=sys.stderr,
        )
    failed = {peer: sum(turn.failures for turn in its) for peer, its in turns.items()}
    for peer, count in failed.items():
        if count:
            print(f"bench: {count} failures with {peer}: {kinds(turns[peer])}", file=sys.stderr)
    return 1 if any(failed.values()) else 0


def _program(name: str, wish: str, option: str) -> str | None:
    """Return the program's path, or None for our own."""
    path = None if wish == "own" else find_program(name)
    if path is None and wish == name:
        raise UsageError(f"{option}: {name} is not on PATH")
    return path


# --- the rounds -----------------------------------------------------------------------------------------------------


def _all_rounds(options: Options, chosen: list[Peer], nginx: bool, generator: Generator, folder: Path) -> Turns:
    cores = Cores()
    turns: Turns = {peer.name: [] for peer in chosen}
    with _upstream(nginx, options.body, cores, folder) as port:
        if options.rate == "half":
            generator = generator.paced(_half(options, port, generator, cores, folder))
        for number in range(1, options.rounds + 1):
            for peer in chosen:
                turn = _turn(options, peer, port, generator, cores, folder)
                turns[peer.name].append(turn)
                cpu = figure(turn.cpu_us_per_request, 1)
                print(
                    f"round {number}/{options.rounds}: {peer.name}: {cpu} us/request, "
                    f"{turn.summary.requests_per_s:,.0f} requests/s, {turn.failures} failures",
                    file=sys.stderr,
                    flush=True,
                )
    return turns


def _shape(options: Options) -> Shape:
    rate = int(options.rate) if options.rate.isdigit() else 0
    if options.rate and not rate and options.rate != "half":
        raise UsageError('--rate: a number of requests per second, or "half"')
    return Shape(options.connections, options.headers, f"/{options.body}", options.send_bytes, options.close, rate)


def _half(options: Options, port: int, generator: Generator, cores: Cores, folder: Path) -> int:
    """Return half of the requests per second that the reference reaches, or nothing if there is no reference."""
    (reference,) = peers.choose(REFERENCE)
    most = _turn(options, reference, port, generator, cores, folder).summary.requests_per_s
    print(f"half of what {REFERENCE} reaches: {most / 2:,.0f} requests/s", file=sys.stderr, flush=True)
    return max(int(most / 2), 1)


@contextlib.contextmanager
def _upstream(nginx: bool, body: str, cores: Cores, folder: Path) -> Iterator[int]:
    port = free_port()
    if nginx:
        command = peers.nginx_upstream(folder / "upstream", port)
    else:
        command = [sys.executable, "-m", "bench.upstream", f"{','.join(peers.POD_HOSTS)}:{port}"]
    with running(command, folder / "upstream.log", cores.load) as child:
        child.wait_until(answers(port, f"/{body}", BODY_BYTES[body]))
        yield port


def _turn(options: Options, peer: Peer, upstream_port: int, generator: Generator, cores: Cores, folder: Path) -> Turn:
    if peer.prepare is None:
        generator.run(upstream_port, WARM_UP_S, cores.load)
        return Turn(generator.run(upstream_port, options.seconds, cores.load), None)
    started = peer.prepare(folder / peer.name, upstream_port)
    log = folder / f"{peer.name}.log"
    with running(started.command, log, cores.measured, started.environment) as child:
        child.wait_until(answers(started.port, f"/{options.body}", BODY_BYTES[options.body]))
        generator.run(started.port, WARM_UP_S, cores.load)
        before_s, waited_before_s = child.cpu_s(), child.waited_s()
        summary = generator.run(started.port, options.seconds, cores.load)
        cpu_s = child.cpu_s() - before_s
        memory_bytes = child.memory_bytes()
        child.check_alive()
        return Turn(summary, cpu_s, child.waited_s() - waited_before_s, memory_bytes)


# --- figures --------------------------------------------------------------------------------------------------------


def ratios(turns: Turns, peer: str) -> list[float]:
    """Return the ratios to the reference by round; empty if the reference or a figure is missing."""
    pairs = zip(turns[peer], turns.get(REFERENCE, []))
    found = []
    for one, other in pairs:
        if one.cpu_us_per_request is not None and other.cpu_us_per_request:
            found.append(one.cpu_us_per_request / other.cpu_us_per_request)
    return found


def own_parts(turns: Turns, peer: str, floor: str) -> list[float]:
    """Return the CPU us per request beyond those of the forwarder by round; empty if either was not measured."""
    both = zip(turns[peer], turns.get(floor, []))
    pairs = [(one.cpu_us_per_request, other.cpu_us_per_request) for one, other in both]
    return [one - other for one, other in pairs if one is not None and other is not None]


def ratios_to_one(turns: Turns, peer: str) -> list[float]:
    """Return the ratios to the same proxy with one worker by round; empty for one worker."""
    name, _, workers = peer.rpartition("-x")
    if not workers.isdecimal() or name not in turns:
        return []
    pairs = [(one.cpu_us_per_request, other.cpu_us_per_request) for one, other in zip(turns[peer], turns[name])]
    return [one / other for one, other in pairs if one is not None and other]


def memory_per_worker(turns: Turns, peer: str) -> float | None:
    """Return the bytes per worker after the first; None if unknown."""
    name, _, workers = peer.rpartition("-x")
    if not workers.isdecimal() or name not in turns:
        return None
    several = median([float(turn.memory_bytes) for turn in turns[peer]])
    one = median([float(turn.memory_bytes) for turn in turns[name]])
    return None if several is None or one is None else (several - one) / (int(workers) - 1)


def disturbed(turns: Turns) -> list[str]:
    """Return the peers that had to share their core in the median round."""
    shares = {peer: median([turn.waited_share for turn in its]) for peer, its in turns.items()}
    return [peer for peer, share in shares.items() if share is not None and share > TAKEN_SHARE_MAX]


def median(values: list[float | None]) -> float | None:
    """Return the median of the values that are not None."""
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


_Figure = tuple[str, str, bool, Callable[[Turn], float | None]]  # name, unit, whether lower is better, how to read it
_FIGURES: list[_Figure] = [
    ("cpu_per_request", "us", True, lambda turn: turn.cpu_us_per_request),
    ("requests_per_s", "1/s", False, lambda turn: turn.summary.requests_per_s),
    ("p50", "ms", True, lambda turn: turn.summary.p50_us / 1e3),
    ("p99", "ms", True, lambda turn: turn.summary.p99_us / 1e3),
]


def figures(options: Options, chosen: list[Peer], turns: Turns) -> list[Result]:
    """Return the results for the JSON file."""
    found = []
    for peer in chosen:
        its = turns[peer.name]
        params: dict[str, Value] = {
            "peer": peer.name,
            "compiled": lb.COMPILED,
            "rounds": options.rounds,
            "seconds": options.seconds,
            "connections": options.connections,
            "headers": options.headers,
            "body": options.body,
            "send_bytes": options.send_bytes,
            "close": options.close,
            "rate": options.rate,
            **peer.params,
        }
        for name, unit, lower_is_better, of in _FIGURES:
            if (value := median([of(turn) for turn in its])) is not None:
                found.append(Result(f"load.{peer.name}.{name}", value, unit, lower_is_better, params))
        if (ratio := median([*ratios(turns, peer.name)])) is not None:
            found.append(Result(f"load.{peer.name}.cpu_ratio_to_{REFERENCE}", ratio, "x", True, params))
        found.extend(
            Result(f"load.{peer.name}.cpu_beyond_{floor}", statistics.median(parts), "us", True, params)
            for floor in FLOORS
            if (parts := own_parts(turns, peer.name, floor))
        )
        if (ratio := median([*ratios_to_one(turns, peer.name)])) is not None:
            found.append(Result(f"load.{peer.name}.cpu_ratio_to_one_worker", ratio, "x", True, params))
        if (memory := memory_per_worker(turns, peer.name)) is not None:
            found.append(Result(f"load.{peer.name}.memory_per_further_worker", memory, "B", True, params))
        failed = sum(turn.failures for turn in its)
        found.append(Result(f"load.{peer.name}.failures", float(failed), "requests", True, params))
    return found


def rows(turns: Turns) -> tuple[list[str], list[list[str]]]:
    """Return the table for the terminal."""
    floors = [name for name in FLOORS if name in turns]
    title = ["proxy", "CPU us/request", "min - max", f"x {REFERENCE}", "min - max"]
    title += [*(f"- {floor}" for floor in floors), "requests/s", "p50 ms", "p99 ms"]
    lines = []
    for peer, its in turns.items():
        cpu = [turn.cpu_us_per_request for turn in its if turn.cpu_us_per_request is not None]
        ratio = ratios(turns, peer)
        shares = [median([turn.busy_share for turn in its]), median([turn.waited_share for turn in its])]
        lines.append(
            [
                peer,
                figure(median([*cpu]), 1),
                _span(cpu, 1),
                figure(median([*ratio])),
                _span(ratio, 2),
                *(figure(median([*own_parts(turns, peer, floor)]), 1) for floor in floors),
                *(
                    figure(median([of(turn) for turn in its]), 0 if unit == "1/s" else 2)
                    for _, unit, _, of in _FIGURES[1:]
                ),
                *("-" if share is None else f"{share:.0%}" for share in shares),
                str(sum(turn.failures for turn in its)),
                figure(median([turn.memory_bytes / _MIB for turn in its if turn.memory_bytes]), 1),
                figure(median([*ratios_to_one(turns, peer)])),
            ]
        )
    return [*title, "core busy", "core taken", "failures", "MiB", "x one worker"], lines


def _span(values: list[float], digits: int) -> str:
    return f"{min(values):.{digits}f} - {max(values):.{digits}f}" if values else "-"


def kinds(its: list[Turn]) -> str:
    """Describe the failures."""
    names = {"connect": "refused", "read": "broken", "write": "not written", "status": "not 2xx", "timeout": "too late"}
    counts = {word: sum(getattr(turn.summary, field) for turn in its) for field, word in names.items()}
    parts = [f"{count} {word}" for word, count in counts.items() if count]
    return ", ".join(parts) or "no request was answered"


def _how(options: Options, head: dict[str, object], apart: bool) -> str:
    where = (
        "each proxy alone on one core, client and upstream together on another"
        if apart
        else "proxy, client and upstream share the only core: only the CPU column is meaningful"
    )
    size_bytes = BODY_BYTES[options.body]
    measured = (
        f"Measured: {options.rounds} interleaved rounds of {options.seconds} s after {WARM_UP_S} s of warm-up; "
        f"medians, ratios within a round; {head['client']} -> proxy -> {head['upstream']}, one thread each, loopback."
    )
    kept = "connections, a new one for each request" if options.close else "keep-alive connections"
    method = f"POST of {options.send_bytes:,} B" if options.send_bytes else "GET"
    pace = f", paced: {options.rate}" if options.rate else ""
    load = (
        f"Load: {options.connections} {kept}, one request after the other on each{pace}, {method} with "
        f"{options.headers} headers, body {options.body} ({size_bytes:,} B); {where}."
    )
    cpu = (
        "CPU: user + system of the proxy and its children by their process clocks, divided by answered requests; "
        'latencies are those at this load; "direct" is the upstream without a proxy; "- floor" is the own part, CPU '
        "us/request beyond a forwarder that parses nothing."
    )
    return f"{measured}\n{load}\n{cpu}"
