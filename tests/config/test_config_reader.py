"""Durations, sizes, numbers and types: what is taken, and what is said of the rest."""

from __future__ import annotations

import pytest

from activator.config.file import parse
from activator.config.forms import parse_duration, parse_size
from activator.config.model.file import Config
from activator.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("300ms", 0.3), ("5s", 5.0), ("2m", 120.0), ("1h", 3600.0), ("0", 0.0), ("1.5", 1.5), ("1.5s", 1.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5 s", "-1s", "1d", "5S", "inf", "nan", "1e3", "1m30s", "٣s", "9" * 400])
def test_no_durations(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("text", "size"), [("32KiB", 32_768), ("1MiB", 2**20), ("2GiB", 2**31), ("7B", 7), ("0", 0), ("1.5KiB", 1536)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "1KB", "1kib", "1 KiB", "-1", "1K", "9999999999GiB"])
def test_no_sizes(text: str) -> None:
    assert parse_size(text) is None


def read(lines: str) -> Config:
    return parse("revisions: [{name: a, hosts: [a], pods: ['h:1']}]\n" + lines, "a", {})


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("workers: x", 'workers: found "x", expected a whole number from 1 to 256, or auto'),
        ("workers: 0", 'workers: found "0", expected a whole number from 1 to 256, or auto'),
        ("workers: 1.0", 'workers: found "1.0", expected a whole number from 1 to 256, or auto'),
        ("workers: 257", 'workers: found "257", expected a whole number from 1 to 256, or auto'),
        ("workers: [1]", "workers: found a list, expected a whole number from 1 to 256, or auto"),
        ("workers:", "workers: found nothing, expected a whole number from 1 to 256, or auto"),
        ("workers: 99999999999999999999", "expected a whole number from 1 to 256, or auto"),
        ("trailing_fragmentation_threshold: 1.01", 'found "1.01", expected a number from 0 to 1'),
        ("trailing_fragmentation_threshold: .nan", 'found ".nan", expected a number from 0 to 1'),
        ("trust_revision_headers: yes", 'found "yes", expected true or false'),
        (
            "admin: {a: 1}",
            'admin: found the unknown key "a", expected one of address, group, insecure, listen, mode, owner, token',
        ),
        ("admin: [a]", "admin: found a list, expected text, or a mapping"),
        ("limits: 5", 'limits: found "5", expected a mapping'),
        ("limits: {held_bytes: 1GB}", 'limits.held_bytes: found "1GB", expected a size such as 32KiB or 1MiB'),
        ("listen: {certificate: a}", 'listen: found none, expected the key "address"'),
        ("listen: {address: 'h:1', alpn: [h2]}", "`alpn` is for TLS, which requires `certificate` and `key`"),
        ("listen: {address: 'h:1', certificate: a}", "`certificate` and `key` require each other: set both"),
        ("listen: {address: 'h:1', certificates: []}", "`certificates` is for TLS, which requires `certificate`"),
        ("listen: {address: 'h:1', certificates: [{certificate: a}]}", 'found none, expected the key "key"'),
        (
            "listen: {address: 'h:1', certificates: [{certificate: /no/a, key: b}]}",
            "listen.certificates[0].certificate: found /no/a: No such file or directory, expected a certificate",
        ),
        ("limts: {}", 'found the unknown key "limts", expected "limits"'),
        ("'': 1", 'found the unknown key "", expected one of'),
    ],
)
def test_wrong_types_are_told(lines: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(lines)
    assert any(problem in told and told.startswith("a:2: ") for told in caught.value.problems), caught.value.problems


def test_a_long_text_is_shortened_where_it_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        read("workers: " + "x" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["1", "1_000", "+5"])
def test_whole_numbers(text: str) -> None:
    assert read(f"limits: {{headers: {text}}}").limits.headers == int(text)


@pytest.mark.parametrize(
    "text",
    [
        "revisions: [{name: a, hosts: [a], process: {command: [a], environment: 'TOKEN=s3cret'}}]",
        "revisions: [{name: a, hosts: [a], container: {image: a, environment: s3cret}}]",
        "revisions: [{name: a, hosts: [a], pods: [a], filters: [{name: a, options: s3cret}]}]",
        "revisions: [{name: a, hosts: [a], pods: [a], filters: [s3cret]}]",
    ],
)
def test_what_stands_in_the_place_of_secrets_is_not_shown(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, "a.yaml", {})
    found = "\n".join(error.value.problems)
    assert "found a text, expected a mapping" in found
    assert "s3cret" not in found
