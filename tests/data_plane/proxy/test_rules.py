"""Rules of hosts: the index against a walk through the file, paths as pods read them, splits, and lists of models."""

from __future__ import annotations

import json
import os
from collections import Counter
from itertools import pairwise
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from activator.codec.message import RequestHead
from activator.config.specs import MatchSpec, RevisionSpec, RoutingSpec
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.proxy.model_lists import LONG_LIST, LONG_LIST_KEPT_S, lists_of
from activator.data_plane.proxy.routing import Router
from activator.data_plane.proxy.rules import MATCHED, NEEDS_MODEL, UNMATCHED, RouteQuery
from activator.data_plane.proxy.selection import Selection
from activator.data_plane.proxy.split import Split
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.url_path import for_comparison, is_plain, normal_prefix, other_reading, to_send, without_segments
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import NOT_READY, PENDING, READY
from tests.data_plane.proxy.proxy_fakes import Client, request_head
from tests.data_plane.throttle.throttle_fakes import Heard
from tests.manual_clock import ManualClock

DEEP = os.environ.get("ACTIVATOR_DEEP") == "1"


def throttler(key: str, *hosts: str, **routing: Any) -> RevisionThrottler:
    clock = ManualClock()
    table = TrackerTable(create("random", Rng(1)))
    made = RevisionSpec(key=f"ns/{key}", routing=RoutingSpec(hosts, **routing))
    return RevisionThrottler(made, table, clock.now, clock.defer, Heard(), 1)


def router_of(*throttlers: RevisionThrottler) -> Router:
    router = Router(False)
    for one in throttlers:
        router.set(one)
    return router


def asked(target: str = "/", method: str = "GET", host: str = "a.test", **fields: Any) -> RequestHead:
    head = request_head(method, host, **fields)
    head.target = target.encode("latin-1")
    return head


def choose(router: Router, head: RequestHead, model: str | None = None, has_body: bool = True) -> str:
    """The name of the revision; `!` where the path is refused."""
    plain = router.by_host(head.authority)
    if plain is not None:
        return plain.spec.key.removeprefix("ns/")
    rules = router.rules_of(head.authority)
    if rules is None:
        return ""
    query = RouteQuery(head)
    query.read_path(rules)
    if query.refusal:
        return "!"
    query.model_known = not has_body
    state = rules.decide(query)
    if state == NEEDS_MODEL:
        query.model_known = True
        query.has_model = model is not None
        query.model = model or ""
        state = rules.decide(query)
        assert state != NEEDS_MODEL
    if state == UNMATCHED:
        return ""
    assert state == MATCHED and query.target is not None
    return query.target.pick(head, Client()).spec.key.removeprefix("ns/")


# --- the index ---

PATHS = ["", "/a", "/a/b", "/a/b/c", "/ab", "/b"]
METHODS = ["GET", "POST", "PUT"]
MODELS = ["x", "xy", "xyz", "z", "x*", "xy*", "*"]
HOSTS = ["a.test", "*.test", "*.b.test", "*", "x.b.test"]
HEADERS = [("x-one", "1"), ("x-one", "2"), ("x-two", "1"), ("x-three", "1")]


def one_value_each(headers: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(dict(headers).items()))


MATCHES = st.builds(
    MatchSpec,
    path=st.sampled_from(PATHS),
    methods=st.lists(st.sampled_from(METHODS), max_size=2, unique=True).map(tuple),
    headers=st.lists(st.sampled_from(HEADERS), max_size=3).map(one_value_each),
    models=st.lists(st.sampled_from(MODELS), max_size=2, unique=True).map(tuple),
)
SPECS = st.lists(st.tuples(st.sets(st.sampled_from(HOSTS), min_size=1), MATCHES, st.booleans()), max_size=12)
TARGETS = st.sampled_from(["/", "/a", "/a/", "/a?b", "/a/b/c/d", "/a/b?/c", "/ab", "/abc", "/b/a", "/c", "/a/bc"])


def levels_of(host: str) -> list[str]:
    labels = host.split(".")
    return [host, *("*." + ".".join(labels[place:]) for place in range(1, len(labels))), "*"]


def is_met(match: MatchSpec, path: str, method: str, headers: dict[str, str], model: str | None) -> bool:
    if match.path and path != match.path and not path.startswith(match.path + "/"):
        return False
    if match.methods and method not in match.methods:
        return False
    if any(headers.get(name) != value for name, value in match.headers):
        return False
    if not match.models:
        return True
    return model is not None and any(
        model.startswith(one[:-1]) if one.endswith("*") else model == one for one in match.models
    )


