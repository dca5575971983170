"""What Knative's parts hear from the activator; the numbers are those of tests/knative_contract.md."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.codec.message import Fields
from activator.config.specs import QueueSpec, RoutingSpec, TimeoutsSpec
from activator.data_plane.filters.knative import KnativeFilter
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.headers.knative import KnativeDialect
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.proxy.routing import Router
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import Client, Pool, World, at_pod, request_head, response_head


class KnativeWorld(World):
    def __init__(self, passes_through: bool = False, **spec: Any) -> None:
        super().__init__(**spec)
        self.unhealthy = ""
        self.dialect = KnativeDialect(lambda _target: self.unhealthy, "cluster.local", passes_through)
        self.share(KnativeFilter(self.dialect))
        self.proxy.router = self.router = Router(True)
        self.router.set(self.throttler)

    def ask(self, method: str = "GET", host: str = "app.test", **fields: Any) -> Client:
        _, client = self.begin(request_head(method, host, **fields))
        return client

    def sent(self, **fields: Any) -> dict[str, list[str]]:
        """The fields that the pod gets, by lowered name."""
        pool = self.pod()
        exchange, _ = self.begin(request_head(**fields))
        found = fields_of(pool)
        self.answer(exchange)
        return found


def fields_of(pool: Pool) -> dict[str, list[str]]:
    head = pool.pods[-1].head
    assert head is not None
    found: dict[str, list[str]] = {}
    for name, value in head.headers.pairs():
        found.setdefault(name.decode().lower(), []).append(value.decode())
    return found


NAMES = [
    "Host", "HOST", "Hosts", "User-Agent", "Cookie", "K", "K-Other", "K-Proxy-Request", "K-Original-Host",
    "k-network-hash", "Knative-Serving-Namespace", "knative-serving-revision",
]  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["", "a", "b c", "x kube-probe/1", "a:b"])), max_size=9)
)
def test_what_is_for_pods_is_what_came_without_what_is_for_us(fields: list[tuple[str, str]]) -> None:
    """The walk over the bytes against the plain way: line by line."""
    head = request_head()
    head.headers = Fields.from_pairs([(name.encode(), value.encode()) for name, value in fields])
    hosts = [value for name, value in fields if name.lower() == "host"]
    originals = [value for name, value in fields if name.lower() == "k-original-host"]
    has_original = bool(originals and originals[0])
    gone = {"k-proxy-request", "k-network-hash", "knative-serving-namespace", "knative-serving-revision"}
    if not has_original:
        gone.add("k-original-host")
    kept: list[tuple[str, str]] = []
    for name, value in fields:
        if name.lower() == "host":
            if not any(one.lower() == "host" for one, _ in kept):
                kept.append(("Host", "10.0.0.1:80"))
        elif name.lower() not in gone:
            kept.append((name, value))
    if not hosts:
        kept.insert(0, ("Host", "10.0.0.1:80"))
    if not has_original:
        kept.append(("K-Original-Host", hosts[-1] if hosts else "app.test"))
    kept.append(("K-Proxy-Request", "activator"))
    dialect = KnativeDialect(lambda _target: "", "cluster.local")
    edits = HeadEdits()
    found = dialect.fields_of(head)
    found.edit(edits)
    dialect.edit(edits, "10.0.0.1:80", "ns/app")
    sent = edits.apply(head)
    assert sent.headers.pairs() == [(name.encode(), value.encode()) for name, value in kept]
    assert sent.authority == b"10.0.0.1:80" and head.authority == b"app.test"


# --- probes ---


@pytest.mark.parametrize("fields", [{"User-Agent": "kube-probe/1.34"}, {"K-Kubelet-Probe": "queue"}])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_a_kubelet_is_answered_and_not_counted(fields: dict[str, str], method: str) -> None:
    world = KnativeWorld()
    client = world.ask(method, "10.0.0.9:8012", **fields)
    assert (client.status, client.body, client.ended) == (200, b"", True)
    world.unhealthy = "connection has not yet been established"
    client = world.ask("GET", **fields)
    assert (client.status, client.body) == (500, b"connection has not yet been established\n")
    assert (
        world.proxy.unrouted_total == 0
        and world.throttler.counters.requests_total == 0
        and world.dialect.probes_total == 2
    )
    world.check_idle()


def test_other_agents_are_requests() -> None:
    world = KnativeWorld()
    world.pod()
    exchange, client = world.begin(request_head(User_Agent="curl/8 kube-probe/1"))
    world.answer(exchange)
    assert client.status == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_autoscaler_asks_whether_the_activator_stands_in_the_path(method: str) -> None:
    client = KnativeWorld().ask(method, "hello.default.svc.cluster.local:80", K_Network_Probe="activator")
    assert (client.status, client.body) == (200, b"activator")


def test_a_connection_that_carries_probes_is_idle_since_the_last_of_them() -> None:
    world = KnativeWorld()
    world.clock.pass_time(100.0)
    exchange, _ = world.begin(request_head(K_Network_Probe="activator"))
    assert exchange.done_s == world.clock.now_s, "where its connection begins to count"


@pytest.mark.parametrize("value", ["queue", "other", 'a"b<c'])
def test_other_probes_are_refused(value: str) -> None:
    client = KnativeWorld().ask(K_Network_Probe=value)
    shown = value.replace('"', "&#34;").replace("<", "&lt;")
    assert (client.status, client.body) == (400, f'unexpected probe header value: "{shown}"\n'.encode())


def test_an_empty_probe_header_is_none() -> None:
    world = KnativeWorld()
    pool = world.pod()
    world.begin(request_head(K_Network_Probe=""))
    assert len(pool.pods) == 1


def test_the_ingress_asks_with_a_hash() -> None:
    world = KnativeWorld()
    assert world.ask(K_Network_Probe="probe", K_Network_Hash="abc").status == 200
    client = world.ask(K_Network_Probe="probe")
    assert client.status == 400
    assert client.body == b'a probe request must contain a non-empty "K-Network-Hash" header\n'
    assert "k-network-hash" not in KnativeWorld().sent(K_Network_Hash="abc")


# --- which revision ---


def test_a_revision_is_named_by_headers_or_by_host() -> None:
    world = KnativeWorld(routing=RoutingSpec(hosts=("app.ns.svc.cluster.local",)))
    pool = world.pod(limit=10)
    world.begin(request_head(host="x.test", Knative_Serving_Namespace="ns", Knative_Serving_Revision="app"))
    world.begin(request_head(host="app.ns.svc.cluster.local"))
    world.begin(request_head(host="app.ns.svc.cluster.local:8012"))
    assert len(pool.pods) == 3


def test_what_connection_names_is_heard_and_not_passed_on() -> None:
    """Hop by hop means: for us. Knative's activator, too, looks before it takes anything out."""
    names = "knative-serving-revision, Knative-Serving-Namespace, K-Original-Host, X-Other"
    fields = {"Knative_Serving_Namespace": "ns", "Knative_Serving_Revision": "app", "K_Original_Host": "forged"}
    found = KnativeWorld().sent(host="x.test", Connection=names, X_Other="a", X_Stays="b", **fields)
    assert found["k-original-host"] == ["x.test"]
    assert found["x-stays"] == ["b"] and not {"knative-serving-revision", "x-other", "connection"} & set(found)
    fields["Knative_Serving_Revision"] = "gone"
    client = KnativeWorld().ask("GET", "app.test", Connection=names, **fields)
    assert client.body == b'Error getting active endpoint: revision.serving.knative.dev "gone" not found\n'
    probes: list[tuple[dict[str, str], bytes]] = [
        ({"User_Agent": "kube-probe/1.34"}, b""),
        ({"K_Kubelet_Probe": "queue"}, b""),
        ({"K_Network_Probe": "activator"}, b"activator"),
        ({"K_Network_Probe": "probe", "K_Network_Hash": "x"}, b""),
    ]
    for probe, body in probes:
        client = KnativeWorld().ask(Connection=", ".join(probe).replace("_", "-"), **probe)
        assert (client.status, client.body) == (200, body), probe
    pool_of = KnativeWorld().sent(Connection="User-Agent, K-Proxy-Request", User_Agent="curl/8")
    assert "user-agent" not in pool_of and pool_of["k-proxy-request"] == ["activator"]


