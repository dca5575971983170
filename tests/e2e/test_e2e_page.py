"""The live page in a browser (Chromium): what it shows, how it is used, and that everybody can use it."""

from __future__ import annotations

import http.client
import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from axe_core_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect

from activator import __version__
from activator.config.specs import WaitingPageSpec
from activator.data_plane.filters.waiting_page import PageTemplate
from tests.e2e.conftest import RunActivator
from tests.e2e.http2_client import Http2Client
from tests.e2e.http2_pods import Http2Pod
from tests.e2e.http_client import Client, request
from tests.e2e.pods import ScriptedPod, serve_or_hold
from tests.e2e.running import PATIENCE_S, Activator, configured, eventually

MANY = 500
UNAVAILABLE = "status of 503"  # what the browser itself says of the one answer that a test spoils
PROGRAM = [sys.executable, str(Path(__file__).parent / "programs" / "talker.py"), "{port}"]


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """On which nothing goes wrong: an error, or something that its policy forbids, fails the test."""
    wrong: list[str] = []

    def told(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and UNAVAILABLE not in message.text:
            wrong.append(message.text)

    context = browser.new_context(viewport={"width": 1280, "height": 900})
    made = context.new_page()
    made.set_default_timeout(15_000)
    made.on("console", told)
    made.on("pageerror", lambda error: wrong.append(str(error)))
    yield made
    context.close()
    assert wrong == []


@pytest.fixture(scope="module")
def serving(run_shared_activator: RunActivator) -> Activator:
    """A revision in each state."""
    broken = [sys.executable, "-c", "raise SystemExit('no model file')"]
    made: list[dict[str, Any]] = [
        {
            "name": "talker",
            "hosts": ["talker.test"],
            "container_concurrency": 1,
            "process": {"command": PROGRAM},
            "record": {"capture": {}},
        },
        {"name": "broken", "hosts": ["broken.test"], "process": {"command": broken}},
        {"name": "asleep", "hosts": ["asleep.test"], "process": {"command": PROGRAM}},
    ]
    activator = run_shared_activator(configured(made))
    assert get(activator, "talker.test") == 200
    assert get(activator, "broken.test") == 503
    return activator


def get(activator: Activator, host: str, path: str = "/") -> int:
    """The status of one request."""
    connection = http.client.HTTPConnection(activator.address, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()


def opened(page: Page, activator: Activator) -> Page:
    page.goto(f"http://{activator.admin}/")
    page.get_by_role("button", name="default/").first.wait_for()
    return page


def row_of(page: Page, name: str) -> Any:
    return page.locator("tbody", has=page.get_by_role("button", name=f"default/{name}", exact=True))


def test_what_needs_attention_comes_first(serving: Activator, page: Page) -> None:
    opened(page, serving)
    expect(page.locator("tbody .name").first).to_have_text("default/broken")
    expect(row_of(page, "broken")).to_contain_text("no model file")
    expect(row_of(page, "talker").locator(".mark")).to_have_text("ready")
    expect(row_of(page, "asleep").locator(".mark")).to_have_text("asleep")
    page.get_by_role("button", name="requests").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("requests")
    page.get_by_role("button", name="revision").click()
    expect(page.locator("tbody .name").first).to_have_text("default/asleep")


def test_search_and_filter(serving: Activator, page: Page) -> None:
    opened(page, serving)
    page.keyboard.press("/")
    page.keyboard.type("asleep.te")
    expect(page.locator("tbody:visible")).to_have_count(1)
    expect(page.get_by_text("1 of 3")).to_be_visible()
    page.get_by_label("Search").fill("nobody")
    expect(page.get_by_text("No revision matches.")).to_be_visible()
    page.get_by_label("Search").fill("")
    page.get_by_label("State").select_option("failed")
    assert get(serving, "broken.test") == 503  # it may have been idle for so long that it is "degraded"
    expect(page.locator("tbody:visible")).to_have_count(1)


def test_details_by_keyboard_with_the_output_as_it_comes(serving: Activator, page: Page) -> None:
    opened(page, serving)
    page.keyboard.press("ArrowDown")
    while page.evaluate("document.activeElement.textContent") != "default/talker":
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(row_of(page, "talker").locator(".pods tbody tr")).to_have_count(1)
    expect(row_of(page, "talker")).to_contain_text("at most 1 in a pod")
    expect(row_of(page, "talker")).to_contain_text("Starts from zero, by phase")
    output = page.get_by_role("log")
    get(serving, "talker.test", "/said-just-now")
    expect(output).to_contain_text("GET /said-just-now")
    page.keyboard.press("Escape")
    expect(output).to_have_count(0)
    assert page.evaluate("document.activeElement.textContent") == "default/talker"
    page.keyboard.press("Enter")
    expect(row_of(page, "talker").locator(".pods tbody tr")).to_have_count(1)


def test_selected_text_survives_refreshes(serving: Activator, page: Page) -> None:
    opened(page, serving)
    page.wait_for_function("""() => {
        const why = [...document.querySelectorAll('.why')].find(node => node.textContent.includes('no model file'));
        if (why) getSelection().selectAllChildren(why);
        return why;
    }""")
    serving.command("/restart/broken")  # it has no cause for a moment
    with page.expect_response("**/debug/overview"):
        get(serving, "talker.test")
    with page.expect_response("**/debug/overview"):
        pass
    assert "no model file" in page.evaluate("String(getSelection())")


def test_curves_come_from_the_program(serving: Activator, page: Page) -> None:
    """Also of the time before the page was opened; the samples are made up here, since each takes ten seconds."""
    past = {
        name: [1.0, None, 3.0]
        for name in ("age_s", "rate", "failures", "p50_s", "p99_s", "queued", "in_flight", "ready")
    }
    past["age_s"] = [1800.0, 900.0, 0.0]
    answer = json.dumps({"interval_s": 10.0, "revisions": {"default/talker": past}})
    page.route("**/debug/history?*", lambda route: route.fulfill(body=answer, content_type="application/json"))
    opened(page, serving)
    expect(row_of(page, "talker").locator("svg.spark polyline")).to_have_count(2)
    page.get_by_role("button", name="default/talker").click()
    chart = page.get_by_role("img", name=re.compile("p50 3 s.*last 60 min"))
    expect(chart).to_be_visible()
    figure = page.locator("figure", has=chart)
    expect(figure.locator(".axis")).to_have_text(re.compile("60 min.45 min.30 min.15 minnow"))
    chart.hover(position={"x": 2, "y": 20})
    expect(figure).to_contain_text("p50 1 s")
    expect(figure).to_contain_text("30 min ago")
    page.mouse.move(0, 0)
    expect(figure).to_contain_text("p50 3 s")


def test_a_view_has_an_address(serving: Activator, page: Page) -> None:
    address = f"http://{serving.admin}/"
    page.goto(address + "#revision=default%2Ftalker&search=talk&range=24h&sort=-requests")
    expect(row_of(page, "talker").locator(".details")).to_be_visible()
    expect(page.locator("tbody:visible .name")).to_have_count(1)
    expect(page.get_by_label("Range")).to_have_value("24h")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("requests")
    page.get_by_label("Search").fill("")
    page.get_by_label("Range").select_option("1h")
    page.get_by_label("State").select_option("failed")
    page.keyboard.press("Escape")
    page.wait_for_function("location.hash === '#state=failed&sort=-requests'")
    page.evaluate("location.hash = '#revision=default%2Fbroken'")
    expect(row_of(page, "broken").locator(".details")).to_be_visible()
    expect(page.locator("tbody:visible .name")).to_have_count(3)


def patched(page: Page, **values: Any) -> None:
    """From now on, the overview has other values; `revision`: those of each revision."""
    of_each = values.pop("revision", {})

    def fulfill(route: Route) -> None:
        whole = route.fetch().json()
        assert values.keys() <= whole.keys() and all(of_each.keys() <= one.keys() for one in whole["revisions"])
        whole = {**whole, **values, "revisions": [{**one, **of_each} for one in whole["revisions"]]}
        route.fulfill(json=whole)

    page.route("**/debug/overview", fulfill)


def test_it_says_what_runs_since_when(serving: Activator, page: Page) -> None:
    opened(page, serving)
    run = page.locator("#run")
    expect(run).to_contain_text(f"version {__version__} · up for ")
    page.get_by_role("button", name="Reload the file").click()
    expect(run).to_contain_text(re.compile("file read again [0-9] s ago$"))
    patched(page, reload={"age_s": 130.0, "problems": ["x.yaml:4: no such key"]}, revision={"state_age_s": 7_300.0})
    expect(run).to_contain_text("file read again 2 min ago, and refused: x.yaml:4: no such key")
    expect(run).to_have_class("bad")
    expect(row_of(page, "talker").locator(".age")).to_have_text("2 h")


def test_a_pod_is_drained_and_put_back(run_activator: RunActivator, page: Page) -> None:
    with Http2Pod() as pod, Http2Pod() as other:
        one = {"name": "fixed", "hosts": ["*"], "pods": [pod.address, other.address], "protocol": "h2c"}
        activator = run_activator(configured([one]))
        activator.wait_ready_pods("fixed", 2)
        opened(page, activator)
        page.get_by_role("button", name="default/fixed").click()
        row, status = row_of(page, "fixed"), page.get_by_role("status")
        row.get_by_role("button", name=f"Drain {pod.address}").click()
        expect(status).to_contain_text(f"Drain {pod.address}: done")
        expect(row.locator(".pods")).to_contain_text("drained")
        row.get_by_role("button", name=f"Enable {pod.address}").click()
        expect(status).to_contain_text(f"Enable {pod.address}: done")
        expect(row.locator(".pods .pod.ready")).to_have_count(2)


def test_red_is_for_what_failed_lately(serving: Activator, page: Page) -> None:
    opened(page, serving)
    failed = row_of(page, "talker").locator("[data-name=failed]")
    patched(page, revision={"failed": 7, "recent_failures": 0})
    expect(failed).to_have_text("7")
    expect(failed).to_have_class("")
    patched(page, revision={"failed": 8, "recent_failures": 1})
    expect(failed).to_have_text("8")
    expect(failed).to_have_class("bad")


def test_unload_asks_where_requests_wait(serving: Activator, page: Page) -> None:
    opened(page, serving)
    patched(page, revision={"queued": 7})
    page.get_by_role("button", name="default/asleep").click()
    expect(row_of(page, "asleep").locator("[data-name=queued]")).to_have_text("7")
    page.get_by_role("button", name="Unload", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("7 requests wait for default/asleep")
    page.get_by_role("button", name="Cancel").click()
    assert "Unload" not in page.get_by_role("status").inner_text()


def test_who_waits(run_activator: RunActivator, page: Page) -> None:
    """In order of arrival, as a table that also fits a telephone."""
    with ExitStack() as stack:
        pod = stack.enter_context(ScriptedPod(serve_or_hold))
        made = {"name": "held", "hosts": ["*"], "container_concurrency": 1, "pods": [pod.address]}
        activator = run_activator(configured([made]))
        for queued in range(3):
            stack.enter_context(Client(activator.address)).send(request(f"/held?{queued}" if queued else "/held"))
            eventually(lambda: activator.revision("held")["queued"] == queued, f"{queued} requests wait")  # noqa: B023
        page.set_viewport_size({"width": 390, "height": 900})
        opened(page, activator)
        page.get_by_role("button", name="default/held").click()
        lines = row_of(page, "held").locator(".details table", has_text="has waited").locator("tbody tr")
        expect(lines).to_have_count(2)
        expect(lines.nth(0)).to_contain_text(re.compile(r"1 ?GET /held\?1.*\d s.*\d s"))
        expect(lines.nth(1)).to_contain_text(re.compile(r"2 ?GET /held\?2"))
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert Axe().run(page)["violations"] == []
        pod.go_on()
        expect(lines).to_have_count(0)


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_wider_than_the_window(serving: Activator, page: Page, width: int, tmp_path: Path) -> None:
    assert get(serving, "talker.test") == 200
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, serving)
    page.get_by_role("button", name="default/talker").click()
    expect(row_of(page, "talker")).to_contain_text("Last requests")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    inner = (
        "[...document.querySelectorAll('.table, .details > td > div')].filter(one => one.scrollWidth > one.clientWidth)"
    )
    assert page.evaluate(inner + ".length") == 0, "a part scrolls sideways"
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in Axe().run(page)["violations"]] == []
    page.screenshot(path=tmp_path / f"{width}.png", full_page=True)


def test_the_last_requests_and_their_captures(serving: Activator, page: Page) -> None:
    assert get(serving, "talker.test") == 200
    opened(page, serving)
    page.get_by_role("button", name="default/talker").click()
    requests = row_of(page, "talker").locator(".details table", has_text="first token").locator("tr")
    expect(requests.nth(1)).to_contain_text(re.compile(r"GET / ?200 ?.*capture"))
    path = requests.nth(1).get_by_role("link", name="capture").get_attribute("href")
    assert path is not None
    status, _, body = serving.ask(path)
    assert status == 200 and json.loads(body)["request"]["head"].startswith("GET /\r\n")


def test_the_slowest_requests(serving: Activator, page: Page) -> None:
    """Of those that are recorded; they are a part of the view's address."""
    opened(page, serving)
    asked: list[str] = []

    def slow(route: Route) -> None:
        asked.append(route.request.url)
        whole = route.fetch().json()
        route.fulfill(json={**whole, "requests": [{**one, "duration_s": 4.0} for one in whole["requests"]]})

    page.route("**/debug/requests?*order=slowest*", slow)
    assert [get(serving, "talker.test") for _ in range(3)] == [200] * 3
    row = row_of(page, "talker")
    page.get_by_role("button", name="default/talker").click()
    row.get_by_role("button", name="Show the slowest").click()
    expect(row.get_by_role("heading", name="Slowest requests")).to_be_visible()
    expect(row.locator(".details table", has_text="first token")).to_contain_text("4 s")
    assert "n=20" in asked[0]
    page.wait_for_function("location.hash.endsWith('requests=slowest')")
    row.get_by_role("button", name="Show the last").click()
    expect(row.get_by_role("heading", name="Last requests")).to_be_visible()
    page.get_by_role("button", name="default/asleep").click()
    expect(row_of(page, "asleep")).to_contain_text("Requests are not recorded; `record: {}`")


def test_each_of_many_pods_is_found_and_drained(run_activator: RunActivator, page: Page) -> None:
    pods = [f"127.1.0.{number}:9" for number in range(1, 61)]
    activator = run_activator(configured([{"name": "many", "hosts": ["*"], "pods": pods}]))
    opened(page, activator)
    page.get_by_role("button", name="default/many").click()
    row = row_of(page, "many")
    expect(row.locator(".slots li")).to_have_count(60)
    row.get_by_label("Find").fill("127.1.0.57")
    expect(row.locator(".pods tbody tr")).to_have_count(1)
    row.get_by_role("button", name="Drain 127.1.0.57:9").click()
    expect(page.get_by_role("status")).to_contain_text("Drain 127.1.0.57:9: done")
    expect(row.locator(".pods")).to_contain_text("drained")
    row.get_by_label("Find").fill("127.1.0.")
    expect(row.locator(".pods tbody tr")).to_have_count(50)
    expect(row).to_contain_text("and 10 more")
    row.get_by_label("Find").fill("")
    expect(row.locator(".slots li")).to_have_count(60)
    assert Axe().run(page)["violations"] == []


def test_a_question_before_the_end(serving: Activator, page: Page) -> None:
    opened(page, serving)
    page.get_by_role("button", name="Drain and exit").click()
    expect(page.get_by_role("dialog")).to_contain_text("exit?")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Reload the file").click()
    expect(page.get_by_role("status")).to_contain_text("Reload: done")
    assert serving.process.poll() is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(serving: Activator, page: Page, scheme: Any, tmp_path: Path) -> None:
    """axe finds nothing against WCAG 2 AA, and there is a picture of it."""
    page.emulate_media(color_scheme=scheme)
    opened(page, serving)
    for name in ("broken", "talker"):
        page.get_by_role("button", name=f"default/{name}").click()
        expect(row_of(page, name).locator(".details")).to_be_visible()
        expect(row_of(page, name).locator(".details h2", has_text="Pods")).to_be_attached()
        found = Axe().run(page)["violations"]
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
        page.screenshot(path=tmp_path / f"{scheme}-{name}.png")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_waiting_page_shows_the_last_line_of_the_program(page: Page, scheme: Any, tmp_path: Path) -> None:
    """Without a script, as text, and for everybody."""
    spec = WaitingPageSpec(2.0, output=True)
    lines = tuple(f"<b>tensor {number}</b> {'x' * 300}" for number in range(40))
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 400, "height": 600})
    page.set_content(PageTemplate("default/llama", spec).page(12.0, 30.0, 3, lines)[1].decode())
    output = page.locator("pre.output")
    expect(output).to_contain_text("<b>tensor 39</b>")
    assert output.evaluate("one => [one.scrollTop, one.scrollHeight > one.clientHeight]") == [0, True]
    output.focus()
    page.keyboard.press("PageUp")
    page.wait_for_function("document.querySelector('pre.output').scrollTop < 0")  # what is cut off stands above
    assert page.evaluate("document.documentElement.scrollWidth") == 400, "nothing is wider than the window"
    assert [one["id"] for one in Axe().run(page)["violations"]] == []
    page.screenshot(path=tmp_path / f"{scheme}-waiting.png")


