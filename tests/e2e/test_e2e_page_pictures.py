"""The live page and the waiting page in each state, light and dark: as they were looked at, and for everybody.

What the live page shows comes from answers of the program, in which numbers and names were replaced: so the pictures
are the same each time, and an answer that changes its form is seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_core_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from activator.admin.overview import STATES
from activator.config.specs import WaitingPageSpec
from activator.data_plane.filters.waiting_page import PageTemplate
from tests.e2e.conftest import RunActivator
from tests.e2e.page_pictures import CELLS_MAX, compare, differences
from tests.e2e.running import Activator, configured
from tests.e2e.test_e2e_page import PROGRAM, opened

ATTENTION = {
    "failed": ["cannot start: the program exited with code 1: no model file"],
    "degraded": ["1 of 3 pods are in quarantine", "pods that do not answer: 1 (connection refused)"],
}
COUNTS = {
    "failed": {"requests": 12, "failed": 12, "pods": 1},
    "degraded": {"requests": 90_210, "failed": 33, "in_flight": 2, "ready": 2, "pods": 3},
    "waiting": {"requests": 4_001, "in_flight": 2, "queued": 7, "ready": 2, "pods": 2},
    "starting": {"requests": 1, "pods": 1},
    "serving": {"requests": 1_204_511, "failed": 2, "in_flight": 41, "ready": 5, "pods": 5},
    "ready": {"requests": 310, "ready": 1, "pods": 1},
    "asleep": {"requests": 28},
}
ZERO = {"requests": 0, "failed": 0, "in_flight": 0, "queued": 0, "ready": 0, "pods": 0}
PHASES = ("scale_up", "start", "ready", "total")
POINTS = 60
DARK = ("serving", "groups", "question", "waiting-output")  # among them each colour


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 960, "height": 680}, reduced_motion="reduce")
    yield context.new_page()
    context.close()


@pytest.fixture
def calculator(browser: Browser) -> Iterator[Page]:
    """A page without a policy of its own."""
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def activator(run_shared_activator: RunActivator) -> Activator:
    """With one revision, whose answers are the pattern of all."""
    group = {"name": "gpu0", "budget": {"gpu_memory": "24GiB"}, "members": ["app"]}
    process = {"command": PROGRAM, "idle": "300s"}
    app = {"name": "app", "hosts": ["app.test"], "needs": {"gpu_memory": "10GiB"}, "process": process}
    made = run_shared_activator(configured([app], groups=[group]))
    made.command("/load/app")
    made.wait_ready_pods("app")
    return made


def replaced(pattern: dict[str, Any], **values: Any) -> dict[str, Any]:
    """`pattern` with other values, of names that it has."""
    unknown = values.keys() - pattern.keys()
    assert not unknown, f"the program's answer has no {unknown} any more"
    return {**pattern, **values}


def told(activator: Activator, path: str) -> Any:
    status, _, body = activator.ask(path)
    assert status == 200
    return json.loads(body)


class Answers:
    """What the page is told. `states`: of the revisions that there are."""

    def __init__(self, activator: Activator) -> None:
        self._overview = told(activator, "/debug/overview")
        self._shown = told(activator, "/debug/revisions?revision=default/app")
        self._history = told(activator, "/debug/history?revision=default/app")
        self.states = list(STATES)
        self.groups = False
        self.more: dict[str, Any] = {}

    def overview(self) -> dict[str, Any]:
        (pattern,) = self._overview["revisions"]
        rows = [
            replaced(
                pattern,
                key=f"default/{state}",
                hosts=[f"{state}.test"],
                state=state,
                state_age_s=7_300.0,
                attention=ATTENTION.get(state, []),
                cold={phase: self._distribution(place) for place, phase in enumerate(PHASES)},
                **{**ZERO, **COUNTS[state], "recent_failures": COUNTS[state].get("failed", 0), "recorded": 100},
            )
            for state in self.states
        ]
        groups = self._groups() if self.groups else []
        quiet = {"clients": 12, "http2_connections": 0, "streams": 0, "held_bytes": 0, "workers": 1, "draining": False}
        run = {"version": "0.1.0", "uptime_s": 90_000.0, "reload": {"age_s": 300.0, "problems": []}}
        return replaced(self._overview, revisions=rows, groups=groups, **{**quiet, **run, **self.more})

    @staticmethod
    def _distribution(place: int) -> dict[str, Any]:
        mean_s = (0.004, 0.31, 0.02, 0.334)[place]
        return {"count": 28, "mean_s": mean_s, "p50_s": mean_s * 0.9, "p99_s": mean_s * 3}

    def _groups(self) -> list[dict[str, Any]]:
        (pattern,) = self._overview["groups"]
        holder = pattern["holders"][0]
        gib = 2**30
        holders = [
            replaced(holder, revision="default/serving", running=1, leaving=0, sleeping=0),
            replaced(holder, revision="default/ready", running=0, leaving=1, sleeping=0),
        ]
        waiting = [
            {"revision": "default/waiting", "explanation": "waits for 10 GiB of gpu_memory: default/ready leaves"}
        ]
        used, budget = {"gpu_memory": 20 * gib}, {"gpu_memory": 24 * gib}
        return [replaced(pattern, name="gpu0", used=used, budget=budget, holders=holders, waiting=waiting, swaps=31)]

    def revision(self, name: str) -> dict[str, Any]:
        (pattern,) = self._shown["revisions"]
        slot = (pattern["slots"] or pattern["without_slot"])[0]
        states = ["ready", "ready", "quarantined"] if name == "degraded" else ["ready"] * COUNTS[name].get("ready", 0)
        slots = [
            replaced(slot, pod=f"{name}#{number}", address=f"127.0.0.1:{4000 + number}", state=state)
            | {
                "in_flight": 9 - number,
                "limit": 10,
                "responses": 4_000,
                "errors": 4 * number,
                "first_byte_total_s": 80.0,
            }
            | {"state_age_s": 7_300.0, "reason": "connection refused" if state == "quarantined" else ""}
            for number, state in enumerate(states)
        ]
        failure = "the program exited with code 1: no model file" if name == "failed" else ""
        values: dict[str, Any] = {
            "name": name,
            "hosts": [f"{name}.test"],
            "slots": slots,
            "without_slot": [],
            "table": replaced(pattern["table"], length=len(slots), capacity=8, fragmentation=0.25),
        }
        optional = {
            "failure": failure,
            "failed": {"revision_failed": 12} if failure else {},
            "waits_for": "",
            "group": None,
            "memory": {} if failure else {"memory": 6 * 2**30},
            "scaling": {
                "wanted": len(slots),
                "reason": "stable",
                "explanation": "41 requests in flight over 60 s, 10 a pod",
                "changed": {"age_s": 12.0, "from": 1, "to": len(slots), "explanation": "the panic window wants more"},
            },
        }
        return replaced(self._shown, revisions=[replaced(pattern, **values) | optional])

    def history(self) -> dict[str, Any]:
        names = ("age_s", "rate", "failures", "p50_s", "p99_s", "queued", "in_flight", "ready")
        wave = [3 + 2 * math.sin(point / 5) for point in range(POINTS)]
        ages = [30.0 * (POINTS - point) for point in range(POINTS)]
        counts = ("queued", "in_flight", "ready")
        curves = {
            name: ages if name == "age_s" else [round(one * place) if name in counts else one * place for one in wave]
            for place, name in enumerate(names)
        }
        lanes = [
            self._lane("serving", ("loading", 3_300.0, 3_200.0), ("serving", 3_200.0, 0.0)),
            self._lane("ready", ("serving", 3_600.0, 900.0), ("leaving", 900.0, 840.0), ("asleep", 840.0, 0.0)),
        ]
        revisions = {f"default/{state}": curves for state in self.states}
        return replaced(self._history, revisions=revisions, groups={"gpu0": lanes})

    def _lane(self, name: str, *spans: tuple[str, float, float]) -> dict[str, Any]:
        ((pattern, *_),) = self._history["groups"].values()
        (span, *_) = pattern["spans"]
        made = [replaced(span, state=state, from_age_s=begin, to_age_s=end) for state, begin, end in spans]
        return replaced(pattern, revision=f"default/{name}", spans=made)

    def lines(self) -> dict[str, Any]:
        texts = ["listening on port 4000", "loading the model", "GET /v1/models 200", "warning: no GPU"]
        lines = [
            {"stream": "stderr" if "warning" in text else "stdout", "process": "serving#1", "text": text}
            for text in texts
        ]
        return {"lines": lines, "last": len(lines)}

    def give(self, page: Page) -> None:
        """From now on, instead of the program's."""
        asked: dict[str, Callable[[str], Any]] = {
            "**/debug/overview": lambda url: self.overview(),
            "**/debug/history?*": lambda url: self.history(),
            "**/debug/revisions?*": lambda url: self.revision(url.rpartition("%2F")[2]),
            "**/logs/**": lambda url: self.lines() if url.endswith("after=0") else {"lines": []},
        }
        for pattern, make in asked.items():
            page.route(pattern, answering(make))


