"""Alerts, recording rules and the dashboard: they ask for what exists, fire when they should, and are explained."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from activator.runtime.controller_counts import ErrorType
from activator.runtime.reasons import CLIENTS_OWN
from activator.telemetry.metrics.cluster_families import CLUSTER_FAMILIES, DECLARATION_FAMILIES, KNATIVE_FAMILIES
from activator.telemetry.metrics.controller_families import CONTROLLER_FAMILIES
from activator.telemetry.metrics.families import Family, Kind
from activator.telemetry.metrics.group_families import GROUP_FAMILIES
from activator.telemetry.metrics.program_families import PROGRAM_FAMILIES
from activator.telemetry.metrics.revision_families import REVISION_FAMILIES
from tests.charts.chart_files import DASHBOARD, ROOT, RULES

STORIES = Path(__file__).parent / "alert_stories.yaml"
OPERATIONS = ROOT / "docs" / "operations.md"
# prometheus_client's, for all programs, and Prometheus' own of each scrape.
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "up"}
# Labels of every scrape, of histograms, and of each revision.
SCRAPED_LABELS = {"instance", "job", "le", "namespace", "revision"}

RULE_LIST: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULE_LIST if "alert" in rule}
RECORDS = {rule["record"]: rule for rule in RULE_LIST if "record" in rule}


def catalogue() -> dict[str, Family[Any]]:
    """Every name that a query may ask for, as it is exposed, and the family it is of."""
    families: tuple[Family[Any], ...] = (
        *REVISION_FAMILIES,
        *PROGRAM_FAMILIES,
        *CLUSTER_FAMILIES,
        *KNATIVE_FAMILIES,
        *DECLARATION_FAMILIES,
        *CONTROLLER_FAMILIES,
        *GROUP_FAMILIES,
    )
    suffixes = {Kind.COUNTER: ("_total",), Kind.GAUGE: ("",), Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
    return {f"{one.name}{suffix}": one for one in families for suffix in suffixes[one.kind]}


def names_in(query: str) -> set[str]:
    """The metrics that a query asks for; in Prometheus' language all ours are told by how they begin, or by a colon."""
    text = re.sub(r'"[^"]*"', "", query)
    return set(
        re.findall(r"\b(?:activator|controller_runtime|workqueue|rest_client|process)_\w+|\bup\b|\b\w+:[\w:]+", text)
    )


def labels_in(query: str) -> set[str]:
    """The labels that a query selects or groups by."""
    grouped = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", query)
    selected = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
    return {label.strip() for group in grouped for label in group.split(",")} | set(selected)


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """(panel, query)"""
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


QUERIES = [
    *[(rule.get("alert") or rule["record"], rule["expr"]) for rule in RULE_LIST],
    *dashboard_queries(),
]


def test_the_dashboard_asks_for_the_exemplars_that_there_are() -> None:
    """Once for each histogram that has any: with every quantile, each point would be drawn as often."""
    asked = [
        name
        for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]
        for target in panel.get("targets", [])
        if target.get("exemplar")
        for name in names_in(target["expr"])
    ]
    assert sorted(asked) == [
        f"activator_{name}_seconds_bucket" for name in ("first_byte", "queue_wait", "request_duration")
    ]


# --- what is asked for exists ---


@pytest.mark.parametrize(("name", "query"), QUERIES)
def test_every_metric_is_in_the_catalogue(name: str, query: str) -> None:
    asked = names_in(query)
    assert asked, f"{name} asks for nothing"
    assert asked - set(catalogue()) - set(RECORDS) - PROCESS == set()


@pytest.mark.parametrize(("name", "query"), QUERIES)
def test_every_label_is_one_that_its_metric_has(name: str, query: str) -> None:
    families = catalogue()
    known = set(SCRAPED_LABELS)
    for metric in names_in(query):
        if metric in families:
            known |= set(families[metric].labels)
        elif metric in RECORDS:
            known |= labels_in(RECORDS[metric]["expr"])
    assert labels_in(query) - known == set(), name


