"""The tables of tests/http2 with the activator as the server: h2spec's cases, hostile clients, messages that smuggle,
each in front of a pod that speaks HTTP/1.1 and of one that speaks HTTP/2."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http2_pods import Http2Pod, PodStream, mirror1
from tests.e2e.http2_world import HOSTS, World, world
from tests.e2e.pods import Request, ScriptedPod
from tests.e2e.running import Activator, configured, eventually
from tests.http2.clients import CLIENTS, curl_upgrade
from tests.http2.h2spec_cases import CASES, Case, run_case
from tests.http2.hostile import SERVED, STIMULI, Stimulus, Target, attack, problems
from tests.http2.messages import MESSAGES, Message, send_message
from tests.http2.raw_client import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def here(run_shared_activator: RunActivator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world"), run_shared_activator) as made:
        yield made
        made.activator.wait_idle()


# --- h2spec ---

# What we do otherwise, with the section of RFC 9113 that allows it.
KNOWN: dict[str, str] = {}
# It ends once the client has been silent for 5 s: 5.4.1 sets no time, and an end at once could destroy the GOAWAY.
LATE_OVER_TLS = {"http2/5.4.1/1": 8.0}


@pytest.mark.parametrize("case", CASES, ids=[case.number for case in CASES])
def test_h2spec(here: World, case: Case) -> None:
    verdict = run_case(case, HOSTS["h1"], here.port)
    assert not verdict.skipped
    assert verdict.passed != (case.number in KNOWN), f"{case.title}: {verdict}"


def test_h2spec_before_a_pod_that_speaks_http2(here: World) -> None:
    verdicts = {case.number: run_case(case, HOSTS["h2c"], here.port) for case in CASES}
    assert {number: str(one) for number, one in verdicts.items() if not one.passed and number not in KNOWN} == {}


def test_h2spec_over_tls(here: World) -> None:
    """A case of each section is enough."""
    tls = here.trusting()
    cases = [case for case in CASES if case.number.endswith("/1")]
    verdicts = {
        case.number: run_case(
            case, HOSTS["h1"], here.tls_port, tls=tls, patience_s=LATE_OVER_TLS.get(case.number, PATIENCE_S)
        )
        for case in cases
    }
    assert {number: str(one) for number, one in verdicts.items() if not one.passed and number not in KNOWN} == {}


# --- hostile clients ---


@pytest.mark.parametrize("pod", ["h1", "h2c"])
@pytest.mark.parametrize("stimulus", STIMULI, ids=[stimulus.name for stimulus in STIMULI])
def test_a_hostile_client(here: World, stimulus: Stimulus, pod: str) -> None:
    report = attack(stimulus, here.target(pod))
    assert problems(stimulus, report) == [], report


@pytest.mark.parametrize("name", ["rapid reset", "PING", "CONTINUATION, empty", "a hundred large answers, no window"])
def test_a_hostile_client_over_tls(here: World, name: str) -> None:
    (stimulus,) = [one for one in STIMULI if one.name == name]
    report = attack(stimulus, here.target(tls=True))
    assert problems(stimulus, report) == [], report


# --- messages ---

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
HOP = {"connection", "keep-alive", "proxy-connection", "upgrade", "http2-settings"}


class Seen:
    """What one of the pods saw, in the same terms for both."""

    def __init__(self, request: Request | PodStream) -> None:
        self.request = request
        self.complete = request.complete
        if isinstance(request, Request):
            self.method, self.target, version = request.line.split(" ")
            assert version == "HTTP/1.1"
            self.hosts = request.all("host")
            self.fields = [(name.lower(), value) for name, value in request.headers]
            self.size = len(request.body)
        else:
            self.method, self.target = request.method, request.path
            pseudo = [(name, value) for name, value in request.headers if name.startswith(":")]
            assert sorted(name for name, _ in pseudo) == [":authority", ":method", ":path", ":scheme"], request
            self.hosts = [value for name, value in pseudo if name == ":authority"]
            self.fields = [field for field in request.headers if not field[0].startswith(":")]
            assert not self.all("host"), request
            self.size = request.received
        self.trailers = [(name.lower(), value) for name, value in request.trailers]

    def __repr__(self) -> str:
        return repr(self.request)

    def all(self, name: str) -> list[str]:
        return [value for known, value in self.fields if known == name]


def seen_by(pod: ScriptedPod | Http2Pod) -> list[Seen]:
    requests: list[Request | PodStream] = [*pod.requests]
    return [Seen(request) for request in requests]


def x_a_is(value: str) -> Callable[[Seen, str], bool]:
    return lambda seen, authority: seen.all("x-a") == [value]


# What `tells` of a message means.
TELLS: dict[str, Callable[[Seen, str], bool]] = {
    "": lambda seen, authority: True,
    "without the space": x_a_is("b"),
    "without the tab": x_a_is("b"),
    "a.test as host, once": lambda seen, authority: seen.hosts == ["a.test"],
    ":authority as host, once": lambda seen, authority: seen.hosts == [authority],
    "cookie: a=b; c=d": lambda seen, authority: seen.all("cookie") == ["a=b; c=d"],
}


def smuggled(seen: Seen, message: Message | None, authority: str) -> str:  # noqa: PLR0911 - a list of judgements
    """What is wrong with a request at the pod; `message`: what it comes of, None for the plain GET behind it."""
    names = [name for name, _ in seen.fields]
    if not all(TOKEN.fullmatch(name) for name in names) or not all(VALUE.fullmatch(value) for _, value in seen.fields):
        return "a field that is none"
    if "x-c" in names or any(name == "x-c" for name, _ in seen.trailers):
        return "a field out of a value"
    if "smuggled" in seen.target or " " in seen.target or "\t" in seen.target:
        return "a target that is none"
    if len(seen.hosts) != 1:
        return "no host, or several"
    hop = HOP.intersection(names) - ({"connection"} if seen.all("connection") == ["TE"] else set())
    if hop - {"http2-settings"}:
        return f"fields of one hop: {hop}"
    lengths, codings = seen.all("content-length"), seen.all("transfer-encoding")
    if len(lengths) > 1 or (lengths and codings) or (codings and codings != ["chunked"]):
        return f"framing {lengths} {codings}"
    if lengths and seen.complete and int(lengths[0]) != seen.size:
        return f"{seen.size} bytes of {lengths[0]}"
    if any(name in {"host", "content-length", "transfer-encoding"} for name, _ in seen.trailers):
        return f"trailers {seen.trailers}"
    if message is None:
        return (
            "" if (seen.method, seen.target, seen.size, seen.hosts) == ("GET", "/", 0, [authority]) else "another one"
        )
    method = dict(message.fields).get(":method", message.method)
    if seen.method != method or seen.size != sum(len(piece) for piece in message.data):
        return "another method or body"
    return "" if TELLS[message.tells](seen, authority) else message.tells


# It is offered: test_e2e_http2_websockets.py.
OFFERED = "extended CONNECT that was not offered"


def test_all_that_is_told_is_understood() -> None:
    assert {message.tells for message in MESSAGES} == set(TELLS)
    assert OFFERED in {message.name for message in MESSAGES}


@pytest.mark.parametrize("protocol", ["h1", "h2c"])
def test_messages(run_activator: RunActivator, protocol: str) -> None:
    """Nothing that is malformed is handed on, and nothing else than what was meant: a pod for all hosts says so."""
    with ScriptedPod(mirror1) if protocol == "h1" else Http2Pod() as recorder:
        one = {"name": "a", "hosts": ["*"], "pods": [recorder.address], "protocol": protocol}
        activator = run_activator(configured([one]))
        activator.wait_ready_pods("a")
        target = Target(activator.host, activator.port)
        send_all(activator, target, recorder)


def send_all(activator: Activator, target: Target, recorder: ScriptedPod | Http2Pod) -> None:
    authority = f"{target.host}:{target.port}"
    wrong: dict[str, Any] = {}
    for message in MESSAGES:
        if message.name == OFFERED:
            continue
        activator.wait_idle()
        recorder.requests.clear()
        answer = send_message(message, target)
        if answer.outcome not in message.allowed or not answer.after:
            wrong[message.name] = str(answer)
            continue
        activator.wait_idle()
        whole = [seen for seen in seen_by(recorder) if seen.complete]
        cut = [seen for seen in seen_by(recorder) if not seen.complete]
        # The pod saw the message where it was served, the plain request behind it, and no other.
        if answer.outcome is SERVED and answer.status == 200:
            found = smuggled(whole.pop(0), message, authority) if len(whole) == 2 else "not seen once"
        else:
            found = "" if len(cut) <= 1 else "seen several times"
        if found or len(whole) != 1 or smuggled(whole[0], None, authority):
            wrong[message.name] = (found, whole, cut, str(answer))
    assert wrong == {}


# --- clients that are not ours ---


@pytest.mark.parametrize("pod", ["h1", "h2c"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_clients(here: World, name: str, tls: bool, pod: str, need_program: Callable[[str], str]) -> None:
    need_program(name)
    assert {what: wrong for what, wrong in CLIENTS[name](here.place(pod, tls=tls)).items() if wrong} == {}


def test_an_offer_to_upgrade_is_ignored(here: World, need_program: Callable[[str], str]) -> None:
    """RFC 9113 has retired it."""
    need_program("curl")
    assert curl_upgrade(here.place()) == {"upgrade": ""}


def test_nothing_is_left(here: World) -> None:
    """After all of the above."""
    here.activator.wait_idle()
    eventually(lambda: "activator_client_connections 0.0" in here.activator.ask("/metrics")[2].decode())
