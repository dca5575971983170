"""Listeners and pods on Unix sockets, the PROXY protocol, ranges of ports, programs that end after one request."""

from __future__ import annotations

import pytest

from activator.config.file import parse, resolve
from activator.config.model.listeners import Listener, ProxyProtocol
from activator.config.specs import resolve_program, stand_for_many
from activator.runtime.errors import ConfigError
from activator.runtime.unix_sockets import UNIX_ADMIN_MODE, SocketAccess

POD = "revisions: [{name: a, hosts: ['*'], pods: ['p:1']}]"


def program(process: str, more: str = "") -> str:
    return f"revisions: [{{name: a, hosts: ['*'], {more} process: {{command: [x], {process}}}}}]"


def pods(more: str) -> str:
    return f"revisions: [{{name: a, hosts: ['*'], pods: ['p:1'], {more}}}]"


LONG = "unix:/" + "a" * 107


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"listen: {LONG}\n{POD}", "the path has 108 bytes, and the kernel takes 107: use a shorter one"),
        (f"listen: 'unix:@a'\n{POD}", 'listen: "unix:@a": abstract sockets have no permissions: use a path'),
        (f"listen: [unix:a]\n{POD}", 'listen[0]: "unix:a": use an absolute path, such as unix:/run/app.sock'),
        (f"listen: {{address: unix:a}}\n{POD}", 'listen.address: "unix:a": use an absolute path'),
        (f"listen: [unix:/a, unix:/a]\n{POD}", '"unix:/a" is in the list already'),
        (f"listen: unix:/a\nadmin: unix:/./a\n{POD}", '"unix:/./a" cannot be listened on beside `listen`, which has'),
        (
            f"listen: {{address: unix:/a, mode: '0999'}}\n{POD}",
            'listen.mode: found "0999", expected three octal digits',
        ),
        (
            f"listen: {{address: 'h:1', mode: '0600'}}\n{POD}",
            "`mode` applies to Unix sockets only, and h:1 is not one: remove it",
        ),
        (f"admin: {{address: 'h:1'}}\n{POD}", 'admin.address: found "h:1", expected a Unix socket'),
        (
            f"admin: {{address: unix:/a, owner: ''}}\nlisten: {{address: 'h:1', group: a}}\n{POD}",
            "`group` applies to Unix sockets only, and h:1 is not one: remove it",
        ),
        (f"listen: {{address: 'h:1', proxy_protocol: []}}\n{POD}", "listen.proxy_protocol: found an empty list"),
        (
            f"listen: {{address: 'h:1', proxy_protocol: [all]}}\n{POD}",
            'listen.proxy_protocol[0]: found "all", expected a network such as 10.0.0.0/8 or an address, or unix',
        ),
        (
            f"listen: {{address: 'h:1', proxy_protocol: {{trusted: [10.0.0.1/8]}}}}\n{POD}",
            "listen.proxy_protocol.trusted[0]: found",
        ),
        (
            f"listen: {{address: 'h:1', proxy_protocol: {{required: true}}}}\n{POD}",
            'listen.proxy_protocol: found none, expected the key "trusted"',
        ),
        (f"push: {{listen: unix:/a, token: t}}\n{POD}", "push.listen: found"),
        ("revisions: [{name: a, hosts: ['*'], pods: ['unix:@a']}]", "abstract sockets have no permissions"),
        ("revisions: [{name: a, hosts: ['*'], pods: [unix:/a, 'unix:///a']}]", "list each pod once"),
        (pods("proxy_protocol: v3"), 'proxy_protocol: found "v3", expected one of v1, v2'),
        (pods("proxy_protocol: v1, protocol: h2c"), "HTTP/2 carries requests of several clients on one connection"),
        (
            pods("proxy_protocol: v1, tls: {}"),
            "the PROXY protocol header is sent only without TLS: remove `proxy_protocol` or `tls`",
        ),
        (program("port: 9-1"), 'process.port: found "9-1", expected a port from 1 to 65535, or a range such as 9000'),
        (program("port: 1-1001"), "a range such as 9000-9010 of at most 1000 ports"),
        (program("port: 70000"), 'process.port: found "70000"'),
        (
            program("port: 9000-9001, max_scale: 3"),
            "process.max_scale: 3 copies are too many, `process.port: 9000-9001`",
        ),
        (program("port: 9000-9001", "scaling: {min: 3},"), "revisions[0].scaling.min: 3 copies are too many"),
        (f"listen: '0.0.0.0:9001'\n{program('port: 9000-9002')}", "9001 is the port of `listen` already"),
        (program("port: 9000, socket: true"), "a program listens on a Unix socket or on a port"),
        ("revisions: [{name: a, hosts: ['*'], process: {command: [x, '{socket}', '{port}']}}]", "has no {port}"),
        (program("lifetime: once"), 'process.lifetime: found "once", expected one of service, request'),
        (
            program("lifetime: request", "container_concurrency: 2,"),
            "with `lifetime: request`: a copy takes one request",
        ),
        (
            program("lifetime: request, readiness: {http_get: /}"),
            "process.readiness.http_get: with `lifetime: request`",
        ),
        (program("lifetime: request", "waiting_page: {},"), "waiting_page: with `lifetime: request`"),
        (
            program("lifetime: request", "activity: {busy: {http_get: /busy}},"),
            "activity.busy: with `lifetime: request`",
        ),
        (program("lifetime: request", "queue: {rules: [{exempt: true}]},"), "queue.rules: with `lifetime: request`"),
    ],
)
def test_mistakes(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "a", {})
    (found,) = caught.value.problems
    assert problem in found