def test_streams_are_counted_beside_connections(run_activator: RunActivator, page: Page) -> None:
    """Two that the pod holds, on one connection; none once they have ended."""
    with Http2Pod() as pod:
        one = {"name": "streams", "hosts": ["*"], "pods": [pod.address], "protocol": "h2c"}
        activator = run_activator(configured([one]))
        activator.wait_ready_pods("streams")
        opened(page, activator)
        status = page.get_by_role("status")
        with Http2Client(activator.address) as client:
            numbers = [client.start("/hold") for _ in range(2)]
            expect(status).to_contain_text("1 client connections (2 HTTP/2 streams)")
            pod.release()
            assert [client.answer(number).status for number in numbers] == [200, 200]
            expect(status).not_to_contain_text("HTTP/2 streams")


def test_what_a_change_said_stays_long_enough_to_be_read(serving: Activator, page: Page) -> None:
    """The state of the proxy takes its place after 15 s, or when the proxy stops answering."""
    page.add_init_script(
        "window.ahead_ms = 0; const real = performance.now.bind(performance); performance.now = () => real() + ahead_ms"
    )
    opened(page, serving)
    status = page.get_by_role("status")
    page.get_by_role("button", name="Reload the file").click()
    expect(status).to_contain_text("Reload: done")
    for _ in range(3):
        with page.expect_response("**/debug/overview"):
            pass
    expect(status).to_contain_text("Reload: done")
    page.evaluate("ahead_ms = 15000")
    expect(status).to_contain_text("3 revisions")
    page.get_by_role("button", name="Reload the file").click()
    expect(status).to_contain_text("Reload: done")
    page.route("**/debug/overview", lambda route: route.fulfill(status=503))
    expect(status).to_have_text("no answer: status 503")
    page.unroute("**/debug/overview")
    expect(status).to_contain_text("3 revisions")


