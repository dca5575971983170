"""Rules of routing in a file: what they may be, what can never match, and what becomes of them."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from activator.config.file import parse, resolve
from activator.config.specs import MatchSpec
from activator.runtime.errors import ConfigError

NEVER = 'revisions[0] takes all requests for "h" that this revision matches: put this one before it'


def revision(place: int, **keys: Any) -> dict[str, Any]:
    return {"name": f"r{place}", "hosts": ["h"], "pods": ["127.0.0.1:1"], **keys}


def problems_of(*revisions: dict[str, Any]) -> list[str]:
    text = json.dumps({"revisions": [revision(place, **keys) for place, keys in enumerate(revisions)]})
    try:
        parse(text, "f", {})
    except ConfigError as error:
        return error.problems
    return []


def models(*names: str, **more: Any) -> dict[str, Any]:
    return {"match": {"json": {"model": list(names)}, **more}}


@pytest.mark.parametrize(
    ("revisions", "problem"),
    [
        ([{}, {"match": {"path": "/v1"}}], NEVER),
        ([{"match": {"path": "/v1"}}, {"match": {"path": "/v1/chat"}}], NEVER),
        ([{"match": {"path": "/v1"}}, {"match": {"path": "/v1/", "methods": ["GET"]}}], NEVER),
        ([models("llama-*"), models("llama-3", "llama-4")], NEVER),
        ([models("*"), models("llama-*")], NEVER),
        ([{"match": {"headers": {"a": "1"}}}, {"match": {"headers": {"A": "1", "b": "2"}}}], NEVER),
        ([{}, {}], '"h" leads to revisions[0] already, which takes the same requests'),
        ([models("a"), models("a")], "set `weight` in both to share them"),
        ([{"weight": 1}, {}], '"h" leads to revisions[0] already'),
        ([{"hosts": ["h", "h"]}], '"h" leads to revisions[0] already: use each host once'),
        ([{}, {"default": True}], 'revisions[0] takes every request for "h": this default can never match'),
        ([{"default": True}, {"default": True}], '"h" has a default already, revisions[0]'),
        ([{"weight": 1}], "`weight` requires another revision"),
        ([{"weight": 0}, {"weight": 0}], "a weight above 0"),
        ([{"split_on": "client_ip"}], "`split_on` requires `weight`"),
        ([{"weight": 1, "split_on": {"cookie": "a"}}, {"weight": 1, "split_on": "client_ip"}], "`split_on` differs"),
        ([{"weight": 1, "split_on": {}}, {"weight": 1}], "`split_on` requires exactly one of"),
        ([{"aliases": ["a"]}], "they require `match.json.model`"),
        ([{**models("a"), "rewrite_model": "x"}], "`rewrite_model` requires `aliases`"),
        ([{"set_params": {"model": "x"}}], "set_params: requests are routed by `model`: see `aliases`"),
        ([{"strip_params": ["a", "model"]}], "strip_params: requests are routed by `model`: see `aliases`"),
        ([{"strip_params": ["a", ""]}], "strip_params: found one of 0, expected names of 1 to 256 characters"),
        ([{"set_params": {str(n): 1 for n in range(65)}}], "set_params: found 65, expected at most 64 names"),
        ([{"set_params": {"a": "x" * 16384}}], "expected values of at most 16384 bytes in JSON"),
        ([{"set_params": [1]}], "set_params: found a list, expected a mapping"),
        ([{**models("a"), "aliases": ["b*"]}], "without *"),
        ([models("a*b")], "the name of a model"),
        (
            [models("a"), {**models("c"), "aliases": ["b", "a"]}],
            'revisions[1].aliases[1]: revisions[0] takes the requests for "a": remove one of the two names',
        ),
        ([{}, models("a")], "put this one before it, or set `default: true` in revisions[0]"),
        ([models("x" * 257)], "at most 256 characters"),
        ([models()], "at least one name"),
        ([{"match": {"strip_path": True}}], "`strip_path` requires `path`"),
        ([{"match": {"path": "v1"}}], "the beginning of a path"),
        ([{"match": {"path": "/v1/../x"}}], "the beginning of a path"),
        ([{"match": {"path": "/a//b"}}], "the beginning of a path"),
        ([{"match": {"path": "/a%2Fb"}}], "the beginning of a path"),
        ([{"match": {"path": "/a/%2e%2e/b"}}], "the beginning of a path"),
        ([{"match": {"path": "/a?b"}}], "the beginning of a path"),
        ([{"match": {"methods": ["get"]}}], "a method in capital letters"),
        ([{"match": {"headers": {"Host": "h"}}}], "for Host there is `hosts`"),
        ([{"match": {"headers": {"a b": "h"}}}], "the name of a request header"),
        ([{"match": {"headers": {"a": " h"}}}], "printable ASCII"),
        ([{"match": {"headers": {"a": "h", "A": "h"}}}], "each header once"),
    ],
)
def test_one_line_says_what_to_change(revisions: list[dict[str, Any]], problem: str) -> None:
    problems = problems_of(*revisions)
    assert len(problems) == 1, problems
    assert problem in problems[0]


@pytest.mark.parametrize(
    "revisions",
    [
        [{"match": {"path": "/v1"}}, {"match": {"path": "/v1beta"}}, {}],
        [{"match": {"path": "/v1/chat"}}, {"match": {"path": "/v1"}}],
        [models("llama-3"), models("llama-*"), models("*"), {}],
        [{"match": {"methods": ["GET"]}}, {"match": {"methods": ["GET", "POST"]}}],
        [{"match": {"headers": {"a": "1"}}}, {"match": {"headers": {"a": "2"}}}, {"default": True}],
        [{"weight": 9}, {"weight": 1}],
        [{**models("a"), "weight": 9}, {**models("a"), "weight": 1}, {}],
        [{**models("a"), "aliases": ["b"], "rewrite_model": "a", "default": True}],
        [{"match": {"path": "/a%20b/é:@"}}],
        [{}, {"hosts": ["*"]}, {"hosts": ["*.h"]}],
        [models("a"), {**models("b"), "aliases": ["a"], "hosts": ["h", "other"]}],
    ],
)
def test_what_is_well(revisions: list[dict[str, Any]]) -> None:
    assert problems_of(*revisions) == []


RULES = st.fixed_dictionaries(
    {},
    optional={
        "path": st.sampled_from(["/a", "/a/b", "/ab"]),
        "methods": st.lists(st.sampled_from(["GET", "POST"]), min_size=1, max_size=2, unique=True),
        "headers": st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"]), min_size=1, max_size=2),
        "json": st.fixed_dictionaries(
            {"model": st.lists(st.sampled_from(["a", "ab", "a*", "*"]), min_size=1, max_size=2, unique=True)}
        ),
    },
)
METHODS = ("GET", "POST", "PUT")
MODELS = (None, "a", "ab", "abc", "z")


def meets(rule: dict[str, Any], path: str, method: str, headers: dict[str, str], model: str | None) -> bool:
    prefix = rule.get("path", "")
    names = rule.get("json", {}).get("model", [])
    return (
        (not prefix or path == prefix or path.startswith(prefix + "/"))
        and method in rule.get("methods", METHODS)
        and all(headers.get(name) == value for name, value in rule.get("headers", {}).items())
        and (not names or any(model is not None and _is_named(one, model) for one in names))
    )


def _is_named(pattern: str, model: str) -> bool:
    return model.startswith(pattern[:-1]) if pattern.endswith("*") else model == pattern


@settings(max_examples=400, deadline=None)
@given(st.lists(RULES, min_size=1, max_size=6))
def test_only_what_can_never_match_is_refused(rules: list[dict[str, Any]]) -> None:
    """Against every request that tells these rules apart: a rule that is refused takes none of them."""
    problems = "\n".join(problems_of(*({"match": rule} for rule in rules)))
    headers = [{}, *({"x": value} for value in "123"), *({"x": a, "y": b} for a in "12" for b in "12"), {"y": "1"}]
    for place, rule in enumerate(rules):
        if f"revisions[{place}]." not in problems:
            continue
        for path in ("/", "/a", "/a/b", "/a/b/c", "/ab"):
            for method in METHODS:
                for fields in headers:
                    for model in MODELS:
                        asked = (path, method, fields, model)
                        if meets(rule, *asked):
                            assert any(meets(before, *asked) for before in rules[:place]), (rule, asked)


def test_a_thousand_rules_are_checked_in_a_moment() -> None:
    """A rule is compared with those that could take it, not with all that stand before it."""
    assert problems_of(*(models(f"model-{number}") for number in range(1000))) == []


def test_what_becomes_of_it() -> None:
    match = {"path": "/a%20b/", "strip_path": True, "methods": ["PUT", "GET"], "headers": {"X-B": "1", "X-A": "2"}}
    revisions = [
        revision(0, hosts=["other"]),
        revision(1, match={**match, "json": {"model": ["m", "n*"]}}, aliases=["z"], rewrite_model="m"),
        revision(2, weight=9, split_on={"cookie": "s"}, match={"path": "/w"}),
        revision(3, weight=1, match={"path": "/w"}),
        revision(4, default=True),
    ]
    specs = resolve(parse(json.dumps({"revisions": revisions}), "f", {}), lambda limit: "random")
    assert [spec.routing.order for spec in specs] == [0, 1, 2, 3, 4]
    headers = (("x-a", "2"), ("x-b", "1"))
    assert specs[1].routing.match == MatchSpec("/a%20b", True, ("GET", "PUT"), headers, ("m", "n*"))
    assert (specs[1].routing.aliases, specs[1].routing.rewrite_model) == (("z",), "m")
    assert [spec.routing.weight for spec in specs[2:]] == [9, 1, -1]
    assert specs[2].routing.split_on == "cookie:s"
    assert [spec.routing.default for spec in specs] == [False, False, False, False, True]
    alone = [revision(0, hosts=["a"]), revision(1, hosts=["b"])]
    specs = resolve(parse(json.dumps({"revisions": alone}), "f", {}), lambda limit: "random")
    assert [spec.routing.order for spec in specs] == [0, 0], "what shares no host does not change when others move"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.6", 0.6),
        ("-1e3", -1000.0),
        ("'0.6'", "0.6"),
        ("true", True),
        ('"true"', "true"),
        ("yes", "yes"),
        ("01", "01"),
        ("null", None),
        ("", None),
        ("~", None),
        ('"null"', "null"),
        ("NaN", "NaN"),
        ("TRUE", True),
        ("False", False),
        (".5", 0.5),
        ("-.5e1", -5.0),
        ("1.", 1.0),
        ("+1", 1),
        ("+", "+"),
        (".", "."),
        ("!!str 1", "1"),
        ("\U0001f600", "\U0001f600"),
        ("[1, a, {b: [c]}]", [1, "a", {"b": ["c"]}]),
        ("{enable_thinking: false}", {"enable_thinking": False}),
        ("&x [1]", [1]),
        ("|\n    1", "1\n"),
        ('"\\n\\u00fc"', "\nü"),
    ],
)
def test_a_parameter_is_yaml_and_becomes_json(text: str, expected: Any) -> None:
    config = parse(
        f"revisions:\n- name: a\n  hosts: [a]\n  pods: ['127.0.0.1:1']\n  set_params:\n   p: {text}\n", "f", {}
    )
    (spec,) = resolve(config, lambda _: "random")
    ((name, value),) = spec.params.set
    assert name == "p" and json.loads(value) == expected