def test_listeners_as_they_are_read() -> None:
    text = """
listen:
  - unix:/run/a.sock
  - {address: unix:/run/b.sock, mode: 0666, group: www}
  - {address: 'h:1', proxy_protocol: [unix]}
admin: {address: unix:/run/c.sock, owner: ops}
"""
    config = parse(text + POD, "a", {})
    assert isinstance(config.listen, list)
    plain, shared, proxied = config.listen
    assert plain == "unix:/run/a.sock"
    assert isinstance(shared, Listener) and isinstance(proxied, Listener)
    assert shared.access() == SocketAccess(0o666, "", "www") and not shared.is_secure()
    assert proxied.proxy_protocol == ["unix"]
    assert config.admin_address == "unix:/run/c.sock"
    assert not isinstance(config.admin, str) and config.admin.access(UNIX_ADMIN_MODE) == SocketAccess(0o600, "ops", "")
    text = f"listen: {{address: 'h:1', proxy_protocol: {{trusted: [10.0.0.0/8], required: true}}}}\n{POD}"
    listener = parse(text, "a", {}).listen
    assert isinstance(listener, Listener) and listener.proxy_protocol == ProxyProtocol(["10.0.0.0/8"], True)


def test_how_many_copies_a_range_allows() -> None:
    def most(process: str, more: str = "", processors: int = 8) -> int:
        return resolve_program(parse(program(process, more), "a", {}).revisions[0], processors).max_scale

    assert most("port: 9000-9003", "container_concurrency: 1,") == 4
    assert most("port: 9000-9019", "container_concurrency: 1,") == 8
    assert most("port: 9000-9003, max_scale: 3") == 3
    assert most("port: 9000-9003") == 1, "a program without a limit handles all by itself"
    assert most("port: 9000", "container_concurrency: 1,") == 1


def test_a_copy_that_ends_after_one_request_takes_one() -> None:
    config = parse(program("lifetime: request"), "a", {})
    (spec,) = resolve(config, lambda limit: f"policy for {limit}", 8)
    assert (spec.container_concurrency, spec.is_once) == (1, True)
    assert (spec.balancing.policy, spec.balancing.max_scale) == ("policy for 1", 8)
    process = resolve_program(config.revisions[0], 8)
    assert (process.target_concurrency, process.max_scale) == (1, 8)


def test_a_socket_is_one_pod() -> None:
    revision = parse("revisions: [{name: a, hosts: ['*'], pods: [unix:/a, unix:/b]}]", "a", {}).revisions[0]
    assert not stand_for_many(revision)


@pytest.mark.parametrize(
    ("listen", "pod", "is_so"),
    [
        ("127.0.0.1:9000", "127.0.0.1:9000", True),
        ("0.0.0.0:9000", "127.0.0.1:9000", True),
        ("0.0.0.0:9000", "localhost:9000", True),
        ("'[::]:9000'", "'[::1]:9000'", True),
        ("[127.0.0.1:1, 0.0.0.0:9000]", "127.8.0.1:9000", True),
        ("unix:/run/a.sock", "unix:///run/a.sock", True),
        ("a.test:9000", "A.test.:9000", True),
        ("0.0.0.0:9000", "10.0.0.1:9000", False),
        ("0.0.0.0:9000", "127.0.0.1:9001", False),
        ("127.0.0.1:9000", "127.0.0.2:9000", False),
        ("10.0.0.1:9000", "localhost:9000", False),
        ("unix:/run/a.sock", "unix:/run/b.sock", False),
        ("unix:/run/a.sock", "127.0.0.1:9000", False),
    ],
)
def test_the_activator_is_no_pod_of_its_own(listen: str, pod: str, is_so: bool) -> None:
    text = f"listen: {listen}\nrevisions: [{{name: a, hosts: [a], pods: [{pod}]}}]"
    found: list[str] = []
    try:
        parse(text, "f", {})
    except ConfigError as error:
        found = error.problems
    assert [one for one in found if "is the address of `listen`: requests would come back" in one] == found
    assert bool(found) == is_so
