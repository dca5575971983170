"""Edits of a head against the plain way: pair by pair. And the head itself, which no edit changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from activator.codec.message import Fields, Headers, RequestHead
from activator.data_plane.headers.edits import HeadEdits

NAMES = st.sampled_from([b"Host", b"HOST", b"accept", b"Accept", b"A", b"x-a", b"X-B", b"!odd"])
VALUES = st.sampled_from([b"", b"1", b"a: b", b"\xff"])
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=8)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("remove"), NAMES, NAMES),
        st.tuples(st.just("set"), NAMES, VALUES),
        st.tuples(st.just("append"), NAMES, VALUES),
    ),
    max_size=6,
)


def head_of(pairs: Headers) -> RequestHead:
    head = RequestHead(b"PUT", b"/a?b", b"app.test", Fields.from_pairs(pairs), 5, True)
    head.upgrade = b"websocket"
    head.headers.never_indexed = frozenset({b"A: 1\r\n"})
    return head


def expected(pairs: Headers, changes: list[tuple[str, bytes, bytes]]) -> Headers:
    for kind, name, value in changes:
        if kind == "append":
            pairs = [*pairs, (name, value)]
            continue
        gone = {name.lower(), value.lower()} if kind == "remove" else {name.lower()}
        places = [place for place, pair in enumerate(pairs) if pair[0].lower() in gone]
        kept = [pair for pair in pairs if pair[0].lower() not in gone]
        if kind == "set":
            kept.insert(places[0] if places else 0, (name, value))
        pairs = kept
    return pairs


def edits_of(changes: list[tuple[str, bytes, bytes]], edits: HeadEdits) -> HeadEdits:
    for kind, name, value in changes:
        if kind == "remove":
            edits.remove(frozenset({name.lower(), value.lower()}))
        elif kind == "set":
            edits.set(name, value)
        else:
            edits.append(name, value)
    return edits


@given(PAIRS, CHANGES, CHANGES)
def test_edits_are_applied_in_order_to_each_attempt_anew(
    pairs: Headers, changes: list[tuple[str, bytes, bytes]], more: list[tuple[str, bytes, bytes]]
) -> None:
    head = head_of(pairs)
    edits = edits_of(changes, HeadEdits())
    first = edits_of(more, edits.copy()).apply(head)
    assert first.headers.pairs() == expected(pairs, changes + more)
    for _ in range(2):
        assert edits.apply(head).headers.pairs() == expected(pairs, changes), "what one attempt adds is its own"
    assert head.headers.pairs() == pairs
    assert first.headers.never_indexed == head.headers.never_indexed


@given(PAIRS, st.lists(st.sampled_from([b"host", b"accept", b"a", b"x-a", b"x"]), min_size=1, max_size=3))
def test_a_single_removal_is_that_of_all_lines_of_these_names(pairs: Headers, names: list[bytes]) -> None:
    edits = HeadEdits()
    edits.remove(frozenset(names))
    assert edits.apply(head_of(pairs)).headers.pairs() == [pair for pair in pairs if pair[0].lower() not in names]


def test_without_edits_it_is_the_same_head() -> None:
    head = head_of([])
    assert HeadEdits().apply(head) is head


def test_what_is_no_field() -> None:
    head = head_of([(b"Host", b"app.test")])
    edits = HeadEdits()
    edits.set_target(b"/other")
    edits.set_host(b"10.0.0.1:80")
    edits.set_upgrade(b"")
    edits.set_content_length(7)
    made = edits.apply(head)
    assert (made.target, made.authority, made.upgrade, made.content_length) == (b"/other", b"10.0.0.1:80", b"", 7)
    assert made.headers.pairs() == [(b"Host", b"10.0.0.1:80")]
    assert (made.method, made.has_body) == (b"PUT", True)
    assert (head.target, head.authority, head.upgrade, head.content_length) == (b"/a?b", b"app.test", b"websocket", 5)


def test_a_copy_has_every_attribute() -> None:
    """Those of plain Python are listed by themselves; compiled, the class has the same."""
    head = head_of([])
    names = getattr(head, "__dict__", dict.fromkeys(ATTRIBUTES))
    assert sorted(names) == sorted(ATTRIBUTES)
    for name in ("upgrade", "named", "entry", "traceparent"):
        setattr(head, name, name.encode())
    head.has_internal = head.takes_trailers = True
    head.claims = [b"a"]
    head.needs_key = False
    copied = head.copy()
    assert copied is not head
    for name in ATTRIBUTES:
        assert getattr(copied, name) == getattr(head, name), name


ATTRIBUTES = (
    "method", "target", "authority", "headers", "content_length", "has_body", "upgrade", "named", "claims",
    "has_internal", "takes_trailers", "entry", "traceparent", "needs_key",
)  # fmt: skip


@given(PAIRS, CHANGES)
def test_trailers_have_no_field_that_was_removed_or_set(
    trailers: Headers, changes: list[tuple[str, bytes, bytes]]
) -> None:
    edits = edits_of(changes, HeadEdits())
    gone = set[bytes]()
    for kind, name, value in changes:
        gone |= {name.lower(), value.lower()} if kind == "remove" else {name.lower()} if kind == "set" else set()
    assert edits.trailers(trailers) == [pair for pair in trailers if pair[0].lower() not in gone]
    other = [(name.replace(b"-", b"_"), value) for name, value in trailers]
    assert len(edits.trailers(other)) == len(edits.trailers(trailers))
