"""Rules for header fields: what pods are sent, what clients are sent."""

from __future__ import annotations

from activator.codec.message import Fields
from activator.config.specs import FieldRulesSpec, FiltersSpec, HeaderRulesSpec
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import World, at_pod, request_head, response_head

RULES = HeaderRulesSpec(
    request=FieldRulesSpec(
        remove=("Cookie",), set=(("X-Tier", "gold"), ("Host", "inner.test")), append=(("X-Seen", "edge"),)
    ),
    response=FieldRulesSpec(remove=("Server",), set=(("X-Frame-Options", "DENY"),), append=(("Vary", "Origin"),)),
)


def test_a_pod_and_a_client_see_the_edits() -> None:
    world = World(filters=FiltersSpec(headers=RULES))
    pool = world.pod()
    head = request_head(Cookie="a=b", X_Tier="iron", X_Seen="before")
    exchange, client = world.begin(head)
    sent = pool.pods[0].head
    assert sent is not None
    pairs = sent.headers.pairs()
    assert (b"X-Tier", b"gold") in pairs and b"iron" not in sent.headers.block
    assert sent.headers.get(b"cookie") is None
    assert [value for name, value in pairs if name == b"X-Seen"] == [b"before", b"edge"]
    assert (sent.headers.get(b"host"), sent.authority) == (b"inner.test", b"inner.test")
    assert head.headers.get(b"cookie") == b"a=b", "the client's own head is never changed"

    answer = response_head(200, 0)
    answer.headers = Fields.from_pairs([(b"Server", b"pod"), (b"Vary", b"Accept"), (b"x-frame-options", b"ALLOW")])
    at_pod(exchange).response_head(answer)
    at_pod(exchange).response_end([])
    assert client.fields == {"vary": "Origin", "x-frame-options": "DENY"}
    assert client.pairs.count((b"Vary", b"Accept")) == client.pairs.count((b"Vary", b"Origin")) == 1
    world.check_idle()


def test_each_attempt_is_edited_once() -> None:
    world = World(filters=FiltersSpec(headers=RULES))
    world.pod("p1", reused=True)
    second = world.pod("p2")
    exchange, _ = world.begin(request_head())
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True)
    (pod,) = second.pods
    assert pod.head is not None
    assert pod.head.headers.block.count(b"X-Seen: edge") == 1
    world.answer(exchange)
    world.check_idle()


def test_a_revision_without_rules_has_no_filter() -> None:
    assert World().throttler.filters is None