@pytest.mark.parametrize(
    ("host", "fields", "name"),
    [
        ("x.test", {"Knative_Serving_Namespace": "ns", "Knative_Serving_Revision": "gone"}, "gone"),
        ("gone.ns.svc.cluster.local:80", {}, "gone"),
        ("x.test", {}, ""),
        # Headers that name a revision decide, whatever the host says.
        ("app.test", {"Knative_Serving_Namespace": "ns", "Knative_Serving_Revision": "gone"}, "gone"),
    ],
)
def test_an_unknown_revision(host: str, fields: dict[str, str], name: str) -> None:
    client = KnativeWorld().ask("GET", host, **fields)
    text = f'Error getting active endpoint: revision.serving.knative.dev "{name}" not found\n'
    assert (client.status, client.body) == (404, text.encode())


# --- to the pod ---


def test_the_pod_hears_its_own_address_and_the_clients_host() -> None:
    fields = KnativeWorld().sent(
        host="hello.example.com:8080",
        Knative_Serving_Namespace="ns",
        Knative_Serving_Revision="app",
        K_Proxy_Request="me",
        Te="trailers",
        X="1",
    )
    assert fields["host"] == ["10.0.0.1:80"]
    assert fields["k-original-host"] == ["hello.example.com:8080"]
    assert fields["k-proxy-request"] == ["activator"]
    assert fields["te"] == ["trailers"] and fields["x"] == ["1"]
    assert not {"knative-serving-namespace", "knative-serving-revision"} & set(fields)


