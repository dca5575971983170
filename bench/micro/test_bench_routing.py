"""The cost of finding a request's revision: by its host alone, by one of many rules, and by its body.

The calls come from plain Python (bench/routing_benchmark.py), which adds the cost of a call to each of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from activator.codec.json_field import BEYOND, FOUND, FieldScan
from activator.codec.message import UNKNOWN_LENGTH, Fields, RequestHead
from activator.config.specs import MatchSpec, RevisionSpec, RoutingSpec
from activator.data_plane.proxy.routing import Router
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.units import KIB
from bench.micro.test_bench_throttle import Deaf, note, rounds_of
from bench.routing_benchmark import RoutingBenchmark
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable

TIMES = 10_000
RULES = 1_000
BROWSER = [
    (b"Host", b"a.test"),
    (b"User-Agent", b"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"),
    (b"Accept", b"application/json"),
    (b"Accept-Language", b"en-GB,en;q=0.5"),
    (b"Accept-Encoding", b"gzip, deflate, br"),
    (b"Authorization", b"Bearer 0123456789abcdef0123456789abcdef"),
    (b"X-Team", b"team-999"),
    (b"Content-Type", b"application/json"),
]


def _defer(callback: Callable[[], None]) -> None:
    raise AssertionError("nothing is to be left for another turn")


def throttler(number: int, match: MatchSpec, host: str = "a.test") -> RevisionThrottler:
    spec = RevisionSpec(key=f"ns/r{number}", routing=RoutingSpec(hosts=(host,), order=number, match=match))
    return RevisionThrottler(spec, TrackerTable(create("random", Rng(1)), 4), time.monotonic, _defer, Deaf(), 256)


def rule(by: str, number: int) -> MatchSpec:
    match by:
        case "path":
            return MatchSpec(path=f"/api/team-{number}")
        case "header":
            return MatchSpec(headers=(("x-team", f"team-{number}"),))
        case "model":
            return MatchSpec(models=(f"model-{number}",))
    return MatchSpec(path=f"/api/team-{number % 10}", methods=("POST",), models=(f"model-{number}", f"m{number}-*"))


def head(target: bytes = b"/api/team-999/v1/chat?stream=1") -> RequestHead:
    return RequestHead(b"POST", target, b"a.test", Fields.from_pairs(BROWSER), UNKNOWN_LENGTH, True)


@pytest.mark.benchmark(group="routing")
def test_by_host(benchmark: BenchmarkFixture) -> None:
    router = Router(False)
    for number in range(RULES):
        router.set(throttler(number, MatchSpec(), f"h{number}.test"))
    router.set(throttler(RULES, MatchSpec()))
    loop = RoutingBenchmark(router, head(), "")
    rounds_of(benchmark)(loop.by_host, args=(TIMES,), rounds=30)
    assert loop.found is not None
    note(benchmark, TIMES)


@pytest.mark.benchmark(group="routing")
@pytest.mark.parametrize("by", ["path", "header", "model", "mixed"])
def test_of_1000_rules(benchmark: BenchmarkFixture, by: str) -> None:
    router = Router(False)
    for number in range(RULES):
        router.set(throttler(number, rule(by, number)))
    loop = RoutingBenchmark(router, head(b"/api/team-9/v1" if by == "mixed" else b"/api/team-999/v1/chat"), "model-999")
    rounds_of(benchmark)(loop.by_rules, args=(TIMES,), rounds=30)
    assert loop.found is not None and loop.found.key == "ns/r999"
    note(benchmark, TIMES)


TEXT = """The caller asked for "a list of files", and got this program:

def files(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(".py"))

It does not look into folders within the folder; os.walk would, at the cost of one more loop.
"""


def chat(size: int, first: bool, words: str = TEXT * 20) -> bytes:
    """Return the body of a client with a long conversation."""
    messages = [{"role": "user", "content": words}] * (size // len(json.dumps(words)))
    body = {"messages": messages, "temperature": 0.7, "stream": True}
    return json.dumps({"model": "model-999", **body} if first else {**body, "model": "model-999"}).encode()


@pytest.mark.benchmark(group="routing")
@pytest.mark.parametrize(
    "kind",
    [
        "first",
        "64KiB",
        "250KB",
        "250KB-plain",
        "250KB-short",
        "250KB-escapes",
        "250KB-backslashes",
        "250KB-tokens",
        "250KB-brackets",
        "250KB-members",
    ],
)
def test_body_scan(benchmark: BenchmarkFixture, kind: str) -> None:
    body = {
        "first": lambda: chat(250_000, True),
        "64KiB": lambda: chat(52_000, False),
        "250KB": lambda: chat(250_000, False),
        "250KB-plain": lambda: chat(250_000, False, "plain text without any quotes " * 300),
        "250KB-short": lambda: chat(250_000, False, TEXT),
        "250KB-escapes": lambda: chat(250_000, False, 'a "b" \\ c\n' * 40),
        "250KB-backslashes": lambda: b'{"a":["%b"],"model":"m"}' % (b"\\" * 250_000),
        "250KB-tokens": lambda: b'{"tokens":[%b0],"model":"m"}' % (b"31337, " * 36_000),
        "250KB-brackets": lambda: b'{"a":[%b0],"model":"m"}' % (b"[],{}," * 42_000),
        "250KB-members": lambda: b'{%b"model":"m"}' % (b'"a":1,' * 42_000),
    }[kind]()
    loop = RoutingBenchmark(Router(False), head(), "")
    rounds_of(benchmark)(loop.scan, args=(body, 64 * KIB, 20), rounds=30)
    scan = FieldScan("model", 64 * KIB)
    scan.feed(body)
    assert scan.state == (BEYOND if kind.startswith("250KB") else FOUND)
    note(benchmark, 20, bytes=len(body))
