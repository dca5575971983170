"""From the API's JSON to structs, and what counts as a change."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from activator.kubernetes.decoding import Decoding, refusal_of_answer
from activator.kubernetes.errors import RefusedError, UnreadableError
from activator.kubernetes.objects import (
    BareObject,
    Endpoints,
    EndpointSlice,
    Object,
    Revision,
    Secret,
    Service,
    unchanged,
)
from tests.kubernetes.kube_samples import endpoint, endpoint_slice

REVISION: dict[str, Any] = {
    "apiVersion": "serving.knative.dev/v1",
    "kind": "Revision",
    "metadata": {
        "name": "hello-00001",
        "namespace": "default",
        "uid": "u-1",
        "resourceVersion": "77",
        "generation": 1,
        "labels": {"serving.knative.dev/service": "hello"},
        "annotations": {"autoscaling.knative.dev/max-scale": "7"},
        "managedFields": [{"manager": "controller"}],
    },
    "spec": {
        "containerConcurrency": 10,
        "timeoutSeconds": 300,
        "responseStartTimeoutSeconds": 100,
        "idleTimeoutSeconds": 50,
        "enableServiceLinks": False,
        "containers": [
            {
                "name": "user-container",
                "image": "example.com/hello",
                "ports": [{"name": "h2c", "containerPort": 8080, "protocol": "TCP"}],
                "readinessProbe": {"exec": {"command": ["true"]}, "successThreshold": 1},
                "startupProbe": {"tcpSocket": {"port": 0}},
            },
            {"name": "sidecar", "image": "example.com/sidecar", "readinessProbe": {"httpGet": {"port": 1}}},
        ],
    },
    "status": {
        "actualReplicas": 0,
        "desiredReplicas": 0,
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "ContainerMissing", "message": "no image"},
        ],
    },
}


def changed_at(thing: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    copy = json.loads(json.dumps(thing))
    *way, last = path.split("/")
    here = copy
    for step in way:
        here = here[int(step)] if isinstance(here, list) else here.setdefault(step, {})
    here[last] = value
    return dict(copy)


def decoded(kind: type[Object], thing: dict[str, Any]) -> Object:
    return Decoding(kind).object(json.dumps(thing).encode())


def test_a_revision() -> None:
    revision = decoded(Revision, REVISION)
    assert revision.key == ("default", "hello-00001")
    assert (revision.metadata.uid, revision.metadata.resource_version, revision.metadata.generation) == ("u-1", "77", 1)
    assert revision.metadata.annotations == {"autoscaling.knative.dev/max-scale": "7"}
    spec = revision.spec
    assert (spec.container_concurrency, spec.timeout_seconds) == (10, 300)
    assert (spec.response_start_timeout_seconds, spec.idle_timeout_seconds) == (100, 50)
    serving, sidecar = spec.containers or []
    assert serving.ports is not None and (serving.ports[0].name, serving.ports[0].container_port) == ("h2c", 8080)
    assert serving.readiness_probe is not None and serving.readiness_probe.exec is not None
    assert serving.startup_probe is not None and serving.startup_probe.exec is None
    assert sidecar.readiness_probe is not None and sidecar.readiness_probe.exec is None
    assert sidecar.startup_probe is None and sidecar.ports is None
    assert revision.status.conditions is not None and revision.status.conditions[0].status == "False"
    assert (revision.status.actual_replicas, revision.status.desired_replicas) == (0, 0)


def test_a_service() -> None:
    service = decoded(
        Service,
        {
            "metadata": {"name": "s"},
            "spec": {
                "clusterIP": "10.1.2.3",
                "clusterIPs": ["10.1.2.3", "fd00::1"],
                "ports": [{"name": "http", "port": 80, "targetPort": 8012}, {"port": 81, "targetPort": "named"}],
            },
        },
    )
    assert (service.spec.cluster_ip, service.spec.cluster_ips) == ("10.1.2.3", ["10.1.2.3", "fd00::1"])
    assert [(one.name, one.port, one.target_port) for one in service.spec.ports or ()] == [
        ("http", 80, 8012),
        ("", 81, "named"),
    ]


def test_endpoints() -> None:
    thing = {
        "metadata": {"name": "e"},
        "subsets": [
            {
                "addresses": [{"ip": "10.0.0.1", "targetRef": {"kind": "Pod", "name": "p", "uid": "u"}}],
                "notReadyAddresses": [{"ip": "10.0.0.2"}],
                "ports": [{"name": "http", "port": 8012}],
            }
        ],
    }
    subset = (decoded(Endpoints, thing).subsets or [])[0]
    assert subset.addresses is not None and subset.addresses[0].target_ref is not None
    assert (subset.addresses[0].ip, subset.addresses[0].target_ref.uid) == ("10.0.0.1", "u")
    assert subset.not_ready_addresses is not None and subset.not_ready_addresses[0].target_ref is None


def test_a_secret_is_decoded_and_not_shown() -> None:
    secret = decoded(Secret, {"metadata": {"name": "s", "namespace": "n"}, "data": {"tls.key": "aHVzaA=="}})
    assert secret.data == {"tls.key": b"hush"} and Secret.encoded(b"hush") == "aHVzaA=="
    assert repr(secret) == str(secret) == "Secret(n/s, keys=['tls.key'])"


def test_what_the_api_writes_as_null() -> None:
    """Go's lists that were never made; conditions that nobody knows."""
    thing = changed_at(endpoint_slice("s", []), "endpoints", None)
    assert decoded(EndpointSlice, changed_at(thing, "ports", None)).endpoints is None
    one = {**endpoint(1), "conditions": {"ready": None}, "targetRef": None}
    read = (decoded(EndpointSlice, changed_at(thing, "endpoints", [one])).endpoints or [])[0]
    assert (read.conditions.ready, read.conditions.serving, read.target_ref) == (None, None, None)
    assert Decoding(EndpointSlice).list(b'{"metadata": {"resourceVersion": "1"}, "items": null}').items is None