def test_no_user_agent_is_made_up() -> None:
    assert "user-agent" not in KnativeWorld().sent()
    assert KnativeWorld().sent(User_Agent="curl/8")["user-agent"] == ["curl/8"]


def test_an_original_host_that_is_there_stays() -> None:
    assert KnativeWorld().sent(K_Original_Host="first.test")["k-original-host"] == ["first.test"]


def test_the_host_goes_on_as_the_client_has_written_it() -> None:
    """Names know no case, but who signs a request signs what is written."""
    assert KnativeWorld().sent(host="App.Test:80")["k-original-host"] == ["App.Test:80"]


def test_an_empty_original_host_is_none() -> None:
    """Else queue-proxy would put nothing back, and the program would see its pod's address as its host."""
    assert KnativeWorld().sent(K_Original_Host="")["k-original-host"] == ["app.test"]


def test_of_two_fields_the_first_counts() -> None:
    world = KnativeWorld(routing=RoutingSpec(hosts=("app.ns.svc.cluster.local",)))
    pool = world.pod(limit=10)
    named = request_head(host="x.test", Knative_Serving_Namespace="ns", Knative_Serving_Revision="app")
    named.headers = named.headers.with_line(b"knative-serving-revision", b"gone")
    named.headers = named.headers.with_line(b"knative-serving-namespace", b"other")
    named.headers = named.headers.with_line(b"K-Original-Host", b"a.test")
    named.headers = named.headers.with_line(b"K-Original-Host", b"")
    world.begin(named)
    found = fields_of(pool)
    assert found["k-original-host"] == ["a.test", ""]
    assert not {"knative-serving-namespace", "knative-serving-revision"} & set(found)
    empty = request_head(host="app.ns.svc.cluster.local", Knative_Serving_Namespace="ns", Knative_Serving_Revision="")
    empty.headers = empty.headers.with_line(b"Knative-Serving-Revision", b"gone")
    empty.headers = empty.headers.with_line(b"K-Original-Host", b"")
    empty.headers = empty.headers.with_line(b"K-Original-Host", b"b.test")
    world.begin(empty)
    assert fields_of(pool)["k-original-host"] == ["app.ns.svc.cluster.local"]
    probe = request_head(host="app.ns.svc.cluster.local", K_Network_Probe="")
    probe.headers = probe.headers.with_line(b"K-Network-Probe", b"activator")
    world.begin(probe)
    assert len(pool.pods) == 3, "an empty first field is no probe"


def test_through_a_mesh_that_takes_addresses() -> None:
    fields = KnativeWorld(passes_through=True).sent()
    assert fields["host"] == ["app-private.ns"] and fields["k-passthrough-lb"] == ["true"]
    assert fields["k-original-host"] == ["app.test"]


def test_a_long_name_through_a_mesh_is_that_of_the_private_service() -> None:
    """Knative cuts it and puts a digest in place of the rest (kmeta.ChildName); the mesh knows no other name."""
    host = "f" * 23 + "105d7597f637e83cc711605ac3ea4957" + "-private.ns"
    world = KnativeWorld(passes_through=True, key=f"ns/{'f' * 63}")
    assert world.sent()["host"] == [host]


def test_a_second_pod_hears_its_own_address() -> None:
    world = KnativeWorld()
    first = world.pod("p1", connects=False)
    second = world.pod("p2")
    exchange, client = world.begin()
    first.stop_waiting(at_pod(exchange))
    at_pod(exchange).connect_failed(Reason.CONNECT_FAILED)
    assert fields_of(second)["host"] == ["10.0.0.2:80"]
    world.answer(exchange)
    assert client.status == 200


# --- time ---


def test_the_total_timeout_counts_the_wait_for_a_pod() -> None:
    world = KnativeWorld(timeouts=TimeoutsSpec(from_arrival=True, total_s=10.0), queue=QueueSpec(timeout_s=10.0))
    exchange, client = world.begin()
    world.clock.pass_time(9.0)
    world.pod()
    world.clock.pass_time(1.1)
    assert (client.status, client.body) == (504, b"activator request timeout")
    assert exchange.over
    world.check_idle()


