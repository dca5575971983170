"""What is read out of wrk's output and our own client's, and what both send."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.generator import Generator, Shape, headers, parse_summary, percentile, request_head
from bench.processes import BenchError, UsageError
from tests.bench.bench_samples import summary

WRK_OUTPUT = """Running 4s test @ http://127.0.0.1:40123/small
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     2.24ms  612.00us  12.10ms   83.12%
    Req/Sec    26.80k     1.20k   28.40k    75.00%
  106604 requests in 4.00s, 24.81MB read
  Non-2xx or 3xx responses: 3
Requests/sec:  26651.00
Transfer/sec:      6.20MB
{"requests": 106604, "duration_us": 4000000, "bytes": 26015744, "p50_us": 2240, "p99_us": 4320, \
"connect": 0, "read": 1, "write": 0, "status": 3, "timeout": 2}
"""


def test_the_line_that_wrk_is_made_to_print() -> None:
    found = parse_summary(WRK_OUTPUT)
    assert (found.requests, found.bytes, found.p50_us, found.p99_us) == (106604, 26015744, 2240, 4320)
    assert found.requests_per_s == pytest.approx(26651)
    assert found.failures == 6


@pytest.mark.parametrize("kind", ["connect", "read", "write", "status", "timeout"])
def test_every_kind_of_error_is_a_failure(kind: str) -> None:
    assert summary().failures == 0
    assert summary(**{kind: 2}).failures == 2


@pytest.mark.parametrize(
    "output", ["", "unable to connect to 127.0.0.1:1 Connection refused\n", "{}\n", '{"requests": 1\n']
)
def test_no_summary_is_no_figure(output: str) -> None:
    with pytest.raises(BenchError):
        parse_summary(output)


def test_a_run_without_time_has_no_rate() -> None:
    assert summary(duration_us=0).requests_per_s == 0.0


@pytest.mark.parametrize("count", [1, 12, 40])
def test_so_many_headers_host_first_none_twice(count: int) -> None:
    found = headers(count)
    assert len(found) == count
    assert found[0][0] == "Host"
    assert len({name.lower() for name, _ in found}) == count
    assert request_head("/small", count).count(b"\r\n") == count + 2


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([7.0], 0.5) == 7.0
    assert percentile([float(number) for number in range(100)], 0.50) == 50.0
    assert percentile([float(number) for number in range(100)], 0.99) == 99.0


@pytest.mark.parametrize("wrk", [None, "/usr/bin/wrk"])
def test_the_command_carries_the_load(wrk: str | None, tmp_path: Path) -> None:
    command = Generator(wrk, Shape(64, 12, "/10k"), tmp_path).command(8080, 3)
    assert sum(word == "-H" for word in command) == (12 if wrk else 0)
    assert any("127.0.0.1:8080" in word for word in command)
    assert any(word.endswith("/10k") for word in command)
    assert "64" in command or "-c64" in command


def test_wrk_runs_our_script(need_program: Callable[[str], str], tmp_path: Path) -> None:
    """Against a port that nobody listens on: the script is read, and what wrk prints then is no summary."""
    command = Generator(need_program("wrk"), Shape(1, 2, "/small"), tmp_path).command(1, 1)
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert "unable to connect" in done.stdout + done.stderr


def test_a_shape_is_what_wrk_is_told(tmp_path: Path) -> None:
    generator = Generator("wrk", Shape(10, 3, "/small", send_bytes=7, close=True), tmp_path)
    assert "Connection: close" in generator.command(80, 1)
    script = (tmp_path / "summary.lua").read_text()
    assert 'wrk.method = "POST"' in script
    assert 'string.rep("x", 7)' in script
    assert "delay" not in script
    generator.paced(1_000)
    assert "math.random() * 20.000" in (tmp_path / "summary.lua").read_text(), "10 ms between requests in the mean"


def test_our_own_client_has_one_shape(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="need wrk"):
        Generator(None, Shape(close=True), tmp_path)