def answering(make: Callable[[str], Any]) -> Callable[[Route], None]:
    """Fulfils a request by what `make` has for its URL."""

    def fulfill(route: Route) -> None:
        route.fulfill(body=json.dumps(make(route.request.url)), content_type="application/json")

    return fulfill


def show_open(page: Page, name: str) -> None:
    page.get_by_role("button", name=f"default/{name}", exact=True).click()
    expect(page.locator("tr.details, .details").first).to_be_visible()
    expect(page.locator("svg.curve")).to_have_count(3)
    page.mouse.move(0, 0)


def show_failed(page: Page, answers: Answers) -> None:
    show_open(page, "failed")
    expect(page.get_by_text("refused: 12 revision_failed")).to_be_visible()


def show_serving(page: Page, answers: Answers) -> None:
    show_open(page, "serving")
    expect(page.locator(".pods tbody tr")).to_have_count(5)
    expect(page.get_by_role("log")).to_contain_text("no GPU")


def show_degraded(page: Page, answers: Answers) -> None:
    show_open(page, "degraded")
    expect(page.locator(".pod.quarantined")).to_have_count(1)


def show_groups(page: Page, answers: Answers) -> None:
    answers.groups = True
    expect(page.get_by_label("Groups")).to_contain_text("20 GiB of 24 GiB")
    expect(page.locator(".track")).to_have_count(2)


