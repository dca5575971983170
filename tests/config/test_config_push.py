"""The keys `push` and `health`."""

from __future__ import annotations

import pytest

from activator.config.file import parse, resolve
from activator.runtime.errors import ConfigError

REST = "revisions: [{name: a, hosts: [a], pods: [127.0.0.1:1], health: {strikes: 5, ejection_share: 0.25}}]\n"


def problems(push: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(f"push: {push}\n{REST}", "f", {})
    return caught.value.problems


def test_what_is_fine() -> None:
    for push in (
        "{listen: '127.0.0.1:8014'}",
        "{listen: 'localhost:8014'}",
        "{listen: '[::1]:0'}",
        "{listen: '0.0.0.0:8014', token: t, networks: [10.0.0.0/8, '::1']}",
        "{listen: '0.0.0.0:8014', token_file: /run/token}",
    ):
        parse(f"push: {push}\n{REST}", "f", {})
    assert parse(REST, "f", {}).push.listen == ""


def test_a_token_is_mandatory_off_loopback() -> None:
    for listen in ("0.0.0.0:8014", "10.0.0.1:8014", "'[::]:8014'", "activator.test:8014"):
        (problem,) = problems(f"{{listen: {listen}}}")
        assert "is not a loopback address: it requires `token` or `token_file`" in problem
        assert problem.startswith("f:1:")


@pytest.mark.parametrize(
    ("push", "part"),
    [
        ("{token: t}", "push.listen"),
        ("{networks: [10.0.0.0/8]}", "push.listen"),
        ("{listen: '127.0.0.1:1', networks: [10.0.0.1/8]}", "push.networks[0]"),
        ("{listen: '127.0.0.1:1', token: a, token_file: b}", "set `token` or `token_file`, not both"),
        ("{listen: here}", "push.listen"),
        ("{listen: '127.0.0.1:1', nonsense: 1}", "nonsense"),
    ],
)
def test_mistakes(push: str, part: str) -> None:
    assert part in " ".join(problems(push))


def test_where_pods_report_themselves_a_revision_needs_neither_pods_nor_a_process() -> None:
    rest = "revisions: [{name: a, hosts: [a], probe: {path: /who, identity_header: X-Pod}}]\n"
    (spec,) = resolve(parse(f"push: {{listen: '127.0.0.1:0'}}\n{rest}", "f", {}), lambda _: "random")
    assert (spec.balancing.max_scale, spec.probing.probe.identity_header) == (0, "X-Pod")
    (spec,) = resolve(parse(rest, "f", {"ACTIVATOR_PUSH__LISTEN": "127.0.0.1:0"}), lambda _: "random")
    with pytest.raises(ConfigError) as caught:
        parse(rest, "f", {})
    assert caught.value.problems == [
        "f:1: revisions[0]: set `pods`, `process` or `container`, or `push.listen` for pods that report themselves"
    ]


def test_what_a_revision_does_not_say_of_health_the_file_says_for_all() -> None:
    text = (
        "health: {strikes: 7, ejection_share: 0.2, stale_after: 2m}\nrevisions:\n"
        "  - {name: a, hosts: [a], pods: ['h:1']}\n"
        "  - {name: b, hosts: [b], pods: ['h:1'], health: {strikes: 1}}\n"
        "  - {name: c, hosts: [c], pods: ['h:1'], health: {ejection_share: 0, stale_after: 0s}}\n"
    )
    specs = resolve(parse(text, "f", {}), lambda _: "random")
    found = [(spec.health.strikes, spec.health.ejection_share, spec.health.stale_after_s) for spec in specs]
    assert found == [(7, 0.2, 120.0), (1, 0.2, 120.0), (7, 0.0, 0.0)]
    with pytest.raises(ConfigError):
        parse(text.replace("strikes: 7", "strikes: 0"), "f", {})


def test_health_is_the_revisions() -> None:
    (spec,) = resolve(parse(REST, "f", {}), lambda _: "random")
    assert (spec.health.strikes, spec.health.ejection_share) == (5, 0.25)
    for bad in ("{strikes: 0}", "{ejection_share: 1.5}", "{ejection_share: -1}", "{strike: 1}", "{stale_after: -1s}"):
        with pytest.raises(ConfigError):
            parse(REST.replace("{strikes: 5, ejection_share: 0.25}", bad), "f", {})