@pytest.mark.parametrize(
    ("path", "value", "counts"),
    [
        ("metadata/resourceVersion", "78", False),
        ("metadata/generation", 2, False),
        ("metadata/managedFields", [], False),
        ("spec/enableServiceLinks", True, False),
        ("status/observedGeneration", 4, False),
        ("metadata/uid", "u-2", True),
        ("metadata/labels", {}, True),
        ("metadata/annotations", {"autoscaling.knative.dev/max-scale": "8"}, True),
        ("metadata/deletionTimestamp", "2026-01-01T00:00:00Z", True),
        ("spec/containerConcurrency", 11, True),
        ("spec/containers/0/startupProbe", None, True),
        ("status/actualReplicas", 1, True),
    ],
)
def test_what_counts_in_a_revision(path: str, value: object, counts: bool) -> None:
    old, new = decoded(Revision, REVISION), decoded(Revision, changed_at(REVISION, path, value))
    assert unchanged(old, new) is not counts


@pytest.mark.parametrize(
    ("path", "value", "counts"),
    [
        ("metadata/annotations", {"endpoints.kubernetes.io/last-change-trigger-time": "later"}, False),
        ("endpoints/0/zone", "zone-b", True),
        ("endpoints/0/nodeName", "another", False),
        ("endpoints/0/conditions/ready", False, True),
        ("endpoints/0/conditions/terminating", True, True),
        ("endpoints/0/targetRef/uid", "another", True),
        ("endpoints/0/addresses", ["10.9.9.9"], True),
        ("ports/0/port", 8013, True),
        ("metadata/labels", {}, True),
    ],
)
def test_what_counts_in_a_slice(path: str, value: object, counts: bool) -> None:
    thing = endpoint_slice("s", range(3))
    assert (
        unchanged(decoded(EndpointSlice, thing), decoded(EndpointSlice, changed_at(thing, path, value))) is not counts
    )


def test_one_bad_object_costs_itself_only() -> None:
    decoding = Decoding(EndpointSlice)
    things = [endpoint_slice("good", [1]), {"metadata": {"name": "bad"}, "endpoints": 5}, {"metadata": 6}]
    page = {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": things}
    found = decoding.list(json.dumps(page).encode())
    assert [one.metadata.name for one in found.items or ()] == ["good"]
    assert (found.metadata.resource_version, found.metadata.continue_token) == ("9", "more")
    assert decoding.failures_total == 2


def test_of_an_event_that_cannot_be_read_the_metadata_is_left() -> None:
    decoding = Decoding(EndpointSlice)
    event = {"type": "MODIFIED", "object": {"metadata": {"name": "bad", "resourceVersion": "5"}, "endpoints": 5}}
    read = decoding.event(json.dumps(event).encode())
    assert isinstance(read.object, BareObject) and read.object.metadata.resource_version == "5"
    assert decoding.failures_total == 1 and decoding.last_failure.startswith("/bad: Expected")


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"items": 5}'])
def test_what_is_no_list(body: bytes) -> None:
    with pytest.raises(UnreadableError):
        Decoding(Service).list(body)


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"object": {}}', b'{"type": "ADDED", "object": 5}'])
def test_what_is_no_event(line: bytes) -> None:
    with pytest.raises(UnreadableError):
        Decoding(Service).event(line)


def test_an_error_event_is_a_refusal() -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old", "metadata": {}}
    with pytest.raises(RefusedError, match="410 Expired: too old") as refused:
        Decoding(Service).event(json.dumps({"type": "ERROR", "object": status}).encode())
    assert refused.value.is_expired
    with pytest.raises(RefusedError, match="500"):
        Decoding(Service).event(b'{"type": "ERROR", "object": {"code": "odd", "spec": 5}}')


def test_what_a_proxy_in_between_answers() -> None:
    refusal = refusal_of_answer(502, b"<html>bad gateway</html>", 5.0)
    assert (refusal.status, refusal.reason, refusal.kind, refusal.retry_after_s) == (502, "", "5xx", 5.0)
    status = {"code": 429, "reason": "TooManyRequests", "details": {"retryAfterSeconds": 9}}
    assert refusal_of_answer(429, msgspec.json.encode(status), None).retry_after_s == 9.0
