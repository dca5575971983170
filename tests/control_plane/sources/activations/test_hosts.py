"""Who has a host that several objects name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from activator.config.model.revision import Revision
from activator.config.model.routing import Match
from activator.control_plane.sources.activations.hosts import HostClaims, order_of

KEYS = st.sampled_from(["d/a", "d/b", "e/a", "e/c"])
HOSTS = st.frozensets(st.sampled_from(["x.y", "*.y", "z", "*"]))
STEPS = st.lists(st.tuples(KEYS, st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]), HOSTS), max_size=12)


@given(STEPS)
def test_the_oldest_that_names_a_host_has_it_and_whoever_is_concerned_is_told(
    steps: list[tuple[str, str, frozenset[str]]],
) -> None:
    claims = HostClaims()
    named: dict[str, tuple[str, frozenset[str]]] = {}
    for key, created, hosts in steps:
        before = {host: holder_of(named, host) for host in ("x.y", "*.y", "z", "*")}
        told = claims.set_named(key, created, hosts)
        named[key] = (created, hosts)
        expected: set[str] = set()
        for host, holder in before.items():
            assert claims.holder(host) == holder_of(named, host)
            if holder != holder_of(named, host):
                expected |= {one for one, (_, names) in named.items() if host in names}
        assert told == expected - {key}
    for key in list(named):
        claims.drop(key)
        del named[key]
        assert all(claims.holder(host) == holder_of(named, host) for host in ("x.y", "*.y", "z", "*"))
    assert len(claims) == 0


def holder_of(named: dict[str, tuple[str, frozenset[str]]], host: str) -> str:
    return min(((created, key) for key, (created, hosts) in named.items() if host in hosts), default=("", ""))[1]


def test_the_longest_path_is_asked_first_then_the_oldest_object() -> None:
    def order(path: str, created: str) -> int:
        return order_of(Revision(name="a", match=Match(path=path)), created)

    old, new = "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"
    asked = [("/v1/models/", new), ("/v1/", old), ("/v1/", new), ("", old), ("", new)]
    assert sorted(asked, key=lambda one: order(*one)) == asked