def walk(
    specs: list[RevisionSpec], host: str, path: str, method: str, headers: dict[str, str], model: str | None
) -> str:
    """What the documentation says, without an index."""
    for level in levels_of(host):
        for spec in specs:
            routing = spec.routing
            only_default = routing.default and routing.match.is_every()
            if level in routing.hosts and not only_default and is_met(routing.match, path, method, headers, model):
                return spec.key.removeprefix("ns/")
    for level in levels_of(host):
        for spec in specs:
            if level in spec.routing.hosts and spec.routing.default:
                return spec.key.removeprefix("ns/")
    return ""


@settings(max_examples=20_000 if DEEP else 150, deadline=None)
@given(
    SPECS,
    st.permutations(range(12)),
    st.sampled_from(["a.test", "b.test", "x.b.test", "y.b.test", "test", "other"]),
    TARGETS,
    st.sampled_from(METHODS),
    st.lists(st.sampled_from(HEADERS), max_size=3).map(dict),
    st.none() | st.sampled_from(["x", "xy", "xyzz", "z", "q", ""]),
)
def test_the_index_finds_what_a_walk_through_the_file_finds(
    specs: list[tuple[set[str], MatchSpec, bool]],
    arrival: list[int],
    host: str,
    target: str,
    method: str,
    headers: dict[str, str],
    model: str | None,
) -> None:
    made = [
        throttler(str(place), *sorted(hosts), match=match, default=default, order=place)
        for place, (hosts, match, default) in enumerate(specs)
    ]
    router = Router(False)
    for place in arrival:  # revisions come in any order, and again
        if place < len(made):
            router.set(made[place])
            choose(router, asked(target, method, host))
    for one in made[::2]:
        router.drop(one.key)
        router.set(one)
    path = target.partition("?")[0]
    expected = walk([one.spec for one in made], host, path, method, headers, model)
    head = asked(target, method, host, **{name.replace("-", "_"): value for name, value in headers.items()})
    assert choose(router, head, model) == expected
    for one in made:
        router.drop(one.key)
    assert choose(router, head, model) == ""
    assert not router._hosts and router._suffixes == 0


def test_the_body_is_read_only_where_it_decides() -> None:
    router = router_of(
        throttler("post", "a.test", order=0, match=MatchSpec(path="/v1", methods=("POST",), models=("x",))),
        throttler("rest", "a.test", order=1, match=MatchSpec(path="/v1")),
        throttler("late", "a.test", order=2, match=MatchSpec(models=("y",))),
    )
    rules = router.rules_of(b"a.test")
    assert rules is not None

    def state(target: str, method: str) -> int:
        query = RouteQuery(asked(target, method))
        query.read_path(rules)
        return rules.decide(query)

    assert state("/v1/x", "GET") == MATCHED, "the first rule is for POST, and the second hides the third"
    assert state("/v1/x", "POST") == NEEDS_MODEL
    assert state("/other", "GET") == NEEDS_MODEL
    assert choose(router, asked("/other"), has_body=False) == ""


def test_a_host_of_one_revision_needs_no_rules() -> None:
    router = router_of(
        throttler("one", "one.test"), throttler("two", "two.test", match=MatchSpec(path="/x")), throttler("all", "*")
    )
    assert router.by_host(b"one.test") is not None
    assert router.by_host(b"two.test") is None
    assert choose(router, asked("/x", host="two.test")) == "two"
    assert choose(router, asked("/y", host="two.test")) == "all", "less specific hosts follow"


@pytest.mark.parametrize("authority", [".test", "a.test", "a.test.", "a.test:80"])
def test_spellings_of_a_host_lead_to_the_same_rules(authority: str) -> None:
    router = router_of(throttler("suffix", "*.test", match=MatchSpec(path="/x")))
    head = asked("/x")
    head.authority = authority.encode()
    assert choose(router, head) == "suffix"


def test_headers_that_connection_names_count_and_the_first_of_several() -> None:
    router = router_of(throttler("ml", "a.test", match=MatchSpec(headers=(("x-team", "ml"),))))
    assert choose(router, asked(X_Team="ml")) == "ml"
    assert choose(router, asked(X_Team=" ml\t")) == "ml"
    assert choose(router, asked(X_Team="ML")) == ""
    assert choose(router, asked(X_Team="ml, ml")) == ""
    assert choose(router, asked(X_Team="ml", Connection="x-team")) == "ml"
    assert choose(router, asked(x_team="ml", X_Team="other")) == "ml"
    assert choose(router, asked(X_Team="other", x_team="ml")) == ""


