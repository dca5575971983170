"""Knative's request log, and who decides what is told: the file or the cluster."""

from __future__ import annotations

import json
import logging
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.codec.message import Fields
from activator.config.cluster_settings import ClusterSettings
from activator.config.log_template import REQUEST_TEMPLATE
from activator.config.model.file import Config
from activator.config.model.telemetry import Log, Metrics, Tracing
from activator.config.specs import KnativeSpec
from activator.runtime.controller_counts import Controllers
from activator.telemetry.logs.access_log import AccessLog
from activator.telemetry.logs.request_template import RequestTemplate, RequestTemplateError, knative_template
from activator.telemetry.switchboard import Telemetry, log_of, tracing_of
from lb.rng import Rng
from tests.data_plane.proxy.proxy_fakes import World, request_head
from tests.telemetry.test_access_log import TRACEPARENT, Logged

CUSTOM = (
    '{{ .Request.Method }} {{js .Request.Host}} {{index .Request.Header "X-Name"}} {{js (index .Request.Header "x")}}'
)


def line_of(logged: Logged) -> str:
    logged.log.flush()
    assert not logged.world.errors
    (line,) = logged.writer.lines()
    return line


def test_the_default_is_knatives() -> None:
    logged = Logged("knative")
    logged.world.pod()
    head = request_head("POST", length=3, User_Agent="curl/8", Referer="http://a/?b=<c>&d='e'", traceparent=TRACEPARENT)
    head.target = b'/path?a="b"'
    exchange, _ = logged.world.begin(head)
    exchange.request_body(b"abc")
    exchange.request_end([])
    logged.world.clock.pass_time(0.25)
    logged.world.answer(exchange, 404)
    assert json.loads(line_of(logged)) == {
        "httpRequest": {
            "requestMethod": "POST",
            "requestUrl": '/path?a="b"',
            "requestSize": "3",
            "status": 404,
            "responseSize": "5",
            "userAgent": "curl/8",
            "remoteIp": "192.0.2.1",
            "serverIp": "",
            "referer": "http://a/?b=<c>&d='e'",
            "latency": "0.250000s",
            "protocol": "HTTP/1.1",
        },
        "traceId": TRACEPARENT[3:35],
    }


def test_a_template_of_ones_own() -> None:
    logged = Logged(f"go:{CUSTOM}\n")
    logged.world.pod()
    head = request_head(X_Name="me", x="'")
    exchange, _ = logged.world.begin(head)
    logged.world.answer(exchange)
    assert line_of(logged) == "GET app.test me \\u0027"


def test_what_a_revision_belongs_to() -> None:
    template = "{{.Revision.Namespace}} {{.Revision.Name}} {{.Revision.Service}} {{.Revision.Configuration}}"
    logged = Logged(f"{REQUEST_TEMPLATE}{template}", knative=KnativeSpec(service="svc", configuration="conf"))
    logged.world.pod()
    exchange, _ = logged.world.begin()
    logged.world.answer(exchange)
    logged.world.begin(request_head(host="nobody.test"))
    logged.log.flush()
    assert logged.writer.lines() == ["ns app svc conf", "   "]


@pytest.mark.parametrize(
    "template", ["{{.Request.Cookies}}", "{{if .Request}}x{{end}}", "{{.Request.Method", "{{printf 1}}", "a\nb", "{{}}"]
)
def test_what_is_not_understood_is_refused(template: str) -> None:
    with pytest.raises(RequestTemplateError):
        RequestTemplate(template)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_nothing_gets_out_of_its_string(target: bytes, agent: bytes) -> None:
    logged = Logged("knative")
    logged.world.pod()
    head = request_head()
    exchange, _ = logged.world.begin(head)
    head.target = target
    head.headers = Fields.from_pairs([(b"User-Agent", agent.replace(b"\r\n", b""))])
    logged.world.answer(exchange)
    line = line_of(logged)
    assert line.isprintable()
    assert json.loads(line)["httpRequest"]["status"] == 200


class ToControl:
    """The switchboard of a program without a log of its own."""

    def __init__(self) -> None:
        self.world = World()
        clock = self.world.clock
        controllers = Controllers(clock.now)
        self.telemetry = Telemetry(
            self.world.proxy,
            controllers,
            None,
            Rng(1),
            clock.now,
            clock.defer,
            clock.call_later,
            clock.now,
            lambda: 0,
            self.world.errors.append,
        )

    def kind(self) -> str:
        observer = self.world.proxy.observer
        return observer.kind if isinstance(observer, AccessLog) else ""


def test_what_the_cluster_says_of_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    told = ToControl()
    with closing(told.telemetry):
        told.telemetry.set(Config(access_log="common"))
        assert told.kind() == "common"
        told.telemetry.settle(ClusterSettings(request_log=True))
        assert told.kind() == "knative"
        told.telemetry.settle(ClusterSettings(request_log=True, request_log_template=CUSTOM))
        assert told.kind() == f"go:{CUSTOM}"
        told.telemetry.settle(ClusterSettings(request_log=True, request_log_template="{{.Nonsense}}"))
        assert told.kind() == f"go:{CUSTOM}", "the former goes on"
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        told.telemetry.set(Config(access_log="json"))
        assert told.kind() == f"go:{CUSTOM}"
        told.telemetry.settle(ClusterSettings())
        assert told.kind() == "json"


def test_what_the_cluster_says_of_traces_and_levels() -> None:
    own = Tracing("otlp", "http://own:4318", 0.5)
    assert tracing_of(own, ClusterSettings()) == own
    wanted = ClusterSettings(
        tracing_protocol="http/protobuf", tracing_endpoint="http://a/v1/traces", tracing_sampling_rate=0.25
    )
    assert tracing_of(own, wanted) == Tracing("otlp", "http://a/v1/traces", 0.25)
    log = Log("json", "info", {"state": "debug"})
    assert log_of(log, ClusterSettings()) == log
    assert log_of(log, ClusterSettings(log_level="error")) == Log("json", "error", {"state": "debug"})


def test_the_default_is_well_formed_without_a_request() -> None:
    assert json.loads(knative_template().replace("{{.Response.Code}}", "1"))["httpRequest"]["status"] == 1


def test_histograms_are_switched_by_the_file() -> None:
    told = ToControl()
    with closing(told.telemetry):
        for wanted in (False, True):
            told.telemetry.set(Config(metrics=Metrics(histograms=wanted)))
            assert told.world.proxy.histograms is wanted