def show_none(page: Page, answers: Answers) -> None:
    page.get_by_label("Search").fill("nobody")
    expect(page.get_by_text("No revision matches.")).to_be_visible()


def show_question(page: Page, answers: Answers) -> None:
    page.get_by_role("button", name="Drain and exit").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.mouse.move(0, 0)


def show_draining(page: Page, answers: Answers) -> None:
    answers.more = {"draining": True, "workers": 4, "streams": 70}
    expect(page.get_by_role("status")).to_contain_text("4 workers, draining")


def show_empty(page: Page, answers: Answers) -> None:
    answers.states = []
    expect(page.get_by_text("There is no revision")).to_be_visible()


def show_no_answer(page: Page, answers: Answers) -> None:
    page.route("**/debug/overview", lambda route: route.fulfill(status=503))
    expect(page.get_by_role("status")).to_have_text("no answer: status 503")


def show_table(page: Page, answers: Answers) -> None:
    expect(page.locator("svg.spark")).to_have_count(len(STATES))


OFTEN = frozenset({"failed", "serving", "groups"})  # the others in `make deep`
SHOWN: dict[str, Callable[[Page, Answers], None]] = {
    "table": show_table,
    "failed": show_failed,
    "degraded": show_degraded,
    "serving": show_serving,
    "groups": show_groups,
    "no-match": show_none,
    "question": show_question,
    "draining": show_draining,
    "empty": show_empty,
    "no-answer": show_no_answer,
}


def check_both(page: Page, calculator: Page, name: str, folder: Path) -> None:
    """axe finds nothing against WCAG 2 AA, light and dark, and the picture is the one that is kept."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found = Axe().run(page)["violations"]
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
        if scheme == "light" or name in DARK:
            compare(calculator, f"{name}-{scheme}", page.screenshot(animations="disabled", caret="hide"), folder)


@pytest.mark.parametrize(
    "state", [pytest.param(state, marks=() if state in OFTEN else pytest.mark.deep) for state in SHOWN]
)
def test_the_live_page(activator: Activator, page: Page, calculator: Page, state: str, tmp_path: Path) -> None:
    answers = Answers(activator)
    answers.give(page)
    opened(page, activator)
    with page.expect_response("**/debug/overview"):  # the first rates
        pass
    SHOWN[state](page, answers)
    check_both(page, calculator, state, tmp_path)


@pytest.mark.parametrize("lines", [(), ("loading the model", "layer 12 of 40")], ids=["phase", "output"])
def test_the_waiting_page(page: Page, calculator: Page, lines: tuple[str, ...], tmp_path: Path) -> None:
    spec = WaitingPageSpec(2.0, output=bool(lines))
    page.set_viewport_size({"width": 480, "height": 420})
    page.set_content(PageTemplate("default/llama", spec).page(12.0, 30.0, 3, lines)[1].decode())
    check_both(page, calculator, f"waiting-{'output' if lines else 'phase'}", tmp_path)


def test_a_word_or_a_colour_that_is_another_one_is_seen(activator: Activator, page: Page, calculator: Page) -> None:
    answers = Answers(activator)
    answers.give(page)
    opened(page, activator)
    show_table(page, answers)
    before = page.screenshot()
    assert differences(calculator, before, page.screenshot()) == []
    row = page.locator("tbody .mark").first
    row.evaluate("node => { node.style.color = 'var(--good)'; }")
    coloured = page.screenshot()
    assert len(differences(calculator, before, coloured)) > CELLS_MAX
    row.evaluate("node => { node.style.color = ''; node.textContent = 'fairly'; }")
    assert len(differences(calculator, before, page.screenshot())) > CELLS_MAX
