"""Rules for header fields, faults and filters in the file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from activator.config.file import parse, resolve_revision
from activator.config.specs import FaultSpec, FieldRulesSpec, FilterSpec, FiltersSpec, HeaderRulesSpec, RevisionSpec
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
        ("fault: {delay_share: 0.5}", "fault: say what happens: `delay`, `status` or both"),
        ("fault: {status: 99}", 'fault.status: found "99", expected a status from 200 to 599'),
        ("fault: {delay: 11m}", 'fault.delay: found "11m", expected at most 10m'),
        ("fault: {status: 503, status_share: 2}", 'fault.status_share: found "2", expected'),
        ("filters: [{name: nobody}]", "filters[0].name: no filter is called 'nobody'; there are"),
        ("filters: [{name: 'no.module:A'}]", "filters[0].name: filter 'no.module:A' cannot be loaded: ModuleNot"),
        ("filters: [{name: 'os:sep'}]", "filters[0].name: os:sep is no subclass of activator.filters.Filter"),
        ("filters: [{name: 'tests.e2e.faulty_filters:Everything'}]", "filters[0].options: KeyError: 'name'"),
        (f"filters: [{{name: '{GOOD}', options: {{a: 'env:NOT_SET_HERE'}}}}]", "filters[0].options: option a: the env"),
    ],
)  # fmt: skip
def test_each_mistake_has_one_line(keys: str, expected: str) -> None:
    assert problem(keys).startswith(expected)


def test_options_are_not_shown() -> None:
    spec = spec_of(f"filters: [{{name: '{GOOD}', options: {{key: s3cret}}}}]")
    assert "s3cret" not in repr(spec)


def test_networks_that_may_use_a_revision() -> None:
    assert spec_of("allow: [10.0.0.0/8, '::1', unix]").filters.allow == ("10.0.0.0/8", "::1", "unix")
    assert problem("allow: [10.0.0.1/8]").startswith('allow[0]: found "10.0.0.1/8", expected a network')


def test_an_exception_of_a_filter_does_not_show_its_options(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    for option in ("s3cret", f"file:{secret}"):
        found = problem(f"filters: [{{name: 'tests.e2e.faulty_filters:WantsNumber', options: {{number: '{option}'}}}}]")
        assert found.startswith("filters[0].options: ValueError: invalid literal for int()")
        assert "s3cret" not in found


HASH = hashlib.sha256(b"12345678").hexdigest().upper()


def key_problems(keys: str, revision: str = "") -> list[str]:
    text = f"{{keys: [{keys}], revisions: [{{name: a, hosts: [a], pods: ['127.0.0.1:1']{revision}}}]}}"
    try:
        parse(text, "a.yaml", {})
    except ConfigError as error:
        return [one.removeprefix("a.yaml:1: ") for one in error.problems]
    return []


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("{name: a, key: 12345678, priority: 7}, {name: b, revisions: [a, default/a]}", []),
        ("{name: a, key: 12345678, priority: 8}", ['keys[0].priority: found "8"']),
        ("{name: a@b.c, key: 'sha256:" + 64 * "a" + "'}", []),
        ("{key: 12345678}", ["keys[0]"]),
        ("{name: 'a b', key: 12345678}", ['keys[0].name: found "a b", expected a name of at most 63 letters']),
        ("{name: a, key: 12345678}, {name: a, key: 87654321}", ["keys[1].name: keys[0] has this name, too"]),
        ("{name: a, key: 12345678}, {name: b, key: 12345678}", ["keys[1]: keys[0] is for requests with the same key"]),
        (
            f"{{name: a, key: 12345678}}, {{name: b, key: 'sha256:{HASH}'}}",
            ["keys[1]: keys[0] is for requests with"],
        ),
        ("{name: a}, {name: b}", ["keys[1]: keys[0] is for requests without a key, too"]),
        (
            "{name: a, key: 1234567}",
            ["keys[0].key: key a: a key has at least 8 ASCII characters without spaces: `op"],
        ),
        ("{name: a, key: '1234 5678'}", ["keys[0].key: key a: a key has at least 8"]),
        ("{name: a, key: 'sha256:abc'}", ["keys[0].key: key a: after `sha256:`, 64 hex digits are required"]),
        ("{name: a, key: 'env:NOT_SET_HERE'}", ["keys[0].key: key a: the environment variable NOT_SET_HERE is not"]),
        ("{name: a, key: 'file:/nowhere'}", ["keys[0].key: key a: the file /nowhere cannot be read"]),
        ("{name: a, key: 12345678, revisions: [b]}", ['keys[0].revisions[0]: found "b", expected the name of a rev']),
        ("{name: a, key: 12345678, revisions: [other/a]}", ['keys[0].revisions[0]: found "other/a", expected the na']),
    ],
)
def test_what_is_wrong_with_a_key(keys: str, expected: list[str]) -> None:
    found = key_problems(keys)
    assert len(found) == len(expected)
    for problem, beginning in zip(found, expected, strict=True):
        assert problem.startswith(beginning)
        assert "12345678" not in problem


def test_keys_are_checked_without_revisions_in_the_file() -> None:
    with pytest.raises(ConfigError, match="at least 8 ASCII characters"):
        parse("{keys: [{name: a, key: short}], kubernetes: {}}", "a.yaml", {})


def test_levels_need_a_header_or_a_key_with_one() -> None:
    priority = ", queue: {discipline: priority}"
    (problem,) = key_problems("{name: a, key: 12345678}", priority)
    assert problem.startswith("revisions[0].queue.header: `discipline: priority` requires `header`")
    assert key_problems("{name: a, key: 12345678, priority: 0}", priority) == []


def test_shares_need_a_header_or_keys() -> None:
    fair = ", queue: {discipline: fair}"
    (problem,) = key_problems("", fair)
    assert problem.startswith("revisions[0].queue.header: `discipline: fair` requires `header`")
    assert key_problems("{name: a, key: 12345678}", fair) == []
    assert key_problems(", ".join(f"{{name: n{n}, key: k1234567{n}}}" for n in range(1_001))) != []
