"""Medians, ratios within a round, failures, the shape of the JSON file, and the tables made from it."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path

import msgspec
import pytest

from bench import header, report
from bench.__main__ import main
from bench.cold import OURS, PHASES, phases_ms
from bench.cold import figures as cold_figures
from bench.cold_ways import ColdStart, Life
from bench.load import Options, Turn, disturbed, figures, kinds, own_parts, ratios, rows, show
from bench.peers import PEERS, choose
from bench.processes import UsageError, process_cpu_s, tree
from bench.results import Document, Result, markdown, read, table, write
from tests.bench.bench_samples import summary


def turn(cpu_us: float | None, requests: int = 1000, status: int = 0) -> Turn:
    """One that used so much CPU per request, in one second."""
    counted = summary(requests=requests, status=status)
    return Turn(counted, None if cpu_us is None else cpu_us * requests / 1e6)


TURNS = {
    "direct": [turn(None), turn(None), turn(None)],
    "haproxy": [turn(10.0), turn(20.0), turn(40.0)],
    "activator-cc100": [turn(15.0), turn(20.0), turn(48.0)],
}
CHOSEN = [peer for peer in PEERS if peer.name in TURNS]


def test_ratios_are_taken_within_a_round() -> None:
    assert ratios(TURNS, "activator-cc100") == pytest.approx([1.5, 1.0, 1.2])
    assert ratios(TURNS, "haproxy") == pytest.approx([1.0, 1.0, 1.0])
    assert ratios(TURNS, "direct") == []
    assert ratios({"activator-cc0": [turn(1.0)]}, "activator-cc0") == []


def test_the_own_part_is_what_a_proxy_costs_beyond_the_floor() -> None:
    turns = {**TURNS, "floor-descriptors": [turn(9.0), turn(15.0), turn(31.0)]}
    assert own_parts(turns, "activator-cc100", "floor-descriptors") == pytest.approx([6.0, 5.0, 17.0])
    assert own_parts(turns, "direct", "floor-descriptors") == []
    assert own_parts(turns, "activator-cc100", "floor-transports") == []
    found = {result.name: result.value for result in figures(Options(), CHOSEN, turns)}
    assert found["load.activator-cc100.cpu_beyond_floor-descriptors"] == pytest.approx(6.0)
    assert found["load.haproxy.cpu_beyond_floor-descriptors"] == pytest.approx(5.0)
    assert "load.haproxy.cpu_beyond_floor-transports" not in found
    title, lines = rows(turns)
    assert [line[title.index("- floor-descriptors")] for line in lines] == ["-", "5.0", "6.0", "0.0"]


def test_a_round_without_a_figure_has_no_ratio() -> None:
    turns = {"haproxy": [turn(0.0), turn(10.0)], "nginx": [turn(5.0), turn(5.0, requests=0)]}
    assert ratios(turns, "nginx") == []


def test_the_figure_is_the_median() -> None:
    found = {result.name: result for result in figures(Options(), CHOSEN, TURNS)}
    assert found["load.activator-cc100.cpu_per_request"].value == pytest.approx(20.0)
    assert found["load.activator-cc100.cpu_ratio_to_haproxy"].value == pytest.approx(1.2)
    assert found["load.activator-cc100.p99"].value == pytest.approx(2.5)
    assert found["load.activator-cc100.failures"].value == 0.0
    assert found["load.activator-cc100.cpu_per_request"].params["container_concurrency"] == 100
    assert not found["load.haproxy.requests_per_s"].lower_is_better
    assert "load.direct.cpu_per_request" not in found
    assert "load.direct.requests_per_s" in found


def test_a_core_that_others_used_is_told() -> None:
    fine, taken = turn(10.0), msgspec.structs.replace(turn(10.0), waited_s=0.2)
    assert disturbed({"a": [fine, fine, taken], "b": [fine, taken, taken], "direct": [turn(None)]}) == ["b"]


def test_names_are_not_used_twice() -> None:
    names = [result.name for result in figures(Options(), CHOSEN, TURNS)]
    assert len(names) == len(set(names))


def test_no_answer_at_all_is_a_failure() -> None:
    assert turn(1.0, requests=0).failures == 1
    assert turn(1.0, status=3).failures == 3
    assert kinds([turn(1.0, status=3), turn(1.0, status=1)]) == "4 not 2xx"
    assert kinds([turn(1.0, requests=0)]) == "no request was answered"


def test_every_row_of_the_table_has_every_column() -> None:
    title, lines = rows(TURNS)
    assert not [name for name in title if "floor" in name], "no column without a forwarder"
    assert [len(line) for line in lines] == [len(title)] * len(TURNS)
    assert lines[2][:5] == ["activator-cc100", "20.0", "15.0 - 48.0", "1.20", "1.00 - 1.50"]


def test_the_file_is_what_is_published(tmp_path: Path) -> None:
    """Others script against these names."""
    path = tmp_path / "load.json"
    head = header.collect([])
    write(str(path), Document(head, figures(Options(), CHOSEN, TURNS)))
    found = json.loads(path.read_text("utf-8"))
    assert list(found) == ["header", "results"]
    assert {"machine", "versions", "commit", "compiled", "python_optimisations"} <= found["header"].keys()
    assert {"cpu", "cores", "kernel", "load_average_1min"} <= found["header"]["machine"].keys()
    assert {"python", "uvloop", "httptools"} <= found["header"]["versions"].keys()
    for result in found["results"]:
        assert list(result) == ["name", "value", "unit", "lower_is_better", "params"]
        assert isinstance(result["value"], float)
        assert isinstance(result["params"]["compiled"], bool)
    assert read(str(path)).header == found["header"]


def test_a_busy_machine_is_said_in_one_line() -> None:
    head: dict[str, object] = {"machine": {"load_average_1min": 1.0, "cores": 2}}
    assert header.warning(head) is None
    head = {"machine": {"load_average_1min": 1.01, "cores": 2}}
    assert header.warning(head) == "warning: load average 1.01 on 2 cores before the run: figures are noisy"


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ("nginx version: nginx/1.22.1\n", "1.22.1"),
        ("HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/\n", "2.6.12-1+deb12u4"),
        ("v2.8.4 h1:q3pe0wpBj1OcHFZ3n/1nl4V4bxBrYoSoab7rL9BMYNk=\n", "2.8.4"),
        ("wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer\n", "4.1.0-3+b2"),
        ("unknown", None),
    ],
)
def test_versions(answer: str, version: str | None) -> None:
    assert header.parse_version(answer) == version


@pytest.mark.parametrize(
    ("arguments", "use_flag", "expected"),
    [
        ("'--enable-shared'", "-fprofile-use -fprofile-correction", ""),
        ("'--enable-optimizations' '--with-lto'", "-fprofile-use", "--enable-optimizations --with-lto"),
        ("'--with-lto=thin'", "-fprofile-use", "--with-lto"),
        ("'--enable-shared' '--prefix=/usr'", "", "PGO, as Debian does"),
    ],
)
def test_the_header_says_how_python_was_built(arguments: str, use_flag: str, expected: str) -> None:
    variables: dict[str, object] = {"CONFIG_ARGS": arguments, "PGO_PROF_USE_FLAG": use_flag}
    assert header.optimisations(variables) == expected
    head = {**header.collect([]), "python_optimisations": expected}
    assert f"python {platform.python_version()} (built with {expected or 'no optimisations'})" in header.one_line(head)
    del head["python_optimisations"]
    assert "built with" not in header.one_line(head), "a file of an earlier version"


def test_peers_by_name() -> None:
    assert [peer.name for peer in choose("activator,direct,activator-cc0")] == [
        "activator-cc0",
        "activator-cc100",
        "direct",
    ]
    with pytest.raises(UsageError, match="unknown: 'apache'"):
        choose("apache")


def test_cpu_time_is_fine_grained_and_of_the_whole_tree() -> None:
    assert tree(os.getpid())[0] == os.getpid()
    assert os.getpid() in tree(os.getppid())
    before_s, own_s = process_cpu_s(os.getpid()), time.process_time()
    while time.process_time() < own_s + 0.003:  # less than a tick of /proc/PID/stat
        pass
    assert 0.003 <= process_cpu_s(os.getpid()) - before_s < 1.0
    assert process_cpu_s(2**22 + 1) == 0.0


def test_the_phases_of_a_cold_start_add_up() -> None:
    start = ColdStart(10.0, Life(started_s=10.04, listening_s=10.05, request_s=10.054), 10.055)
    found = phases_ms(start)
    assert list(found) == PHASES
    assert found["hand over"] == pytest.approx(4.0)
    assert found["beyond"] == pytest.approx(found["hand over"] + found["answer"])
    assert found["start"] + found["listen"] + found["beyond"] == pytest.approx(found["total"])
    names = [result.name for result in cold_figures(OURS, [start], 0)]
    assert "cold.hand_over.p99" in names
    assert [(one.name, one.value) for one in cold_figures("other", [], 2)] == [("cold.other.failures", 2.0)]


def result(value: float, lower_is_better: bool = True) -> Result:
    return Result("a", value, "us", lower_is_better, {})


def test_a_report_of_two_files_says_how_they_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.change(result(2.0), result(1.0)) == "0.50 better"
    assert report.change(result(2.0, False), result(1.0, False)) == "0.50 worse"
    assert report.change(result(2.0), result(2.001)) == "1.00"
    assert report.change(None, result(1.0)) == "-"
    paths = [str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    for path, value in zip(paths, [2.0, 1.0]):
        write(path, Document(header.collect([]), [result(value)]))
    assert main(["report", *paths, "--json", str(tmp_path / "both.json")]) == 0
    assert "| a (us) | 2.00 | 1.00 | 0.50 better |" in capsys.readouterr().out
    assert [one.params["file"] for one in read(str(tmp_path / "both.json")).results] == paths


def test_a_report_of_no_report_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.json"
    path.write_text("[]", "utf-8")
    assert main(["report", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_tables() -> None:
    assert table(["a", "b"], [["long", "1"], ["x", "22"]]) == "a      b\n----  --\nlong   1\nx     22"
    assert markdown(["a", "b"], [["x|y", "1"]]) == "| a | b |\n|---|---:|\n| x\\|y | 1 |"


@pytest.mark.parametrize(
    "words", [[], ["scale", "--pods", "many"], ["load", "--rounds", "0"], ["load", "--body", "2m"]]
)
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    capsys.readouterr()


@pytest.mark.parametrize(("status", "code"), [(0, 0), (2, 1)])
def test_one_failed_request_spoils_the_run(status: int, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    turns = {"direct": [turn(None), turn(None, status=status)], "activator-cc0": [turn(9.0), turn(9.0)]}
    head: dict[str, object] = {"client": "wrk", "upstream": "nginx"}
    assert show(Options(), head, choose("direct,activator-cc0"), turns, None) == code
    assert ("2 failures with direct: 2 not 2xx" in capsys.readouterr().err) == bool(code)