def test_when_there_is_no_answer_it_says_so(serving: Activator, page: Page) -> None:
    opened(page, serving)
    page.route("**/debug/overview", lambda route: route.fulfill(status=503))
    expect(page.get_by_role("status")).to_have_text("no answer: status 503")


def test_an_answer_that_does_not_come_stops_nothing(serving: Activator, page: Page) -> None:
    """It is given up (here after half a second in the place of ten), and the page asks again."""
    page.add_init_script("""const whole = AbortSignal.timeout.bind(AbortSignal);
        AbortSignal.timeout = wait_ms => whole(wait_ms / 20);""")
    opened(page, serving)
    page.route("**/debug/overview", lambda route: None)
    expect(page.get_by_role("status")).to_contain_text("no answer: signal timed out")
    page.unroute("**/debug/overview")
    expect(page.get_by_role("status")).to_contain_text("3 revisions")


def test_a_change_without_an_answer_is_given_up(serving: Activator, page: Page) -> None:
    """Its time runs a hundred times as fast here."""
    page.add_init_script("const real = AbortSignal.timeout; AbortSignal.timeout = ms => real(ms === 30000 ? 300 : ms)")
    opened(page, serving)
    page.route("**/reload", lambda route: None)
    button = page.get_by_role("button", name="Reload the file")
    button.click()
    expect(page.get_by_role("status")).to_contain_text("Reload: no answer within 30 s; it may be done all the same")
    expect(button).to_be_enabled()
    page.unroute("**/reload")
    button.click()
    expect(page.get_by_role("status")).to_contain_text("Reload: done")


