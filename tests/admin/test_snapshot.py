"""What `/debug/revisions` and `activator status` say of pods that get nothing: why, pod by pod."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from activator.admin.snapshot import joined as joined_snapshot
from activator.admin.status import table
from activator.config.specs import ConnectionSpec
from activator.control_plane import snapshot as control_snapshot
from activator.control_plane.probes.probed_pod import Failing
from activator.control_plane.snapshot import SET_ASIDE
from activator.data_plane import snapshot as data_snapshot
from activator.messages import (
    DataPlaneStatistics,
    Http2Statistics,
    PodGone,
    PodSetAside,
    PodStatus,
    PodUnplaced,
    Probed,
    RevisionSet,
)
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, balanced, seen

REFUSED = "refused a connection: connect_failed"
NO_SLOT = "every slot of the table is held"


def answer(joined: Joined, failing: dict[str, Failing] | None = None) -> bytes:
    worker = joined.worker
    control = (
        control_snapshot.revisions(
            worker.model.revisions, {}, lambda key: None, lambda key: failing or {}, joined.clock.now()
        ),
        control_snapshot.state_worker(worker, joined.clock.now()),
    )
    counts = DataPlaneStatistics(client_connections=7, http2=Http2Statistics(connections=2, streams=5))
    return msgspec.json.encode(joined_snapshot(data_snapshot.revisions(joined.tables, 0.0), *control, [], counts))


def shown(joined: Joined, failing: dict[str, Failing] | None = None) -> dict[str, Any]:
    (revision,) = msgspec.json.decode(answer(joined, failing))["revisions"]
    found: dict[str, Any] = revision
    return found


def reasons(joined: Joined, failing: dict[str, Failing] | None = None) -> dict[str, tuple[str, str]]:
    return {slot["pod"]: (slot["state"], slot["reason"]) for slot in shown(joined, failing)["slots"]}


def test_the_zones_of_pods_where_there_are_any() -> None:
    joined = Joined()
    joined.do(RevisionSet(balanced(zone="eu-a")), seen("p1"))
    assert "zone" not in table(answer(joined)) and "zone" not in shown(joined)["slots"][0]
    joined.do(seen("p2", zone="eu-b"))
    assert [(slot.get("zone"), slot["far"]) for slot in shown(joined)["slots"]] == [(None, False), ("eu-b", True)]
    text = table(answer(joined))
    assert "zone" in text and "eu-b" in text


def test_why_a_pod_is_in_quarantine() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    joined.do(joined.refused("p1", True, "connect_failed"))
    assert reasons(joined) == {"p1": ("quarantined", REFUSED), "p2": ("ready", "")}
    text = table(answer(joined))
    assert "reason" in text and "connect_failed" in text
    joined.do(Probed(KEY, "p1"))
    assert reasons(joined)["p1"] == ("recovering", REFUSED)
    joined.do(PodGone(KEY, "list", "p2"), seen("p1", PodStatus.NOT_READY))
    assert reasons(joined) == {"p1": ("not_ready", "")}, "that is what its source says of it"


def test_why_a_pod_does_not_answer() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", PodStatus.PENDING), seen("p2"), seen("p3"))
    failing = {"p1": Failing(0.0, "connection refused"), "p3": Failing(0.0, "it answered the probe with 500")}
    joined.do(joined.refused("p3", True, "connect_failed"))
    assert reasons(joined, failing) == {
        "p1": ("pending", "connection refused"),
        "p2": ("ready", ""),
        "p3": ("quarantined", f"{REFUSED}; now: it answered the probe with 500"),
    }
    assert "connection refused" in table(answer(joined, failing))


def test_a_slot_that_drains_says_nothing_of_the_pod_that_has_moved_away() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = joined.ask()
    joined.do(seen("p1", address="10.0.0.9:80"))
    joined.do(joined.refused("p1", True))
    found = {slot["address"]: slot["reason"] for slot in shown(joined)["slots"]}
    assert found == {"10.0.0.1:80": "", "10.0.0.9:80": "refused a connection"}
    request.release()


def test_why_a_pod_has_no_slot() -> None:
    joined = Joined()
    slots = 2 * SPEC.balancing.max_scale
    joined.do(RevisionSet(SPEC), *(seen(f"p{number}") for number in range(slots)))
    joined.throttler().table._array.slots_max = slots  # else it would take 131,072 pods
    joined.do(seen("late", PodStatus.PENDING, probe=True, address="10.0.9.1:80"))
    joined.do(*(PodUnplaced(KEY, identity) for identity in joined.hooks.unplaced))
    assert len(shown(joined)["slots"]) == slots
    expected = {"pod": "late", "address": "10.0.9.1:80", "state": "pending", "reason": NO_SLOT}
    assert [one | expected for one in shown(joined)["without_slot"]] == shown(joined)["without_slot"]
    assert "every slot" in table(answer(joined))
    joined.do(PodGone(KEY, "list", "late"))
    assert shown(joined)["without_slot"] == []


def test_a_pod_whose_address_another_one_has_is_shown_with_that_one() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("uid-1", address="10.0.0.1:80"))
    (pod,) = shown(joined)["without_slot"]
    expected = {"pod": "p1", "address": "10.0.0.1:80", "state": "draining", "reason": "uid-1 has its address"}
    assert pod == {**expected, "state_age_s": pod["state_age_s"]}
    assert "uid-1 has its address" in table(answer(joined))


def test_a_drained_pod_is_one_row_with_its_requests_and_the_reason() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2", address="10.0.0.2:80"))
    request = joined.ask()
    assert request.lease is not None
    drained = request.lease.identity
    joined.do(PodSetAside(KEY, drained, True))
    found = shown(joined)
    (slot,) = [one for one in found["slots"] if one["pod"] == drained]
    assert (slot["in_flight"], slot["state"], slot["reason"]) == (1, "draining", SET_ASIDE)
    assert found["without_slot"] == []
    request.release()


def test_when_the_state_of_a_pod_changed() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.clock.pass_time(180.0)
    joined.do(seen("p2", address="10.0.0.2:80"))
    joined.clock.pass_time(12.0)
    head, *rows = table(answer(joined)).splitlines()[1:]
    assert head.split()[4] == "changed"
    assert "3 min ago" in rows[0] and "12 s ago" in rows[1]


def test_addresses_are_never_cut_however_narrow_the_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    address = "[2001:db8:1234:5678:9abc:def0:1234:5678]:18080"
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen(address, address=address))
    joined.do(joined.refused(address, True))
    text = table(answer(joined))
    assert address in text and "pod  " not in text, "a pod without a name is shown once"
    joined.do(seen("a-pod-with-a-rather-long-name-of-its-own-7f9c", address="10.0.0.9:80"))
    assert "a-pod-with-a-rather-long-name-of-its-own-7f9c" in table(answer(joined))


@pytest.mark.parametrize("address", ["[fd00::a]:80", "[fe80::1%eth0]:80", "[::1]:80", "[bold]:80", "a:smile:80"])
def test_a_text_is_printed_as_it_is(address: str) -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen(address, PodStatus.PENDING, address=address))
    assert address in table(answer(joined))
    reason = f"it listens on {address} only [/usr/bin/x]"
    assert reason in table(answer(joined, {address: Failing(0.0, reason)}))


def test_what_clients_have_open() -> None:
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, connection=ConnectionSpec(protocol="h2c"))), seen("p1"))
    told = msgspec.json.decode(answer(joined))
    assert told["clients"] == {"connections": 7, "http2_connections": 2, "streams": 5}
    assert told["revisions"][0]["protocol"] == "h2c"
    text = table(answer(joined))
    assert "clients: 7 connections, 2 of them HTTP/2 with 5 streams" in text
    assert "pods speak h2c" in text
