"""What types cannot say of local programs."""

from __future__ import annotations

import pytest

from activator.config.file import parse, resolve
from activator.config.specs import resolve_program
from activator.runtime.errors import ConfigError


def revision(process: str, name: str = "a", more: str = "") -> str:
    return f"{{name: {name}, hosts: [{name}], process: {{command: [x], {process}}}, {more}}}"


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "a", {})
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"revisions: [{revision('port: 0')}]", 'process.port: found "0", expected a port from 1 to 65535, or a'),
        (
            f"revisions: [{revision('port: 8080, max_scale: 2')}]",
            "a:1: revisions[0].process.max_scale: 2 copies cannot share `process.port: 8080`: set 1, a range",
        ),
        (f"revisions: [{revision('port: 8080, min_scale: 2')}]", "revisions[0].process.min_scale: 2 copies cannot"),
        (f"revisions: [{revision('port: 8080', more='scaling: {max: 3}')}]", "scaling.max: 3 copies cannot share"),
        (f"revisions: [{revision('port: 8080', more='scaling: {activation_scale: 3}')}]", "scaling.activation_scale"),
        (
            f"revisions: [{revision('port: 8080', more='scaling: {schedule: [{min: 2}]}')}]",
            "revisions[0].scaling.schedule[0].min: 2 copies cannot share",
        ),
        (
            f"revisions: [{revision('port: 8080')}, {revision('port: 8080', 'b')}]",
            "a:1: revisions[1].process.port: 8080 is the port of revisions[0] already: use another",
        ),
        (f"listen: '0.0.0.0:8080'\nrevisions: [{revision('port: 8080')}]", "8080 is the port of `listen` already"),
        (f"listen: ['h:1', 'h:8080']\nrevisions: [{revision('port: 8080')}]", "8080 is the port of `listen` already"),
        (f"revisions: [{revision('port: 8012')}]", "8012 is the port of `listen` already"),
        (f"revisions: [{revision('readiness: {log: (}')}]", 'process.readiness.log: found "(", expected a regular'),
        (f"revisions: [{revision('readiness: {log: x, http_get: /}')}]", "`http_get` has no effect with `log`"),
        (f"revisions: [{revision('readiness: {log: x, grpc: health}')}]", "`grpc` has no effect with `log`"),
        (f"revisions: [{revision('readiness: {log: x, interval: 1s}')}]", "`interval` has no effect with `log`"),
        (f"revisions: [{revision('logs: {max_size: 1KiB}')}]", "process.logs.max_size: found"),
        (f"revisions: [{revision('logs: {keep: 0}')}]", "process.logs.keep: found"),
        (
            f"revisions: [{revision('logs: {file: /tmp/x}')}, {revision('logs: {file: /tmp/x}', 'b')}]",
            "a:1: revisions[1].process.logs.file: /tmp/x is written by revisions[0].process.logs already: use another",
        ),
        (f"revisions: [{revision('nice: 20')}]", "process.nice: found"),
        (
            f"revisions: [{revision('cpus: 3-1')}]",
            'process.cpus: found "3-1", expected numbers and ranges of processors',
        ),
        (f"revisions: [{revision('cpus: all')}]", 'process.cpus: found "all", expected numbers'),
        (f"revisions: [{revision('readiness: {command: [x], grpc: a}')}]", "`grpc` has no effect with `command`"),
        (f"revisions: [{revision('readiness: {command: [x], log: a}')}]", "`command` has no effect with `log`"),
        (f"revisions: [{revision('stop: {grace: -1s}')}]", "process.stop.grace: found"),
        (f"revisions: [{revision('port: 8008')}]", "8008 is the port of `admin` already"),
        (f"revisions: [{revision('socket: /')}]", 'process.socket: found "/", expected true, or a path such as'),
        ("revisions: [" + revision('socket: "@app"') + "]", "expected true, or a path such as"),
        (
            f"revisions: [{revision('socket: /run/a.sock, max_scale: 2')}]",
            "process.max_scale: 2 copies cannot share `process.socket: /run/a.sock`: set 1, or leave the path out",
        ),
        (
            f"revisions: [{revision('socket: /run/a.sock')}, {revision('socket: /run/a.sock', 'b')}]",
            "revisions[1].process.socket: /run/a.sock is the socket of revisions[0] already: use another",
        ),
        (f"revisions: [{revision('socket: /run/a.sock, port: 1')}]", "process.port: a program listens on a Unix"),
        (
            f"revisions: [{revision('hooks: {after_start: [{}]}')}]",
            "a:1: revisions[0].process.hooks.after_start[0]: found none, expected `http_post` or `command`",
        ),
        (
            f"revisions: [{revision('hooks: {before_stop: [{http_post: /a}, {http_post: /b, command: [x]}]}')}]",
            "hooks.before_stop[1]: found both, expected `http_post` or `command`",
        ),
        (
            f"revisions: [{revision('hooks: {before_stop: [{http_post: a}]}')}]",
            'found "a", expected a path that begins',
        ),
        (
            f"revisions: [{revision('hooks: {before_stop: [{command: [x], body: {a: 1}}]}')}]",
            "hooks.before_stop[0].body: `body` has no effect with `command`: remove it",
        ),
        (f"revisions: [{revision('hooks: {before_stop: [{command: [x], timeout: 0}]}')}]", "timeout: found"),
        (f"revisions: [{revision('hooks: {before_stop: [{command: [x], timeout: 1h}]}')}]", "expected at most 30m"),
        (
            f"revisions: [{revision('lifetime: request, hooks: {after_start: [{command: [x]}]}')}]",
            "process.hooks: with `lifetime: request`: it ends by itself",
        ),
        (
            "revisions: [" + revision('socket: true, hooks: {after_start: [{command: [x, "{port}"]}]}') + "]",
            "process.hooks: a program that listens on a Unix socket has no {port}: use {socket}",
        ),
    ],
)
def test_mistakes(text: str, problem: str) -> None:
    (found,) = problems_of(text)
    assert problem in found


@pytest.mark.parametrize(
    ("name", "expected"),
    [("INT", "SIGINT"), ("sigint", "SIGINT"), ("SIGTEM", "SIGTERM"), ("2", "a name such as SIGINT"), ("''", "a name")],
)
def test_no_signals(name: str, expected: str) -> None:
    (found,) = problems_of(f"revisions: [{revision(f'stop: {{signal: {name}}}')}]")
    assert "a:1: revisions[0].process.stop.signal: found " in found
    assert found.partition(", expected ")[2].startswith(expected)


def test_a_port_allows_one_copy_whatever_the_limit_is() -> None:
    config = parse(f"revisions: [{revision('port: 8080', more='container_concurrency: 4')}]", "a", {})
    assert resolve_program(config.revisions[0], processors=8).max_scale == 1
    assert resolve(config, lambda _: "random", 8)[0].balancing.max_scale == 1


def test_so_does_a_socket_of_the_file() -> None:
    config = parse(f"revisions: [{revision('socket: /run/a.sock', more='container_concurrency: 4')}]", "a", {})
    assert resolve_program(config.revisions[0], processors=8).max_scale == 1
