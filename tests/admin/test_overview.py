"""The rows of the live page: what needs attention, and why."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from activator.admin.overview import ROWS_IN_A_SLICE, STATES, row, slices, totals
from activator.control_plane.probes.probed_pod import Failing
from activator.control_plane.snapshot import Known
from activator.control_plane.state.records import RevisionRecord
from activator.data_plane import statistics
from activator.messages import DataPlaneStatistics, RevisionStatistics
from lb.tracker import NOT_READY, PENDING, QUARANTINED, READY, STATE_NAMES
from tests.control_plane.state.state_fakes import SPEC
from tests.telemetry.revision_figures import a_throttler


def figures(queued: int = 0, in_flight: int = 0, **pods: int) -> RevisionStatistics:
    """`pods`: how many, by the name of a state."""
    one = statistics.revision(a_throttler(SPEC.key))
    numbers = tuple(pods.get(name, 0) for name in STATE_NAMES)
    return replace(one, queued=queued, table=replace(one.table, pods=numbers, in_flight=in_flight))


def known(failure: str = "", failing: dict[str, Failing] | None = None, problems: list[str] | None = None) -> Known:
    return Known(RevisionRecord(SPEC, {}, failure=failure), problems or [], failing or {}, has_program=False)


def age_s(key: str, state: str) -> float:
    return float(len(state))


@pytest.mark.parametrize(
    ("state", "statistics_of", "known_of"),
    [
        ("asleep", figures(), known()),
        ("starting", figures(**{STATE_NAMES[PENDING]: 1}), known()),
        ("ready", figures(**{STATE_NAMES[READY]: 1}), known()),
        ("serving", figures(in_flight=1, **{STATE_NAMES[READY]: 1}), known()),
        ("waiting", figures(queued=1, in_flight=1, **{STATE_NAMES[READY]: 1}), known()),
        ("degraded", figures(queued=1, **{STATE_NAMES[READY]: 1, STATE_NAMES[QUARANTINED]: 1}), known()),
        ("degraded", figures(**{STATE_NAMES[NOT_READY]: 2}), known()),
        ("degraded", figures(), known(failing={"p": Failing(0.0, "connection refused")})),
        ("degraded", figures(), known(problems=["the name model.internal is not known"])),
        ("failed", figures(queued=3, **{STATE_NAMES[QUARANTINED]: 1}), known("exited with code 1")),
    ],
)
def test_the_worst_counts_and_says_why(state: str, statistics_of: RevisionStatistics, known_of: Known) -> None:
    shown = row(statistics_of, known_of, age_s, 0)
    assert (shown["state"], shown["state_age_s"]) == (state, float(len(state)))
    assert bool(shown["attention"]) == (state in ("failed", "degraded"))
    assert STATES.index("failed") < STATES.index("degraded") < STATES.index("waiting") < STATES.index("asleep")


def test_all_that_is_wrong_is_told() -> None:
    failing = {"p": Failing(0.0, "connection refused"), "q": Failing(0.0, "timed out")}
    found = known("no such image", failing, ["no such name"])
    told = row(figures(**{STATE_NAMES[QUARANTINED]: 1}), found, age_s, 0)["attention"]
    assert told == [
        "cannot start: no such image",
        "1 of 1 pods are in quarantine",
        "pods that do not answer: 2 (connection refused, and 1 more causes)",
        "no such name",
    ]


@pytest.mark.parametrize("number", [0, 1, ROWS_IN_A_SLICE - 1, ROWS_IN_A_SLICE, 2 * ROWS_IN_A_SLICE + 1])
def test_the_answer_is_made_in_slices(number: int) -> None:
    found = known()
    all_known = {f"ns/r{place}": found for place in range(number)}
    rows = [replace(figures(), key=f"ns/r{place}") for place in range(number)]
    rows.append(replace(figures(), key="ns/unknown"))
    rows.append(replace(figures(), key="ns/r0", dropped=True))
    head = totals(DataPlaneStatistics(client_connections=3), [], False)
    parts = list(slices(iter(rows), all_known.get, age_s, lambda one: 0, head))
    answer: dict[str, Any] = msgspec.json.decode(b"".join(parts))
    assert [one["key"] for one in answer["revisions"]] == [*all_known]
    assert answer["clients"] == 3 and answer["workers"] == 1
    assert len(parts) == 2 + number // ROWS_IN_A_SLICE