# --- paths ---


@pytest.mark.parametrize(
    ("path", "sent", "compared"),
    [
        ("/a/../b", "/b", "/b"),
        ("/a/%2e%2E/b", "/b", "/b"),
        ("/../../b", "/b", "/b"),
        ("/a/./b/.", "/a/b/", "/a/b/"),
        ("//a///b//", "/a/b/", "/a/b/"),
        ("/a/..", "/", "/"),
        ("/a/b/..", "/a/", "/a/"),
        ("/%61%2fb", "/a%2Fb", "/a%2Fb"),
        ("/a%40b%20c", "/a%40b%20c", "/a@b%20c"),
        ("/%zz%", "/%zz%", "/%zz%"),
        ("/%252e", "/%252e", "/%252e"),
        ("/...", "/...", "/..."),
        ("/.a", "/.a", "/.a"),
    ],
)
def test_normal_paths(path: str, sent: str, compared: str) -> None:
    assert to_send(path.encode()) == sent.encode()
    assert for_comparison(path.encode()) == compared.encode()


def read_by_a_pod(path: bytes, slashes: bool) -> list[bytes]:
    """The segments that a server sees: decoded, then resolved. `slashes`: an encoded slash is one."""
    if slashes:
        path = unquote_to_bytes(path).replace(b"\\", b"/")
        segments = [segment.partition(b";")[0] for segment in path.split(b"/")]
    else:
        segments = [unquote_to_bytes(segment) for segment in path.split(b"/")]
    found: list[bytes] = []
    for segment in segments:
        if segment == b"..":
            found = found[:-1]
        elif segment not in {b"", b"."}:
            found.append(segment)
    return found


PIECES = ["/", "/", "..", ".", "a", "b", "%2e", "%2E", "%61", "%2f", "%5C", ";", "%3b", ";x", "%25", "%00", "c", "//"]


@settings(max_examples=30_000 if DEEP else 400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12))
@example(["a", "/", "..", ";", "/", "b"])
@example(["c", "%2f", "..", "/", "a"])
@example(["a", "%2f", "/", "%2f", "/", ".."])
def test_no_path_selects_another_revision_than_its_pod_would(pieces: list[str]) -> None:
    """Whatever a server makes of the path that it is sent: it does not lie behind another rule's prefix."""
    router = router_of(
        throttler("ab", "a.test", order=0, match=MatchSpec(path="/a/b")),
        throttler("a", "a.test", order=1, match=MatchSpec(path="/a")),
        throttler("rest", "a.test", order=2),
    )
    target = "/" + "".join(pieces)
    rules = router.rules_of(b"a.test")
    assert rules is not None
    head = asked(target)
    edits = HeadEdits()
    selection = Selection(rules, head, edits, 100)
    selection.begin_scan_if_needed(None, True)
    found = selection.select_revision(Client())
    if found is None:
        assert "%" in target or ";" in target, "only what can be read in two ways is refused"
        return
    sent = edits.apply(head).target
    for slashes in (False, True):
        if slashes and b"%25" in sent:
            continue  # nobody decodes twice
        segments = read_by_a_pod(sent, slashes)
        expected = "ns/ab" if segments[:2] == [b"a", b"b"] else "ns/a" if segments[:1] == [b"a"] else "ns/rest"
        assert found.key == expected, (target, sent, segments)


def test_a_plain_path_is_sent_as_it_is_and_others_only_where_rules_look_at_paths() -> None:
    for path in (b"/", b"/a/b", b"/a.b/c", b"/a...b"):
        assert is_plain(path) and to_send(path) == path == for_comparison(path) == other_reading(path)
    router = router_of(throttler("m", "a.test", match=MatchSpec(methods=("GET",))))
    rules = router.rules_of(b"a.test")
    assert rules is not None
    head = asked("/a/../b//c%2f")
    edits = HeadEdits()
    selection = Selection(rules, head, edits, 100)
    assert not selection.begin_scan_if_needed(None, True)
    assert selection.select_revision(Client()) is not None
    assert edits.apply(head) is head


