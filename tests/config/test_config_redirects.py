"""Listeners that redirect to https: mistakes, and the port that they redirect to."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from activator.app.listening import listeners
from activator.config.file import parse
from activator.config.model.listeners import Listener, Redirect
from activator.runtime.errors import ConfigError

POD = "\nrevisions: [{name: a, hosts: ['*'], pods: ['p:1']}]"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The keys `certificate` and `key` of a listener."""
    folder: Path = tmp_path_factory.mktemp("pair")
    issued = trustme.CA().issue_cert("a.test")
    issued.private_key_pem.write_to_path(folder / "a.key")
    issued.cert_chain_pems[0].write_to_path(folder / "a.crt")
    return f"certificate: {folder}/a.crt, key: {folder}/a.key"


@pytest.mark.parametrize(
    ("listen", "problem"),
    [
        ("{address: 'h:80', redirect: http}", 'listen.redirect: found "http", expected https, or a mapping'),
        ("{address: 'h:80', redirect: 'https://b'}", 'found "https://b", expected https, or a mapping'),
        (
            "{address: 'h:80', redirect: https}",
            "listen.redirect: no listener has TLS: write it, as in `redirect: {port: 443}`",
        ),
        ("[{address: 'h:80', redirect: {status: 301}}]", "listen[0].redirect: no listener has TLS"),
        (
            "[{address: 'h:80', redirect: https}, {address: 'h:1', PAIR}, {address: 'h:2', PAIR}]",
            "the port of https is not clear (1, 2): write it, as in `redirect: {port: 443}`",
        ),
        (
            "[{address: 'h:80', redirect: https}, {address: 'h:0', PAIR}]",
            "the port of https is not clear (chosen at the start)",
        ),
        ("[{address: 'h:80', redirect: https}, {address: unix:/run/a1, PAIR}]", "(chosen at the start)"),
        (
            "[{address: 'h:80', redirect: {port: 443, status: 303}}]",
            'listen[0].redirect.status: found "303", expected one of 301, 302, 307, 308',
        ),
        (
            "{address: 'h:80', redirect: {port: 0}}",
            'listen.redirect.port: found "0", expected a whole number from 1 to 65535',
        ),
        (
            "{address: 'h:80', redirect: {to: https}}",
            'listen.redirect: found the unknown key "to", expected one of port, status',
        ),
        (
            "{address: 'h:443', redirect: {port: 443}, PAIR}",
            "listen.redirect: a listener with TLS cannot redirect to https: remove `redirect`, or the certificate",
        ),
    ],
)
def test_mistakes(pair: str, listen: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"listen: {listen.replace('PAIR', pair)}{POD}", "a", {})
    (found,) = caught.value.problems
    assert problem in found


@pytest.mark.parametrize(
    ("listen", "redirect"),
    [
        ("[{address: 'h:80', redirect: https}, {address: 'h:443', PAIR}]", Redirect(443, 308)),
        ("[{address: 'h:80', redirect: https}, {address: '0.0.0.0:1', PAIR}, {address: '[::]:1', PAIR}]", Redirect(1)),
        ("[{address: 'h:80', redirect: {status: 301}}, {address: 'h:8443', PAIR}]", Redirect(8443, 301)),
        ("[{address: 'h:80', redirect: {port: 5}}, {address: 'h:1', PAIR}, {address: 'h:2', PAIR}]", Redirect(5)),
        ("{address: unix:/run/a, redirect: {port: 443}}", Redirect(443)),
        ("[{address: 'h:80'}, {address: 'h:1', PAIR}]", None),
    ],
)
def test_where_they_redirect_to(pair: str, listen: str, redirect: Redirect | None) -> None:
    first = listeners(parse(f"listen: {listen.replace('PAIR', pair)}{POD}", "a", {}))[0]
    assert isinstance(first, Listener) and first.redirect == redirect
