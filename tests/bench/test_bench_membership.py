"""`python -m bench membership`: what it takes, the medians, the table and the names in the file."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest

from bench.__main__ import main
from bench.api_server import cpu_reader, listener, local_port
from bench.claims.ways import WAYS
from bench.membership import Options, Turn, figures, options_of, rows, write_kubeconfig
from bench.processes import UsageError


def turn(converged_s: float, cpu_s: float | None = 0.01, **calls: int) -> Turn:
    return Turn(converged_s, (1, 2, 3), 4, 0, {"create": 3, **calls}, cpu_s)


TURNS = {("leases", 3): [turn(0.1, list=5), turn(0.3, list=6), turn(0.2, list=7)], ("update", 3): [turn(0.5, update=9)]}


def test_what_the_command_line_means() -> None:
    assert options_of("18,100", "random", 5, "", "", "x") == Options((18, 100), "random", 5, tuple(WAYS), "", "x")
    assert options_of("1", "lowest", 1, "leases,update", "f", "x").ways == ("leases", "update")


@pytest.mark.parametrize(("replicas", "ways"), [("0", ""), ("x", ""), ("", ""), ("501", ""), ("18", "leases,none")])
def test_what_cannot_be_measured(replicas: str, ways: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError):
        options_of(replicas, "random", 1, ways, "", "default")
    assert main(["membership", "--replicas", replicas, "--ways", ways]) == 2
    assert capsys.readouterr().err.startswith("bench: --")


def test_the_figure_is_the_median_and_every_round_is_kept() -> None:
    found = {one.name: one for one in figures(Options((3,)), TURNS)}
    converged = found["membership.leases.3.converged"]
    assert (converged.value, converged.unit, converged.params["each"]) == (200.0, "ms", "100 300 200")
    assert converged.params["replicas"] == 3 and converged.params["server"] == "fake"
    assert found["membership.leases.3.rounds"].value == 2.0
    assert found["membership.leases.3.calls"].value == 9.0
    assert found["membership.leases.3.calls"].params["calls_list"] == 6
    assert found["membership.update.3.server_cpu"].value == 10.0
    assert all(one.lower_is_better for one in found.values())


def test_a_server_whose_cpu_cannot_be_read_has_no_such_figure() -> None:
    turns = {("leases", 3): [turn(0.1, None)]}
    assert "membership.leases.3.server_cpu" not in {one.name for one in figures(Options(), turns)}
    assert rows(turns, 3)[1][0][-1] == "-"


def test_a_round_that_did_not_end_is_shown_as_such() -> None:
    turns = {("apply-by-member", 3): [msgspec.structs.replace(turn(90.0), is_over=False)]}
    assert rows(turns, 3)[1][0][1] == "> 90,000"
    found = {one.name: one for one in figures(Options(), turns)}
    assert found["membership.apply-by-member.3.converged"].params["converged"] is False


def test_the_cpu_time_of_a_server_of_this_machine_is_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = write_kubeconfig(tmp_path, port)
        assert local_port(config) == port and listener(port) == os.getpid()
        before = cpu_reader(config)()
        assert before is not None and before > 0
    assert listener(port) is None and cpu_reader(config)() is None
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(Path(config).read_text("utf-8").replace("127.0.0.1", "192.0.2.1"))
    assert cpu_reader(str(elsewhere))() is None


def test_every_row_has_every_column() -> None:
    title, lines = rows(TURNS, 3)
    assert title[0] == "way" and [line[0] for line in lines] == ["leases", "update"]
    assert {len(line) for line in lines} == {len(title)}
    assert lines[0][title.index("update")] == "0" and rows(TURNS, 18)[1] == []


def test_the_configuration_leads_to_the_fake_server(tmp_path: Path) -> None:
    text = Path(write_kubeconfig(tmp_path, 1234)).read_text("utf-8")
    assert "http://127.0.0.1:1234" in text