@pytest.mark.parametrize(
    ("prefix", "target", "sent", "told"),
    [
        ("/v1", "/v1", b"/", b"/v1"),
        ("/v1", "/v1?x=/v1", b"/?x=/v1", b"/v1"),
        ("/v1", "/v1/", b"/", b"/v1"),
        ("/v1", "/v1/chat/x?y", b"/chat/x?y", b"/v1"),
        ("/v1/", "/v1//chat", b"/chat", b"/v1"),
        ("/a/b", "/a/%62/..%2e/c", b"/..%2E/c", b"/a/b"),
        ("/a/b", "/a/x/../b/c%2Fd", b"/c%2Fd", b"/a/b"),
        ("/é", "/%c3%a9/x", b"/x", b"/%C3%A9"),
    ],
)
def test_a_prefix_is_stripped(prefix: str, target: str, sent: bytes, told: bytes) -> None:
    match = MatchSpec(path=normal_prefix(prefix).decode(), strip_path=True)
    rules = router_of(throttler("v1", "a.test", match=match)).rules_of(b"a.test")
    assert rules is not None
    head = asked(target)
    edits = HeadEdits()
    selection = Selection(rules, head, edits, 100)
    assert not selection.begin_scan_if_needed(None, True)
    assert selection.select_revision(Client()) is not None, selection.detail
    if b"..%2E" in sent:
        sent = b"/..." + sent[6:]
    assert edits.apply(head).target == sent
    assert edits.apply(head).headers.get(b"x-forwarded-prefix") == told
    assert head.target == target.encode(), "logs and rules of queues see what was asked for"


def test_a_trusted_proxys_prefix_comes_before_ours() -> None:
    match = MatchSpec(path="/b", strip_path=True)
    rules = router_of(throttler("b", "a.test", match=match)).rules_of(b"a.test")
    assert rules is not None
    head = asked("/b/c")
    head.headers = head.headers.with_line(b"X-Forwarded-Prefix", b"/a/")
    edits = HeadEdits()
    selection = Selection(rules, head, edits, 100)
    selection.begin_scan_if_needed(None, True)
    selection.select_revision(Client())
    assert [pair for pair in edits.apply(head).headers.pairs() if pair[0] == b"X-Forwarded-Prefix"] == [
        (b"X-Forwarded-Prefix", b"/a/b")
    ]


def test_segments_are_counted() -> None:
    assert without_segments(b"/a/b/c", 2) == b"/c"
    assert without_segments(b"/a/b", 2) == b"/"
    assert without_segments(b"/a/b/", 2) == b"/"


# --- splits ---


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any), st.integers(0, 200))
def test_a_split_is_exact(weights: list[int], skipped: int) -> None:
    """Of any requests in a row, as many as the weights sum up to."""
    split = Split([throttler(str(place), weight=weight) for place, weight in enumerate(weights)])
    head, client = asked(), Client()
    for _ in range(skipped):
        split.pick(head, client)
    counts = Counter(split.pick(head, client).key for _ in range(3 * sum(weights)))
    assert counts == Counter({f"ns/{place}": 3 * weight for place, weight in enumerate(weights) if weight})


def test_turns_are_spread() -> None:
    split = Split([throttler("a", weight=90), throttler("b", weight=10)])
    places = [place for place in range(300) if split.pick(asked(), Client()).key == "ns/b"]
    gaps = {after - before for before, after in pairwise(places)}
    assert len(places) == 30 and min(gaps) >= 5 and max(gaps) <= 20


def test_a_key_stays_and_few_go_when_weights_change() -> None:
    def keyed(first: int) -> Split:
        return Split([throttler("a", weight=first, split_on="header:X-User"), throttler("b", weight=100 - first)])

    before, after, again = keyed(90), keyed(80), keyed(90)
    heads = [asked(X_User=f"user-{number}") for number in range(20_000)]
    first = [before.pick(head, Client()).key for head in heads]
    assert [again.pick(head, Client()).key for head in reversed(heads)] == first[::-1]
    second = [after.pick(head, Client()).key for head in heads]
    assert abs(first.count("ns/b") / 20_000 - 0.1) < 0.01
    assert abs(second.count("ns/b") / 20_000 - 0.2) < 0.01
    assert {pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]} == {("ns/a", "ns/b")}
    turns = Counter(before.pick(asked(), Client()).key for _ in range(1000))
    assert turns == {"ns/a": 900, "ns/b": 100}, "without a key they take turns"