def test_the_response_must_start_in_time_from_arrival() -> None:
    world = KnativeWorld(timeouts=TimeoutsSpec(from_arrival=True, first_byte_s=5.0), queue=QueueSpec(timeout_s=5.0))
    exchange, client = world.begin()
    world.clock.pass_time(4.0)
    world.pod()
    world.answer(exchange)
    assert client.status == 200
    other, late = world.begin()
    world.clock.pass_time(5.1)
    assert (late.status, other.over) == (504, True)


@pytest.mark.parametrize("limit", ["first_byte_s", "idle_s"])
def test_time_counts_while_a_connection_is_awaited(limit: str) -> None:
    """A pod whose node has gone takes seconds to be given up: the answer's own limits do not wait for that."""
    limits: dict[str, Any] = {limit: 2.0}
    world = KnativeWorld(timeouts=TimeoutsSpec(from_arrival=True, **limits), queue=QueueSpec(timeout_s=2.0))
    world.pod(connects=False)
    _, client = world.begin()
    world.clock.pass_time(1.9)
    assert client.silent()
    world.clock.pass_time(0.2)
    assert (client.status, client.body) == (504, b"activator request timeout")
    world.check_idle()


def test_a_pod_is_not_blamed_for_the_time_in_line() -> None:
    world = KnativeWorld(timeouts=TimeoutsSpec(from_arrival=True, first_byte_s=5.0), queue=QueueSpec(timeout_s=5.0))
    waiting = [world.begin()[1] for _ in range(3)]
    world.clock.pass_time(4.9)
    world.pod(limit=10)
    world.clock.pass_time(0.2)
    assert [client.status for client in waiting] == [504] * 3
    strikes = [event for event in world.heard.events if event[0] == "refused"]
    assert not strikes
    slow = world.begin()[1]
    world.clock.pass_time(5.1)
    assert slow.status == 504
    assert ("refused", "p1", "False") in world.heard.events, "it had all the time there was"
    assert world.heard.reasons == ["first_byte_timeout"]
    world.check_idle()


@pytest.mark.parametrize("limit", ["total_s", "idle_s"])
def test_an_answer_that_has_begun_is_never_added_to(limit: str) -> None:
    limits: dict[str, Any] = {"total_s": 300.0, limit: 5.0}
    world = KnativeWorld(timeouts=TimeoutsSpec(from_arrival=True, **limits))
    world.pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(200, 100))
    at_pod(exchange).response_body(b"foo")
    world.clock.pass_time(5.1)
    assert client.is_aborted() and (client.status, client.body) == (200, b"foo")


def test_an_answer_that_has_started_in_time_may_take_its_time() -> None:
    world = KnativeWorld(timeouts=TimeoutsSpec(from_arrival=True, first_byte_s=5.0, idle_s=0.0, total_s=300.0))
    world.pod()
    exchange, client = world.begin()
    world.clock.pass_time(4.9)
    at_pod(exchange).response_head(response_head(200, 3))
    world.clock.pass_time(200.0)
    assert not client.is_aborted(), "neither that limit nor one of 0 s ends it"
    at_pod(exchange).response_body(b"foo")
    at_pod(exchange).response_end([])
    assert (client.status, client.body, client.ended) == (200, b"foo", True)


def test_idle_counts_from_arrival_until_the_first_byte_and_then_between_two() -> None:
    world = KnativeWorld(timeouts=TimeoutsSpec(from_arrival=True, idle_s=5.0))
    world.pod()
    exchange, client = world.begin()
    for _ in range(4):
        world.clock.pass_time(4.0)
        progress(exchange)
    assert not client.is_aborted()
    world.clock.pass_time(5.1)
    assert client.is_aborted()


def progress(exchange: ProxiedExchange) -> None:
    if exchange.first_byte_s == 0.0:
        at_pod(exchange).response_head(response_head(200, 100))
    at_pod(exchange).response_body(b"x")
    at_pod(exchange).response_flush()


def test_a_full_queue() -> None:
    world = KnativeWorld(queue=QueueSpec(depth=1))
    world.begin()
    _, client = world.begin()
    assert (client.status, client.body) == (503, b"pending request queue full\n")


def test_a_refusal_names_no_pod() -> None:
    world = KnativeWorld()
    pools = [world.pod(f"p{number}", connects=False) for number in range(1, 4)]
    exchange, client = world.begin()
    for pool in pools:
        pool.stop_waiting(at_pod(exchange))
        at_pod(exchange).connect_failed(Reason.CONNECT_FAILED)
    assert client.status == 502 and client.body == b"no pod of the revision accepted a connection\n"
