"""What the log says of fixed pods that do not answer: once for each cause, in few lines."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.control_plane.probes.probed_pod import Failing
from activator.control_plane.sources.pod_cause_log import (
    LOG_AFTER_S,
    LOG_INTERVAL_S,
    POD_CAUSES_MAX,
    PodCauseLog,
)

KEY = "default/a"


def test_a_pod_is_named_once_with_its_cause_and_again_with_another(caplog: pytest.LogCaptureFixture) -> None:
    said = PodCauseLog()
    refused = {"10.0.0.1:80": Failing(100.0, "connection refused")}
    said.report(KEY, refused, 100.0 + LOG_AFTER_S - 0.01)
    assert caplog.messages == []
    said.report(KEY, refused, 100.0 + LOG_AFTER_S)
    assert caplog.messages == [f"{KEY}: no answer from 10.0.0.1:80: connection refused"]
    for later_s in (1.0, 20.0, 4000.0):
        said.report(KEY, refused, 100.0 + later_s)
    assert len(caplog.messages) == 1
    said.report(KEY, {"10.0.0.1:80": Failing(100.0, "connecting took longer than 0.25 s")}, 5000.0)
    said.report(KEY, {"10.0.0.1:80": Failing(100.0, "connecting took longer than 10 s")}, 6000.0)
    assert caplog.messages[1:] == [f"{KEY}: no answer from 10.0.0.1:80: connecting took longer than 0.25 s"]
    said.report(KEY, refused, 7000.0)
    said.forget(KEY)
    said.report(KEY, refused, 7000.1)
    assert len(caplog.messages) == 4, "a revision that came back is another one"


def test_many_pods_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    failing = {f"10.0.0.1:{port}": Failing(0.0, "connection refused") for port in range(1000)}
    PodCauseLog().report(KEY, failing, 5.0)
    (line,) = caplog.messages
    assert line.count("connection refused") == POD_CAUSES_MAX
    assert line.endswith(f"; and {1000 - POD_CAUSES_MAX} more")


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.dictionaries(st.sampled_from("abc"), st.sampled_from(["x", "y"])))))
def test_no_sequence_of_causes_gets_more_than_a_line_in_each_interval(
    steps: list[tuple[float, dict[str, str]]],
) -> None:
    said = PodCauseLog()
    now_s, lines_s = 100.0, []
    for step_s, causes in steps:
        now_s += step_s
        before = said._not_before_s.get(KEY)
        said.report(KEY, {pod: Failing(0.0, cause) for pod, cause in causes.items()}, now_s)
        if said._not_before_s.get(KEY) != before:
            lines_s.append(now_s)
    assert all(later - sooner >= LOG_INTERVAL_S for sooner, later in itertools.pairwise(lines_s))
