"""The keys that are about HTTP/2: `protocol` of pods, `alpn` of listeners, `limits.streams`."""

from __future__ import annotations

import pytest

from activator.config.file import parse, resolve
from activator.runtime.errors import ConfigError

PODS = "pods: ['127.0.0.1:1']"


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f", {})
    return caught.value.problems


def revision(keys: str) -> str:
    return f"revisions:\n  - {{name: a, hosts: [a], {PODS}, {keys}}}\n"


@pytest.mark.parametrize(
    ("keys", "protocol"),
    [
        ("max_scale: 1", "h1"),
        ("protocol: auto", "h1"),
        ("protocol: h1", "h1"),
        ("protocol: h2c", "h2c"),
        ("protocol: h2, tls: {}", "h2"),
        ("tls: {}", "alpn"),
        ("protocol: h1, tls: {}", "h1"),
    ],
)
def test_what_is_spoken_with_pods(keys: str, protocol: str) -> None:
    (spec,) = resolve(parse(revision(keys), "f", {}), lambda _: "random")
    assert spec.connection.protocol == protocol


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("protocol: grpc", 'revisions[0].protocol: found "grpc", expected one of auto, h1, h2c, h2'),
        ("protocol: h2", "revisions[0].protocol: `h2` is HTTP/2 over TLS and requires `tls`; without TLS it is `h2c`"),
        ("protocol: h2c, tls: {}", "revisions[0].protocol: `h2c` is HTTP/2 without TLS; with `tls` it is `h2`"),
        (
            "protocol: h2c, lenient_pods: true",
            "revisions[0].lenient_pods: `lenient_pods` is about HTTP/1.1, and `protocol` is h2c",
        ),
    ],
)
def test_protocols_that_do_not_fit(keys: str, problem: str) -> None:
    assert problems(revision(keys)) == [f"f:2: {problem}"]


@pytest.mark.parametrize(
    ("alpn", "problem"),
    [
        ("[h3]", 'listen[0].alpn[0]: found "h3", expected h2 or http/1.1'),
        ("[]", "listen[0].alpn: found an empty list, expected at least one of h2 or http/1.1"),
    ],
)
def test_protocols_that_no_listener_offers(alpn: str, problem: str) -> None:
    text = f"listen:\n  - {{address: '127.0.0.1:1', certificate: c, key: k, alpn: {alpn}}}\n" + revision("max_scale: 1")
    assert any(problem in one for one in problems(text)), problems(text)


def test_a_connection_has_at_least_one_stream() -> None:
    assert problems("limits: {streams: 0}\n" + revision("max_scale: 1")) == [
        'f:1: limits.streams: found "0", expected a whole number of at least 1'
    ]


def test_what_happens_to_a_request_that_is_given_up() -> None:
    def wait_s(keys: str) -> float:
        (spec,) = resolve(parse(revision(keys), "f", {}), lambda _: "random")
        return spec.timeouts.cancel_wait_s

    assert wait_s("max_scale: 1") == wait_s("on_cancel: close") == 0.0
    assert wait_s("on_cancel: wait") == 30.0
    assert wait_s("on_cancel: wait, cancel_timeout: 2m") == 120.0
    assert wait_s("on_cancel: close, cancel_timeout: 30s") == 0.0, "as an API server writes the defaults"
    assert problems(revision("on_cancel: kill")) == [
        'f:2: revisions[0].on_cancel: found "kill", expected one of close, wait'
    ]
    assert problems(revision("cancel_timeout: 2m")) == [
        "f:2: revisions[0].cancel_timeout: `cancel_timeout` requires `on_cancel: wait`"
    ]
    assert problems(revision("on_cancel: wait, cancel_timeout: 0")) == [
        'f:2: revisions[0].cancel_timeout: found "0", expected more than 0'
    ]
