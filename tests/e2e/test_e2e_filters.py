"""Filters that are not built in, rules for header fields and faults, through the running program."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from activator.testing import FilterContract
from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import ask, request
from tests.e2e.load import limited
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import configured

pytestmark = pytest.mark.e2e

MODULE = "tests.e2e.faulty_filters"


@pytest.mark.parametrize(
    ("name", "body", "check"),
    [
        ("TrustsText", b"", "test_it_raises_nothing_whatever_the_head_is_like"),
        ("LooksTooEarly", b"whole", "test_the_response_does_not_depend_on_segmentation"),
    ],
)
def test_the_contract_finds_what_is_wrong(name: str, body: bytes, check: str) -> None:
    contract = type("Contract", (FilterContract,), {"filter_path": f"{MODULE}:{name}", "body": body})()
    with pytest.raises(AssertionError):
        getattr(contract, check)()


class TestEverything(FilterContract):
    filter_path = f"{MODULE}:Everything"
    options: ClassVar = {"name": "everything"}


def serving(side: PodSide) -> None:
    while True:
        side.request()
        side.answer()


@pytest.fixture
def pod() -> Iterator[ScriptedPod]:
    with ScriptedPod(serving) as made:
        yield made


def revision(pod: ScriptedPod, **keys: Any) -> dict[str, Any]:
    return {**limited([pod.address], 10), **keys}


@pytest.mark.parametrize("hook", ["on_request", "on_attempt", "on_response", "on_end"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_filter_that_raises_costs_its_own_request_alone(
    run_activator: RunActivator, pod: ScriptedPod, hook: str, workers: int
) -> None:
    use = {"name": f"{MODULE}:Raises", "options": {"hook": hook}}
    activator = run_activator(configured([revision(pod, filters=[use])], workers=workers))
    activator.may_log_errors = True
    for number in range(20):
        fields = "X-Raise: 1\r\n" if number % 2 else ""
        expected = 500 if number % 2 and hook != "on_end" else 200
        answer = ask(activator.address, request(headers=fields))
        assert answer.status == expected, answer
    activator.wait_idle("app")
    assert activator.revision("app")["in_flight"] == 0


def test_a_hundred_filters(run_activator: RunActivator, pod: ScriptedPod) -> None:
    uses = [{"name": f"{MODULE}:Everything", "options": {"name": str(number)}} for number in range(100)]
    activator = run_activator(configured([revision(pod, filters=uses)]))
    answer = ask(activator.address, request())
    assert answer.status == 200
    assert answer.all("x-over") == ["0"] * 100
    assert pod.requests[0].all("x-filter") == [str(number) for number in range(100)]
    assert pod.requests[0].all("x-attempt") == ["0"]


def test_header_rules_reach_pod_and_client(run_activator: RunActivator, pod: ScriptedPod) -> None:
    rules = {
        "request": {"remove": ["Cookie"], "set": {"X-Tier": "gold", "Host": "inner.test"}},
        "response": {"set": {"X-Frame-Options": "DENY"}, "append": {"Vary": "Origin"}},
    }
    activator = run_activator(configured([revision(pod, headers=rules)]))
    answer = ask(activator.address, request(headers="Cookie: a=b\r\nX-Tier: iron\r\n"))
    assert (answer.status, answer.header("x-frame-options"), answer.all("vary")) == (200, "DENY", ["Origin"])
    (asked,) = pod.requests
    assert (asked.all("x-tier"), asked.all("host"), asked.all("cookie")) == (["gold"], ["inner.test"], [])


def test_a_fault_delays_and_refuses(run_activator: RunActivator, pod: ScriptedPod) -> None:
    activator = run_activator(configured([revision(pod, fault={"delay": "300ms", "status": 418})]))
    began_s = time.monotonic()
    answer = ask(activator.address, request())
    assert (answer.status, answer.reason) == (418, "fault_injected")
    assert time.monotonic() - began_s >= 0.3
    assert pod.requests == []


def test_a_filter_whose_secret_has_gone_lets_nobody_in(
    run_activator: RunActivator, pod: ScriptedPod, tmp_path: Path
) -> None:
    """Of a new revision, after the check: the data plane reads the secret again."""
    secret, path = tmp_path / "secret", tmp_path / "a.json"
    secret.write_text("s3cret")
    use = {"name": f"{MODULE}:Everything", "options": {"name": f"file:{secret}"}}
    path.write_text(json.dumps(configured([revision(pod, filters=[use])])))
    activator = run_activator(arguments=["-c", str(path)])
    assert ask(activator.address, request()).status == 200
    secret.unlink()
    path.write_text(json.dumps(configured([revision(pod, filters=[use], server_timing=True)])))
    activator.may_log_errors = True
    status, _, body = activator.command("/reload")
    assert status != 200 and str(secret) in body.decode()
    assert ask(activator.address, request()).status == 200, "the former configuration stays"
    assert "s3cret" not in "\n".join(activator.log)
    assert "s3cret" not in activator.ask("/debug/config")[2].decode()
