"""The last requests: ids, parameters, each shown once while following, and nothing that controls a terminal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from activator.admin.last_requests import FOLLOW_COUNT, RequestTable, follow, json_lines, listed, parse_id, report
from activator.admin.server import AdminServer
from activator.telemetry.history import HISTORY_DAY_INTERVAL_S
from tests.admin.admin_server import served
from tests.admin.test_admin_health import Inside


def record(number: int, age_s: float = 0.0, **more: Any) -> dict[str, Any]:
    shown = {"revision": "default/llama", "method": "POST", "target": "/", "status": 200, "duration_s": 0.5}
    return {"number": number, "age_s": age_s, "has_capture": False, "wait_s": None, **shown, **more}


def of(*records: dict[str, Any]) -> Any:
    return listed({0: {"records": list(records), "evicted": 0}}, 10, 0.0)["requests"]


def test_each_worker_has_its_own_clock() -> None:
    answers = {
        0: {"records": [record(1, 2.0)], "evicted": 7},
        1: {"records": [record(2, 3.0)], "evicted": 8, "wall_s": 9.0},
    }
    found = listed(answers, 10, 5.0)
    assert [(one["id"], one["time"][-7:]) for one in found["requests"]] == [("1-2", "06.000Z"), ("0-1", "03.000Z")]
    assert found["evicted"] == {"0": 7, "1": 8}
    assert len(listed(answers, 1, 5.0)["requests"]) == 1


def test_the_slowest_are_those_of_all_workers() -> None:
    answers = {
        place: {"records": [record(one, duration_s=place + one) for one in (1, 5, 3)], "evicted": 0} for place in (0, 1)
    }
    found = listed(answers, 3, 0.0, is_slowest=True)["requests"]
    assert [one["id"] for one in found] == ["1-5", "0-5", "1-3"]


def test_what_the_admin_port_lists() -> None:
    made = record(255, 1.5, tokens={"prompt": 1, "completion": 2, "cached": 0})
    (one,) = listed({3: {"records": [made], "evicted": 0}}, 10, 1_000.0)["requests"]
    assert (one["id"], one["time"]) == ("3-ff", "1970-01-01T00:16:38.500Z")
    assert "wait_s" not in one and "age_s" not in one and "number" not in one
    assert parse_id(one["id"]) == (3, 255)
    (one,) = listed({-2: {"records": [made], "evicted": 0}}, 10, 1_000.0)["requests"]
    assert (one["id"], parse_id(one["id"])) == ("old2-ff", (-2, 255)), "an option of the command would begin with -"


@pytest.mark.parametrize(
    "text", ["", "x", "1", "1-", "-1", "-1-1", "old-1", "1-g", "12345-1", "1-" + "f" * 16, "1-1\n", "1- 1"]
)
def test_what_is_no_id(text: str) -> None:
    assert parse_id(text) == (0, 0)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/debug/requests", 200),
        ("/debug/requests?n=1000&revision=llama", 200),
        *((f"/debug/requests?order={good}", 200) for good in ("newest", "slowest")),
        ("/debug/requests?order=size", 400),
        *((f"/debug/requests?n={bad}", 400) for bad in ("0", "1001", "x", "-1", "1.5", "99999999999999999999", "")),
        ("/debug/requests/0-7", 200),
        *((f"/debug/requests/{bad}", 404) for bad in ("0-8", "x", "0-0")),
        *((f"/debug/history?range={good}", 200) for good in ("hour", "day")),
        *((f"/debug/history?range={bad}", 400) for bad in ("week", "")),
    ],
)
def test_the_parameters_of_the_admin_port(path: str, status: int) -> None:
    async def scenario() -> tuple[int, Any]:
        async with (
            served(AdminServer(Inside(), lambda: 0.0)) as address,
            aiohttp.ClientSession() as session,
            session.get(f"http://{address}{path}") as answer,
        ):
            return answer.status, await answer.json()

    found, body = asyncio.run(scenario())
    assert found == status
    if "n=1000" in path:
        assert body == {"requests": [{"of": "default/llama", "count": 1000}]}
    if path.endswith("range=day"):
        assert body == {"interval_s": HISTORY_DAY_INTERVAL_S, "revisions": {"is_day": True}, "groups": {"gpu0": []}}
    if status >= 400:
        assert len(body["problems"]) == 1


class Port:
    """An admin port whose answers are given: the records of each, the newest first."""

    def __init__(self, *answers: list[tuple[int, int]], evicted: int = 0) -> None:
        self.answers = list(answers)
        self.missed = 0
        self.evicted = evicted

    def ask(self, count: int) -> bytes:
        numbers: dict[int, dict[str, Any]] = {}
        for age_s, (place, number) in enumerate(self.answers.pop(0)):
            answer = numbers.setdefault(place, {"records": [], "evicted": self.evicted})
            answer["records"].append(record(number, float(age_s)))
        return json.dumps(listed(numbers, count, 10_000.0)).encode()

    def miss(self) -> None:
        self.missed += 1

    def follow(self, count: int) -> Iterator[str]:
        for line in follow(self.ask, count, lambda: bool(self.answers), json_lines, self.miss):
            yield json.loads(line)["id"]


def test_each_request_is_shown_once_the_oldest_first() -> None:
    port = Port([(0, 4), (1, 9), (0, 3), (0, 2)], [(0, 4), (1, 9), (0, 3)], [(1, 11), (0, 5), (1, 10), (0, 4)])
    assert list(port.follow(2)) == ["1-9", "0-4", "1-a", "0-5", "1-b"]
    assert port.missed == 0


def test_a_worker_that_misses_an_answer_is_not_shown_again() -> None:
    port = Port([(0, 4), (1, 9)], [(0, 4)], [(0, 4), (1, 9)], [(0, 5), (1, 10), (1, 9), (0, 4)])
    assert list(port.follow(10)) == ["1-9", "0-4", "1-a", "0-5"]


def test_more_than_one_answer_has() -> None:
    port = Port([(0, 1)], [(0, number) for number in range(2_000, 2_000 - FOLLOW_COUNT, -1)])
    assert len(list(port.follow(1))) == 1 + FOLLOW_COUNT
    assert port.missed == 1


def test_what_a_worker_has_forgotten() -> None:
    port = Port([(0, 5)], [(0, 7)], [(0, 8)], evicted=6)
    assert list(port.follow(1)) == ["0-5", "0-7", "0-8"]
    assert port.missed == 1, "6 was never shown; the next answer misses none"


def test_later_lines_have_the_widths_of_the_first_ones() -> None:
    first = of(record(1, target="/a-target-that-is-longer-than-most"), record(2, user="alice-the-second"))
    firsts: list[list[dict[str, Any]]] = [[], first]
    for shown in firsts:
        table = RequestTable(is_followed=True)
        head, *rows = table.lines(shown)
        rows += table.lines(of(record(3, user="bob", duration_s=0.0001)), False)
        rows += table.lines(of(record(4, duration_s=12.5, wait_s=0.1)), False)
        starts = [head.index(title) for title in ("ID", "REVISION", "REQUEST", "STATUS", "TOOK", "WAIT", "USER", "POD")]
        assert all(row[start - 1] == " " != row[start] for row in rows for start in starts), rows
    assert list(RequestTable(is_followed=False).lines([])) == [
        "TIME  ID  REVISION  REQUEST  STATUS  TOOK  WAIT  FIRST  TOKENS  TOKENS/S  USER  POD"
    ]


HOSTILE = "\x1b[2J\x9b31m\u202e\x07\r\x00"


def test_the_tokens_per_second_of_a_stream() -> None:
    tokens = {"prompt": 12, "completion": 5, "cached": 0}
    shown = of(record(1, tokens=tokens, output_token_s=0.0123), record(2, 1.0, tokens=tokens))
    head, *rows = RequestTable(is_followed=False).lines(shown)
    assert head.split()[8:10] == ["TOKENS", "TOKENS/S"]
    assert [row.split()[-4:-2] for row in rows] == [["12+5", "81.3"], ["12+5", "-"]]


def test_nothing_controls_the_terminal() -> None:
    message = {"head": f"GET /{HOSTILE}\r\nX: {HOSTILE}", "body": f"a\tb\n--- response\n{HOSTILE}"}
    shown = list(report({"request": message, "response": message, "is_cut": True}))
    shown += RequestTable(is_followed=False).lines(of(record(1, target=f"/{HOSTILE}", user=HOSTILE, reason=HOSTILE)))
    shown += json_lines(of(record(1, target=f"/{HOSTILE}")))
    for line in shown:
        assert line.replace("\t", "").isprintable(), line
    assert [line for line in shown if line.startswith("---")][:3] == ["--- request", "--- response", shown[-4]]
    assert "  a\tb" in shown and "  --- response" in shown