def test_keys_are_cookies_and_addresses_too() -> None:
    weights = {"weight": 50}
    cookies = Split([throttler("a", **weights, split_on="cookie:s"), throttler("b", **weights)])
    chosen = {cookies.pick(asked(Cookie=f"x=1; s={number}"), Client()).key for number in range(50)}
    assert chosen == {"ns/a", "ns/b"}
    assert len({cookies.pick(asked(Cookie="s=7"), Client()).key for _ in range(50)}) == 1
    address = Split([throttler("a", **weights, split_on="client_ip"), throttler("b", **weights)])
    assert len({address.pick(asked(), Client()).key for _ in range(50)}) == 1


def test_revisions_of_one_rule_share_it_and_one_that_is_alone_takes_all() -> None:
    match = MatchSpec(path="/x")
    old = throttler("old", "a.test", match=match, weight=3)
    new = throttler("new", "a.test", match=match, weight=1, order=1)
    router = router_of(old, new, throttler("rest", "a.test", order=2))
    counts: Counter[str] = Counter()
    rules = router.rules_of(b"a.test")
    assert rules is router.rules_of(b"a.test")
    counts.update(choose(router, asked("/x")) for _ in range(400))
    assert counts == {"old": 300, "new": 100}
    router.drop("ns/old")
    assert {choose(router, asked("/x")) for _ in range(10)} == {"new"}
    assert choose(router, asked("/y")) == "rest"


# --- lists ---


def test_lists_of_models() -> None:
    revisions = [
        throttler("a", "h", match=MatchSpec(models=("llama-3", "llama-*")), aliases=("gpt-4o", "org/m")),
        throttler("b", "h", match=MatchSpec(path="/b", strip_path=True, models=("qwen", "llama-3"))),
        throttler("c", "h", match=MatchSpec(path="/c", models=("gemma", "llama-3"))),
        throttler("d", "h"),
    ]
    found = {path: json.loads(one.body(0.0)) for path, one in lists_of(revisions).items()}
    assert {path for path in found if b"/models/" not in path} == {
        b"/v1/models", b"/api/tags", b"/b/v1/models", b"/b/api/tags",
    }  # fmt: skip
    assert found[b"/b/v1/models/qwen"]["id"] == "qwen" and b"/v1/models/qwen" not in found
    assert found[b"/v1/models/org/m"] == found[b"/v1/models/org%2Fm"]
    assert found[b"/v1/models"]["object"] == "list"
    assert [(one["id"], one["owned_by"]) for one in found[b"/v1/models"]["data"]] == [
        ("llama-3", "ns"),
        ("gpt-4o", "ns"),
        ("org/m", "ns"),
        ("gemma", "ns"),
    ]
    assert [one["id"] for one in found[b"/b/v1/models"]["data"]] == ["qwen", "llama-3"]
    assert all(one["name"] == one["model"] for one in found[b"/api/tags"]["models"])
    assert lists_of(revisions[3:]) == {}


def test_the_status_of_a_model_is_that_of_its_best_revision() -> None:
    first, second = (throttler(key, "h", match=MatchSpec(path=f"/{key}", models=("m",))) for key in "ab")
    lists = lists_of([first, second])

    def status() -> str:
        listed = json.loads(lists[b"/v1/models"].body(5.0))["data"]
        assert listed == [json.loads(lists[b"/v1/models/m"].body(5.0))]
        found: str = listed[0]["status"]["value"]
        return found

    assert status() == "unloaded"
    first.queue.set_failure("it ended", 1.0)
    assert status() == "failed"
    pod = second.table.add("p", "127.0.0.1:1", 1, PENDING)
    assert pod is not None and status() == "loading"
    second.table.set_state(pod, READY)
    assert status() == "loaded"
    second.table.set_state(pod, NOT_READY)
    assert status() == "failed"
    first.queue.set_failure("", 0.0)
    assert status() == "unloaded"


def test_a_long_list_is_not_made_anew_for_each_request() -> None:
    models = tuple(f"m{number}" for number in range(LONG_LIST))
    revision = throttler("a", "h", match=MatchSpec(models=models))
    listed = lists_of([revision])[b"/v1/models"]
    first = listed.body(5.0)
    assert len(json.loads(first)["data"]) == LONG_LIST and listed.body(5.0 + LONG_LIST_KEPT_S / 2) is first
    assert revision.table.add("p", "127.0.0.1:1", 1, READY) is not None
    assert b"loaded" in first and b'"loaded"' not in first
    assert listed.body(5.0 + LONG_LIST_KEPT_S).count(b'"loaded"') == LONG_LIST
