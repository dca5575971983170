"""The use of quotas over restarts: what is read again, and files that cannot be used."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from activator.app.quota_file import KEPT_S, QuotaFile
from activator.config.specs import QuotaSpec, UserSpec
from activator.data_plane.quotas.ledger import ADMITTED, REQUESTS
from activator.data_plane.quotas.quotas import Quotas
from activator.runtime.errors import StartError

SPEC = QuotaSpec(requests=10, requests_period_s=100.0, tokens=1_000, tokens_period_s=10_000.0)
USERS = (UserSpec("alice", b"a", None, quota=SPEC), UserSpec("bob", b"b", None))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def used_after(path: Path, clock: Clock, use: dict[str, tuple[float, float]], seconds: float) -> list[object]:
    """Write a use, and read it again after some time."""
    file = QuotaFile(str(path), clock)
    asyncio.run(file.close(use))
    clock.now_s += seconds
    again = QuotaFile(str(path), clock)
    found: list[object] = [user.used for user in again.with_use(USERS)]
    asyncio.run(again.close({}))
    return found


def test_what_is_used_becomes_free_while_the_program_is_down(tmp_path: Path) -> None:
    path, clock = tmp_path / "state.db", Clock()
    assert used_after(path, clock, {"alice": (8.0, 500.0), "bob": (0.0, 0.0)}, 30.0) == [(5.0, 497.0), None]
    assert used_after(path, clock, {}, 10.0) == [(4.0, 496.0), None]
    assert used_after(path, clock, {"alice": (3.0, 5_000.0)}, -500.0) == [(3.0, 5_000.0), None], "a clock set back"
    assert used_after(path, clock, {}, KEPT_S + 600.0) == [None, None]


def test_a_later_use_replaces_an_earlier_one(tmp_path: Path) -> None:
    clock = Clock()
    file = QuotaFile(str(tmp_path / "state.db"), clock)
    for used in (2.0, 6.0, 4.0):
        asyncio.run(file.save({"alice": (used, 0.0)}))
    assert file.with_use(USERS)[0].used == (4.0, 0.0)
    asyncio.run(file.close({"alice": (5.0, 1.0)}))
    assert used_after(tmp_path / "state.db", clock, {}, 0.0) == [(5.0, 1.0), None]


def test_quotas_begin_with_it() -> None:
    quotas = Quotas(lambda: 50.0)
    quotas.set_users((UserSpec("alice", b"a", None, quota=SPEC, used=(8.0, 0.0)),))
    quota = quotas.find("alice")
    assert quota is not None and quotas.usage() == {"alice": (8.0, 0.0)}
    limits = [asked.decision.limit for asked in [quotas.ask(quota, 0) for _ in range(3)] if asked.decision is not None]
    assert limits == [ADMITTED, ADMITTED, REQUESTS]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    file = QuotaFile(str(tmp_path / "state.db"), Clock())
    with pytest.raises(StartError, match=r"state\.db cannot be used: database is locked \(another program uses it\)"):
        QuotaFile(str(tmp_path / "state.db"), Clock())
    asyncio.run(file.close({}))
    with pytest.raises(StartError, match=r"state: the file /nowhere/state\.db cannot be used: .*No such file"):
        QuotaFile("/nowhere/state.db", Clock())
    assert (tmp_path / "state.db").stat().st_mode & 0o777 == 0o600
    (tmp_path / "text.db").write_text("a text of more than sixteen bytes, which is no database\n" * 100)
    with pytest.raises(StartError, match=r"cannot be used: file is not a database"):
        QuotaFile(str(tmp_path / "text.db"), Clock())


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    file = QuotaFile(str(path), Clock())
    asyncio.run(file.save({"alice": (2.0, 0.0)}))
    with pytest.raises(sqlite3.Error):
        asyncio.run(file.save({"alice": (3.0, 0.0), "bob": (object(), 0.0)}))  # type: ignore[dict-item]
    assert file.with_use(USERS)[0].used == (2.0, 0.0)
    asyncio.run(file.save({"alice": (3.0, 0.0)}))
    assert file.with_use(USERS)[0].used == (3.0, 0.0), "the next one is written"
    asyncio.run(file.close({}))


def test_closing_waits_for_a_write_and_ends_all_others(tmp_path: Path) -> None:
    """The program ends while its periodic write is in its thread."""
    path, clock = tmp_path / "state.db", Clock()
    file = QuotaFile(str(path), clock)

    async def run() -> None:
        writing = asyncio.create_task(file.save({"alice": (2.0, 0.0)}))
        await asyncio.sleep(0)
        await file.close({"alice": (3.0, 0.0)})
        await writing
        await file.save({"alice": (4.0, 0.0)})  # too late: it changes nothing and raises nothing

    asyncio.run(run())
    assert used_after(path, clock, {}, 0.0) == [(3.0, 0.0), None]


def test_rows_that_are_none_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    asyncio.run(QuotaFile(str(path), Clock()).close({"alice": (2.0, 0.0)}))
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO quotas VALUES ('bob', NULL, 'x', NULL)")
    database.close()
    assert used_after(path, Clock(), {}, 0.0) == [(2.0, 0.0), None]
