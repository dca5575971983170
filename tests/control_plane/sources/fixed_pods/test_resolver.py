"""One question about a name, to a server that may do anything: an answer within bounds, or a cause within the time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop

from activator.control_plane.sources.fixed_pods.resolver import (
    HOSTS_TTL_S,
    NAME_ADDRESSES_MAX,
    TTL_MAX_S,
    TTL_MIN_S,
    NameGoneError,
    NameResolver,
    Resolved,
    ResolveError,
    Target,
)
from tests.control_plane.sources.fixed_pods.name_server import NameServer

TIMEOUT_S = 0.6  # where no answer comes
PATIENCE_S = 60.0  # where one does: the bytes of a large answer take half a second of a busy machine


def ask(server: NameServer, name: str, srv: bool = False, hosts: Path | None = None) -> Resolved:
    resolver = NameResolver([server.address], PATIENCE_S, hosts_file=str(hosts or "/nowhere"))

    async def scenario() -> Resolved:
        return await (resolver.services(name) if srv else resolver.addresses(name))

    return uvloop.run(scenario())


def ips(found: Resolved) -> list[str]:
    return [target.ip for target in found.targets]


def test_addresses_and_their_ttl() -> None:
    with NameServer() as server:
        server.records[("two.test", "A")] = ["10.0.0.2", "10.0.0.1"]
        server.records[("six.test", "AAAA")] = ["fd00::1"]
        server.records[("both.test", "A")] = ["10.0.0.3"]
        server.records[("both.test", "AAAA")] = ["fd00::3"]
        server.ttl_s = 60
        found = ask(server, "two.test")
        assert ips(found) == ["10.0.0.1", "10.0.0.2"] and found.ttl_s == 60.0
        assert ips(ask(server, "six.test")) == ["fd00::1"]
        assert ips(ask(server, "both.test")) == ["10.0.0.3"], "a program with two addresses is one pod"
        server.ttl_s = 0
        assert ask(server, "two.test").ttl_s == TTL_MIN_S
        server.ttl_s = 100_000
        assert ask(server, "two.test").ttl_s == TTL_MAX_S


@pytest.mark.parametrize("name", ["nobody.test", "empty.test"])
def test_a_name_that_is_not_there(name: str) -> None:
    with NameServer() as server:
        server.records[("empty.test", "TXT")] = ["x"]
        with pytest.raises(NameGoneError):
            ask(server, name)


@pytest.mark.parametrize(
    ("mode", "cause"),
    [
        ("silent", "the name servers did not answer in 0.6 s"),
        ("garbage", "the name servers did not answer in 0.6 s"),
        ("another id", "the name servers did not answer in 0.6 s"),
        ("servfail", "the name servers answered SERVFAIL"),
        ("refused", "the name servers answered REFUSED"),
        ("truncated, and TCP is closed", ""),
    ],
)
def test_a_server_that_fails_is_no_answer_and_ends_in_time(mode: str, cause: str) -> None:
    with NameServer() as server:
        server.records[("a.test", "A")] = ["10.0.0.1"]
        server.modes["a.test"] = mode

        async def scenario() -> None:
            resolver = NameResolver([server.address], TIMEOUT_S, hosts_file="/nowhere")
            async with asyncio.timeout(5 * TIMEOUT_S):
                with pytest.raises(ResolveError) as caught:
                    await resolver.addresses("a.test")
            assert str(caught.value).startswith(cause)
            assert "\n" not in str(caught.value) and len(str(caught.value)) < 300

        uvloop.run(scenario())


def test_no_server_at_all() -> None:
    with NameServer() as server:
        address = server.address
    with pytest.raises(ResolveError):
        uvloop.run(NameResolver([address], TIMEOUT_S, hosts_file="/nowhere").addresses("a.test"))


def test_a_large_answer_comes_over_tcp_and_is_bounded() -> None:
    with NameServer() as server:
        server.records[("many.test", "A")] = [f"10.{n >> 8}.{n & 255}.1" for n in range(3000)]
        found = ask(server, "many.test")
        assert server.over_tcp >= 1  # more often on a busy machine, where the question is repeated
        assert len(found.targets) == NAME_ADDRESSES_MAX and found.cut


def test_a_loop_of_aliases_ends() -> None:
    with NameServer() as server:
        server.records[("a.test", "CNAME")] = ["b.test."]
        server.records[("b.test", "CNAME")] = ["a.test."]
        with pytest.raises((ResolveError, NameGoneError)):
            ask(server, "a.test")


def test_services() -> None:
    with NameServer() as server:
        server.records[("_http._tcp.app.test", "SRV")] = [
            "10 30 8080 one.test.",
            "10 0 8081 two.test.",
            "20 5 8082 spare.test.",
            "10 5 8083 gone.test.",
        ]
        server.records[("one.test", "A")] = ["10.0.0.1", "10.0.0.2"]
        server.records[("two.test", "A")] = ["10.0.0.3"]
        found = ask(server, "_http._tcp.app.test", srv=True)
        assert found.targets == (
            Target("10.0.0.1", 8080, 30),
            Target("10.0.0.2", 8080, 30),
            Target("10.0.0.3", 8081, 1),
        )
        server.records[("_big._tcp.app.test", "SRV")] = ["1 60000 80 one.test.", "1 6000 80 two.test."]
        weights = [target.weight for target in ask(server, "_big._tcp.app.test", srv=True).targets]
        assert weights == [1000, 1000, 100]
        server.modes["two.test"] = "servfail"
        with pytest.raises(ResolveError):
            ask(server, "_http._tcp.app.test", srv=True)


def test_the_hosts_file_goes_first_and_is_read_again(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# comment\n10.9.9.9 Model.test alias.test # more\nfd00::9 model.test\nnonsense x\n")
    with NameServer() as server:
        server.records[("model.test", "A")] = ["10.0.0.1"]
        found = ask(server, "model.TEST.", hosts=hosts)
        assert ips(found) == ["10.9.9.9"] and found.ttl_s == HOSTS_TTL_S
        resolver = NameResolver([server.address], TIMEOUT_S, hosts_file=str(hosts))
        assert ips(uvloop.run(resolver.addresses("alias.test"))) == ["10.9.9.9"]
        hosts.write_text("10.9.9.10 alias.test\n")
        assert ips(uvloop.run(resolver.addresses("alias.test"))) == ["10.9.9.10"]
        assert ips(ask(server, "localhost")) == ["127.0.0.1"]