def test_a_refresh_writes_what_has_changed_and_nothing_else(run_activator: RunActivator, page: Page) -> None:
    """Of 500 rows: so a refresh costs the browser next to nothing, and all of them are made in a few layouts."""
    many = [
        {"name": f"r{number}", "hosts": [f"r{number}.test"], "process": {"command": PROGRAM}} for number in range(MANY)
    ]
    activator = run_activator(configured(many))
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    opened(page, activator)
    expect(page.locator("tbody")).to_have_count(MANY)
    for _ in range(2):  # the first rates
        with page.expect_response("**/debug/overview"):
            pass
    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    assert 0 < found["LayoutCount"] < MANY / 5, "the table is laid out anew for each row"
    page.evaluate("""() => { window.written = [];
        new MutationObserver(list => written.push(...list.map(one => one.target.closest?.('tbody')?.textContent ?? '')))
            .observe(document.querySelector('table'), {subtree: true, childList: true, characterData: true}); }""")
    get(activator, "r7.test")
    expect(row_of(page, "r7").locator(".mark")).to_have_text("ready")
    written = page.evaluate("written.filter(Boolean)")
    assert written and all("default/r7" in one for one in written)


def test_groups_and_buttons(run_activator: RunActivator, page: Page) -> None:
    """Who has the budget of a group; a program is loaded and unloaded by its buttons."""
    members = [
        {
            "name": name,
            "hosts": [f"{name}.test"],
            "needs": {"gpu_memory": "10GiB"},
            "process": {"command": PROGRAM, "idle": "300s"},
        }
        for name in ("one", "two")
    ]
    groups = [{"name": "gpu0", "budget": {"gpu_memory": "24GiB"}, "members": ["one", "two"]}]
    activator = run_activator(configured(members, groups=groups))
    opened(page, activator)
    expect(page.get_by_label("Groups")).to_contain_text("gpu_memory 0 of 24 GiB")
    page.get_by_role("button", name="default/one").click()
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Load default/one: done")
    expect(page.get_by_label("Groups")).to_contain_text("gpu_memory 10 GiB of 24 GiB")
    expect(page.get_by_label("Groups")).to_contain_text("default/one: 1 running")
    expect(row_of(page, "one").locator(".mark")).to_have_text("ready")
    get(activator, "one.test")
    page.get_by_role("button", name="Unload", exact=True).click()
    get(activator, "one.test")  # without the hold of an operator
    expect(page.get_by_label("Groups")).to_contain_text("default/one: 1 running, unloaded in 4 min")
    expect(page.locator(".details")).to_contain_text("Without a request it is unloaded in 4 min.")
    assert Axe().run(page)["violations"] == []
    page.get_by_role("button", name="Unload", exact=True).click()
    expect(page.get_by_label("Groups")).to_contain_text("gpu_memory 0 of 24 GiB")
