"""Rules for header fields, faults and filters in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from activator.config.file import parse, resolve_revision
from activator.config.specs import (
    FaultSpec,
    FieldRulesSpec,
    FilterSpec,
    FiltersSpec,
    ForwardAuthSpec,
    HeaderRulesSpec,
    RateLimitSpec,
    RevisionSpec,
)
from activator.runtime.errors import ConfigError
from lb.registry import default_name

GOOD = "tests.e2e.faulty_filters:TrustsText"


def spec_of(keys: str) -> RevisionSpec:
    config = parse(f"revisions: [{{name: a, hosts: [a], pods: ['127.0.0.1:1'], {keys}}}]", "a.yaml", {})
    return resolve_revision(config, config.revisions[0], default_name)


def problem(keys: str) -> str:
    with pytest.raises(ConfigError) as error:
        spec_of(keys)
    (found,) = error.value.problems
    return found.removeprefix("a.yaml:1: revisions[0].")


def test_what_is_written_is_what_the_data_plane_gets() -> None:
    spec = spec_of(
        "headers: {request: {remove: [Cookie], set: {Host: b.test}}, response: {append: {Via: x}}}, "
        "fault: {delay: 2s, delay_share: 0.5, status: 503}, "
        f"filters: [{{name: '{GOOD}', options: {{a: b}}}}, {{name: '{GOOD}'}}]"
    )
    assert spec.filters.headers == HeaderRulesSpec(
        FieldRulesSpec(("Cookie",), (("Host", "b.test"),)), FieldRulesSpec((), (), (("Via", "x"),))
    )
    assert spec.filters.fault == FaultSpec(2.0, 0.5, 503, 1.0)
    assert spec.filters.of_packages == (FilterSpec(GOOD, (("a", "b"),)), FilterSpec(GOOD))
    assert spec_of("max_scale: 1").filters == FiltersSpec()


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("headers: {request: {set: {Content-Length: '1'}}}", "headers.request.set.Content-Length: `Content-Length` be"),
        ("headers: {response: {remove: [connection]}}", "headers.response.remove[0]: `connection` belongs"),
        ("headers: {response: {set: {Host: a}}}", "headers.response.set.Host: `Host` can only be set, and only in req"),
        ("headers: {request: {remove: [host]}}", "headers.request.remove[0]: `Host` can only be set"),
        ("headers: {request: {set: {'a b': c}}}", "headers.request.set.a b: 'a b' is no name of a header field"),
        ('headers: {request: {set: {a: "b\\nc"}}}', "headers.request.set.a: found"),
        ("headers: {request: {set: {a: 'env:NOBODY_SET_IT'}}}", "headers.request.set.a: a: the environment variable"),
        ("headers: {response: {append: {a: 'file:/nobody'}}}", "headers.response.append.a: a: the file /nobody cannot"),
        ("fault: {delay_share: 0.5}", "fault: say what happens: `delay`, `status` or both"),
        ("fault: {status: 99}", 'fault.status: found "99", expected a status from 200 to 599'),
        ("fault: {delay: 11m}", 'fault.delay: found "11m", expected at most 10m'),
        ("fault: {status: 503, status_share: 2}", 'fault.status_share: found "2", expected'),
        ("forward_auth: {headers: [A]}", "forward_auth: found"),
        ("forward_auth: {url: '127.0.0.1:9091'}", 'forward_auth.url: found "127.0.0.1:9091", expected a URL such as'),
        ("forward_auth: {url: 'http://u:s3cret@a/'}", "forward_auth.url: found one with a user name, expected a URL s"),
        ("forward_auth: {url: 'http://a/#b'}", "forward_auth.url: found "),
        ("forward_auth: {url: 'http://a:0/'}", "forward_auth.url: found "),
        ("forward_auth: {url: 'http://a:99999/'}", "forward_auth.url: found "),
        ("forward_auth: {url: 'http://a/b c'}", "forward_auth.url: found "),
        ("forward_auth: {url: 'unix:/run/a.sock'}", "forward_auth.url: found "),
        ("forward_auth: {url: 'http://a', headers: [Host]}", "forward_auth.headers[0]: `Host` can only be set"),
        ("forward_auth: {url: 'http://a', headers: ['a b']}", "forward_auth.headers[0]: 'a b' is no name of a header"),
        ("forward_auth: {url: 'http://a', headers: [TE]}", "forward_auth.headers[0]: `TE` belongs to one connection"),
        (
            f"forward_auth: {{url: 'http://a', headers: [{', '.join(['A'] * 33)}]}}",
            "forward_auth.headers: found 33, expected at most 32 names",
        ),
        ("forward_auth: {url: 'http://a', cache: 61m}", 'forward_auth.cache: found "61m", expected at most 1h'),
        ("forward_auth: {url: 'http://a', timeout: 0s}", 'forward_auth.timeout: found "0s", expected more than 0s, at'),
        ("forward_auth: {url: 'http://a', timeout: 2m}", 'forward_auth.timeout: found "2m", expected more than 0s, at'),
        ("filters: [{name: nobody}]", "filters[0].name: no filter is called 'nobody'; there are"),
        ("filters: [{name: 'no.module:A'}]", "filters[0].name: filter 'no.module:A' cannot be loaded: ModuleNot"),
        ("filters: [{name: 'os:sep'}]", "filters[0].name: os:sep is no subclass of activator.filters.Filter"),
        ("filters: [{name: 'tests.e2e.faulty_filters:Everything'}]", "filters[0].options: KeyError: 'name'"),
        (f"filters: [{{name: '{GOOD}', options: {{a: 'env:NOT_SET_HERE'}}}}]", "filters[0].options: option a: the env"),
    ],
)  # fmt: skip
def test_each_mistake_has_one_line(keys: str, expected: str) -> None:
    assert problem(keys).startswith(expected)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:9091/verify?a=b", ("127.0.0.1", 9091, False, "127.0.0.1:9091", "/verify?a=b")),
        ("http://Authelia:9091", ("authelia", 9091, False, "Authelia:9091", "/")),
        ("https://auth.test", ("auth.test", 443, True, "auth.test", "/")),
        ("http://[::1]?x", ("::1", 80, False, "[::1]", "/?x")),
    ],
)
def test_an_authoriser(url: str, expected: tuple[str, int, bool, str, str]) -> None:
    spec = spec_of(f"forward_auth: {{url: '{url}', headers: [Remote-User], cache: 10s, timeout: 2s}}")
    assert spec.filters.forward_auth == ForwardAuthSpec(*expected, ("Remote-User",), 10.0, 2.0)


@pytest.mark.parametrize(
    ("listen", "url", "hosts", "is_loop"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080/verify", "['*']", True),
        ("0.0.0.0:8080", "http://localhost:8080", "[localhost]", True),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/verify", "[app.test]", False),
        ("127.0.0.1:8080", "http://127.0.0.1:9091/verify", "['*']", False),
    ],
)
def test_an_authoriser_is_not_the_revision_itself(listen: str, url: str, hosts: str, is_loop: bool) -> None:
    text = f"{{name: a, hosts: {hosts}, pods: ['127.0.0.1:1'], forward_auth: {{url: '{url}'}}}}"
    try:
        parse(f"{{listen: '{listen}', revisions: [{text}]}}", "a.yaml", {})
    except ConfigError as error:
        (found,) = error.problems
        assert "revisions[0].forward_auth.url: it is the address of `listen`, and leads to this revision" in found
        assert is_loop
    else:
        assert not is_loop


def test_options_are_not_shown() -> None:
    spec = spec_of(f"filters: [{{name: '{GOOD}', options: {{key: s3cret}}}}]")
    assert "s3cret" not in repr(spec)


def test_networks_that_may_use_a_revision() -> None:
    assert spec_of("allow: [10.0.0.0/8, '::1', unix]").filters.allow == ("10.0.0.0/8", "::1", "unix")
    assert problem("allow: [10.0.0.1/8]").startswith('allow[0]: found "10.0.0.1/8", expected a network')
    assert problem("allow: ['::ffff:10.0.0.0/104']").startswith('allow[0]: found "::ffff:10.0.0.0/104", expected a net')


def test_an_exception_of_a_filter_does_not_show_its_options(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    for option in ("s3cret", f"file:{secret}"):
        found = problem(f"filters: [{{name: 'tests.e2e.faulty_filters:WantsNumber', options: {{number: '{option}'}}}}]")
        assert found.startswith("filters[0].options: ValueError: invalid literal for int()")
        assert "s3cret" not in found


def test_rate_limits() -> None:
    assert spec_of("rate_limit: {requests: 100/min, burst: 20}").filters.rate_limit == RateLimitSpec(100, 60.0, 20)
    assert spec_of("rate_limit: {requests: 1.5k/h}").filters.rate_limit == RateLimitSpec(1_500, 3_600.0, 1_500)
    assert spec_of("headers: {}").filters.rate_limit is None


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("requests: 100", 'rate_limit.requests: found "100", expected a number per period, such as 100/min or 10/s'),
        ("requests: 0/s", 'rate_limit.requests: found "0/s", expected a number per period'),
        ("requests: 0.5/s", 'rate_limit.requests: found "0.5/s", expected a number per period'),
        ("requests: 1/week", 'rate_limit.requests: found "1/week", expected a number per period'),
        ("requests: 1/s, burst: 0", 'rate_limit.burst: found "0", expected a whole number of at least 1'),
        ("requests: 1/s, burst: 1000000001", 'rate_limit.burst: found "1000000001", expected at most 1000000000'),
        ("burst: 2", 'rate_limit: found none, expected the key "requests"'),
    ],
)
def test_mistakes_in_rate_limits(key: str, expected: str) -> None:
    assert problem(f"rate_limit: {{{key}}}").startswith(expected)


def test_a_reload_reads_the_secrets_of_header_rules_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    text = f"headers: {{request: {{set: {{A: 'file:{file}'}}, append: {{B: 'env:OUR_TOKEN'}}}}}}"
    monkeypatch.setenv("OUR_TOKEN", "of-a-variable")
    for content in ("first", "second"):
        file.write_text(content + "\n")
        found = spec_of(text).filters.headers
        assert found is not None
        assert found.request.set == (("A", content),)
        assert found.request.append == (("B", "of-a-variable"),)
    file.write_text("two\nlines")
    assert "expected a value in one line" in problem(text)