def test_the_check_finds_what_does_not_exist() -> None:
    assert names_in('sum by (x) (rate(activator_nothing_total{a="activator_other"}[5m])) / a:b:c') == {
        "activator_nothing_total",
        "a:b:c",
    }
    assert labels_in('sum by (x, y) (rate(m{z=~"a"}[5m]))') == {"x", "y", "z"}


def test_words_of_closed_sets_are_words_of_theirs() -> None:
    (selected,) = re.findall(
        r'error_type=~"([^"]*)"', RECORDS["controller:activator_reconcile_errors_persistent:rate5m"]["expr"]
    )
    assert set(selected.split("|")) == {kind.value for kind in ErrorType if not kind.is_transient}
    (clients,) = re.findall(r'reason!~"([^"]*)"', RECORDS["revision:activator_errors:ratio5m"]["expr"])
    assert set(clients.split("|")) == CLIENTS_OWN
    states = catalogue()["activator_pods"].values[0]
    assert set(re.findall(r'state="(\w+)"', ALERTS["ActivatorPodsQuarantined"]["expr"])) <= set(states)


def test_every_recorded_name_says_its_level_and_is_of_use() -> None:
    for name in RECORDS:
        assert re.fullmatch(r"(revision|revision_phase|controller):activator_\w+:\w+", name), name


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


# --- alerts are explained ---


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_has_a_severity_and_a_paragraph_in_the_runbook(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
    sections = re.split(r"^### ", OPERATIONS.read_text("utf-8"), flags=re.MULTILINE)
    texts = [one.partition("\n")[2] for one in sections if one.partition("\n")[0] == name]
    assert len(texts) == 1, f"docs/operations.md: one heading `### {name}`"
    assert len(texts[0].split()) >= 40, "what it means, what to look at, what to do"


def test_the_runbook_explains_no_alert_that_is_not_there() -> None:
    headings = re.findall(r"^### (Activator\w+)$", OPERATIONS.read_text("utf-8"), flags=re.MULTILINE)
    assert sorted(headings) == sorted(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_has_a_story_in_which_it_fires_and_one_in_which_it_does_not(name: str) -> None:
    asked = [
        len(one["exp_samples"])
        for story in yaml.safe_load(STORIES.read_text("utf-8"))["tests"]
        for one in story["promql_expr_test"]
        if one["expr"] == f'ALERTS{{alertname="{name}",alertstate="firing"}}'
    ]
    assert 0 in asked and max(asked) > 0


# --- Prometheus' own judgement ---


def promtool(path: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [path, *words], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
    )


def test_promtool_takes_the_rules(need_program: Callable[[str], str]) -> None:
    answer = promtool(need_program("promtool"), "check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"{len(RULE_LIST)} rules found" in answer.stdout


def test_alerts_fire_when_they_should(need_program: Callable[[str], str]) -> None:
    answer = promtool(need_program("promtool"), "test", "rules", str(STORIES))
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("name", ALERTS)
def test_without_its_rule_a_story_fails(need_program: Callable[[str], str], tmp_path: Path, name: str) -> None:
    """The stories can fail: with any one alert gone they do."""
    rules = yaml.safe_load(RULES.read_text("utf-8"))
    for group in rules["groups"]:
        group["rules"] = [rule for rule in group["rules"] if rule.get("alert") != name]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules), "utf-8")
    stories = yaml.safe_load(STORIES.read_text("utf-8"))
    stories["rule_files"] = ["rules.yaml"]
    (tmp_path / "stories.yaml").write_text(yaml.safe_dump(stories), "utf-8")
    answer = promtool(need_program("promtool"), "test", "rules", str(tmp_path / "stories.yaml"))
    assert answer.returncode == 1
    assert name in answer.stdout + answer.stderr
