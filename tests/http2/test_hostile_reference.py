"""Hostile clients and messages against servers that are known to be hardened: what is asked for can be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.running import eventually
from tests.http2.hostile import STIMULI, Stimulus, Target, attack, is_served, problems
from tests.http2.messages import MESSAGES, send_message
from tests.http2.reference_servers import HOST, SERVERS

# Known differences, each in some version of the server: such a case may fail, and need not.
KNOWN_STIMULI: dict[str, dict[str, str]] = {
    "nghttpd": {
        "streams out of order": "ignored, as if the lower stream had been closed (1.52)",
        "the last stream, then another": "ignored, as if the lower stream had been closed (1.52)",
    },
    "haproxy": {
        "rapid reset": "has no limit of its own (2.6); others wait for seconds",
        "rapid reset of requests without an end": "has no limit of its own (2.6); others wait for seconds",
        "made to reset by WINDOW_UPDATE of 0": "resets 10,000 streams (2.6)",
        "made to reset by DATA after the end": "resets 10,000 streams (2.6)",
        "the window of a stream overflows by SETTINGS": "ignored (2.6)",
        "table: an index that was thrown away": "only that stream is reset (2.6)",
        "table: a size of 2^70": "ignored (2.6)",
    },
    "hyper": dict.fromkeys(
        (
            "SETTINGS that move the windows of a hundred streams",
            "a hundred large answers, no window",
            "a hundred large answers, nothing read",
            "fifty streams too many",
        ),
        "the program here makes its answers whole, 3 MB each (httpunk 0.4.5)",
    )
    | {"16,000 fields from the static table": "answers it once in some hundred times (httpunk 0.4.5)"},
    "nginx": {
        "rapid reset": "has no limit of its own (1.22)",
        "rapid reset of requests without an end": "has no limit of its own (1.22)",
        "made to reset by DATA after the end": "resets 10,000 streams (1.22)",
        "the preface twice": "is the begin of a frame of 5 MB, which nginx takes (1.22)",
        "HTTP/1.1 after the preface": "is the begin of a frame of 4 MB, which nginx takes (1.22)",
        "a request in segments of one byte": "POST is not allowed for a file",
    },
}
USERINFO = {"':authority': 'user@a.test'", "':authority': 'user:password@a.test'"}
# nginx is no reference here: it answers POST to a file with 405, and leaves fields of HTTP/1.1 to its modules.
KNOWN_MESSAGES: dict[str, set[str]] = {
    "nghttpd": USERINFO,
    # What pseudo-header fields mean, and how they fit together (RFC 9113 8.3), hyper leaves to the program above it.
    "hyper": USERINFO
    | {
        "content-length twice, different",
        "no :method",
        "no :scheme",
        "':status': '200'",
        "':protocol': 'websocket'",
        "host twice, no :authority",
        "':authority': ''",
        "':authority': 'a.test b'",
        "':authority': 'a.test/path'",
        "':authority': 'a.test\\r\\nx-a: b'",
        "':authority': 'a.test\\x00'",
        "':path': '/?a=b&c=%00'",
        "':scheme': ''",
        "':scheme': 'http\\r\\nx-a: b'",
        "':scheme': 'http://b.test/?'",
        "CONNECT with :path",
        "extended CONNECT that was not offered",
        "trailer ':path': '/other'",
        "trailer ':status': '200'",
    },
    "haproxy": USERINFO
    | {
        "content-length '4', DATA none",
        "less DATA than content-length, and trailers",
        "':protocol': 'websocket'",
        "host twice, no :authority",
        "':authority': ''",
        "':authority': 'a.test/path'",
        "':path': '*'",
        "extended CONNECT that was not offered",
    },
}


def test_names_are_unique() -> None:
    assert len({stimulus.name for stimulus in STIMULI}) == len(STIMULI)
    assert len({message.name for message in MESSAGES}) == len(MESSAGES)
    for known in KNOWN_STIMULI.values():
        assert known.keys() <= {stimulus.name for stimulus in STIMULI}
    for names in KNOWN_MESSAGES.values():
        assert names <= {message.name for message in MESSAGES}


@pytest.fixture(scope="module", params=["nghttpd", "haproxy", "hyper", "nginx"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str]
) -> Iterator[tuple[str, Target]]:
    """(name, address)"""
    name = request.param
    if name == "hyper":
        pytest.importorskip("httpunk", reason="httpunk is not installed")
    else:
        need_program(name)
    with SERVERS[name](tmp_path_factory.mktemp(name)) as running:
        yield name, Target(HOST, running.port, pid=running.pid, is_reference=True)


@pytest.mark.e2e
@pytest.mark.deep
@pytest.mark.parametrize("stimulus", STIMULI, ids=[stimulus.name for stimulus in STIMULI])
def test_a_reference_withstands(server: tuple[str, Target], stimulus: Stimulus) -> None:
    name, target = server
    report = attack(stimulus, target)
    found = problems(stimulus, report)
    if found and stimulus.name in KNOWN_STIMULI[name]:
        eventually(lambda: is_served(target), f"served again after {stimulus.name}")
        pytest.xfail(KNOWN_STIMULI[name][stimulus.name])
    assert found == [], report


@pytest.mark.e2e
@pytest.mark.deep
def test_a_reference_judges_messages(server: tuple[str, Target]) -> None:
    name, target = server
    if name not in KNOWN_MESSAGES:
        pytest.skip("no reference for messages")
    wrong = {}
    for message in MESSAGES:
        answer = send_message(message, target)
        if answer.outcome not in message.allowed or not answer.after:
            wrong[message.name] = str(answer)
    assert {key: value for key, value in wrong.items() if key not in KNOWN_MESSAGES[name]} == {}
