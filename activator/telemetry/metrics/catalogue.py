"""The generator of docs/metrics.md from the families (`make docs`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

from activator.telemetry.metrics import METRICS_REVISIONS_MAX
from activator.telemetry.metrics.cluster_families import CLUSTER_FAMILIES, DECLARATION_FAMILIES, KNATIVE_FAMILIES
from activator.telemetry.metrics.controller_families import CONTROLLER_FAMILIES
from activator.telemetry.metrics.families import REVISION_LABELS, Family, Kind
from activator.telemetry.metrics.group_families import GROUP_FAMILIES
from activator.telemetry.metrics.knative_metrics import METRICS as KNATIVE_METRICS
from activator.telemetry.metrics.knative_requests import KNATIVE_SERIES_MAX
from activator.telemetry.metrics.member_families import MEMBER_FAMILIES
from activator.telemetry.metrics.memory_families import MEMORY_FAMILIES
from activator.telemetry.metrics.program_families import CLIENTS, CONTROL, OWN, PROGRAM_FAMILIES
from activator.telemetry.metrics.revision_families import (
    EACH_POD,
    PODS,
    QUEUEING,
    REVISION_FAMILIES,
    SPARSE_ARRAY,
    STARTING,
    TOKENS,
    TRAFFIC,
)
from activator.telemetry.metrics.scaling_families import SCALING_FAMILIES
from activator.telemetry.metrics.worker_families import WORKER_FAMILIES

_FAMILIES: Final[tuple[Family[Any], ...]] = (
    *REVISION_FAMILIES,
    *PROGRAM_FAMILIES,
    *CLUSTER_FAMILIES,
    *KNATIVE_FAMILIES,
    *DECLARATION_FAMILIES,
    *CONTROLLER_FAMILIES,
    *WORKER_FAMILIES,
    *SCALING_FAMILIES,
    *GROUP_FAMILIES,
    *MEMORY_FAMILIES,
    *MEMBER_FAMILIES,
)
_KNATIVE = "\n".join(f"- `{metric.name}`" for metric in KNATIVE_METRICS)

_INTRODUCTION = f"""# Metrics

`GET /metrics` on the admin port, for Prometheus: its text format, or OpenMetrics on request. This page is generated
from the code (`make docs`).

- Times are in seconds, sizes in bytes. A counter begins at 0 with the process, or with its revision.
- Labels are the namespace and the name of the revision, and values of closed sets ([label values](#label-values)).
  Data of requests (paths, hosts, methods, headers) are never labels, so the number of series does not grow with
  traffic. A counter's series for a value of a set appears when it is first counted.
- At most {METRICS_REVISIONS_MAX:,} revisions are shown by name. All others are summed under
  `namespace="_other",revision="_other"` (for ratios, the maximum).
- `metrics: {{histograms: false}}`, also by a reload, omits the histograms of all revisions, which are most of the text.
  All histograms are classic: Prometheus' Python library writes no native ones.
- Exemplars, if requests are traced ([tracing](tracing.md)): each bucket of `activator_request_duration_seconds`,
  `activator_first_byte_seconds` and `activator_queue_wait_seconds` has the last trace that it has counted, with the
  time of the request and the time of its end: `# {{trace_id="…"}} 0.127 1795296896.062`. Only OpenMetrics has
  exemplars. Prometheus requests it by default, and stores exemplars with `--enable-feature=exemplar-storage`.
- `process_…` are the metrics of the Prometheus client library: processor time, memory, open files, start time.

## Metrics of Knative

`metrics: {{knative: {{protocol: prometheus, endpoint: ":9090"}}}}` serves metrics with the names of Knative on a port
of their own, and `protocol: http/protobuf` with `endpoint: http://collector:4318/v1/metrics` sends them every
`export_interval` (60 s). In Knative mode `metrics-protocol` and `metrics-endpoint` of config-observability override
the file.

{_KNATIVE}

They have the bounds and attributes of Knative (names of service, configuration and revision; method, scheme, host,
port, protocol and status of requests). Requests are counted by these attributes only while these
metrics are on, and only for the first {KNATIVE_SERIES_MAX} combinations of each revision; later ones have the
host `_other`, the method `_OTHER` and the class of their status, at most 24 more. `http.client…` and the metrics of the
Go runtime are missing.
`kn.revision.request.concurrency` is the current value, while Knative's is the mean over the last second.
"""


_CONTROLLERS = """\
These metrics have no labels for revisions or pods. Metrics that a controller runtime also has keep its names, with the
label `controller`; they appear only with Kubernetes. For the activator's own metrics, *Rationale* states the difference
to the nearest metric of a controller runtime; they are at most 113 series together. The duration of the parts of one
pass is in the [traces](tracing.md).
"""


_SCALING = """\
These metrics cover the revisions that the activator scales, that is those with `process`, as of their last decision
([scaling](scaling.md)). The averages of a revision without load are 0.
"""


_GROUPS = """\
These metrics cover the groups in the configuration file ([groups](groups.md)). Without groups they do not appear.
"""


_WORKERS = """\
All other metrics are sums over the workers ([several workers](workers.md)). `process_…` is the parent process, which
serves no requests.
"""


def markdown() -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for title, families in (
        ("Requests", TRAFFIC),
        ("Tokens", TOKENS),
        ("Waiting", QUEUEING),
        ("Starts from zero", STARTING),
        ("Pods", PODS),
        ("Each pod, with `metrics.pods`", EACH_POD),
        ("The sparse array", SPARSE_ARRAY),
    ):
        parts.append(f"## {title}, of each revision\n\n{_list(families)}")
    parts.append(f"## Scaling\n\n{_SCALING}\n{_list(SCALING_FAMILIES)}")
    parts.append(f"## Groups of revisions\n\n{_GROUPS}\n{_list(GROUP_FAMILIES)}")
    parts.append(f"## Memory of programs\n\n{_list(MEMORY_FAMILIES)}")
    parts.append(f"## Clients, held requests and bodies\n\n{_list(CLIENTS)}")
    parts.append(f"## The control plane\n\n{_CONTROLLERS}\n{_list(CONTROLLER_FAMILIES)}")
    parts.append(f"## The cluster, with Kubernetes\n\n{_list(CLUSTER_FAMILIES)}")
    parts.append(f"## The cluster, with Knative\n\n{_list(KNATIVE_FAMILIES)}")
    parts.append(f"## The cluster, without Knative\n\n{_list(DECLARATION_FAMILIES)}")
    parts.append(f"## The state worker\n\n{_list(CONTROL)}")
    parts.append(f"## The program\n\n{_list(OWN)}")
    parts.append(f"## The workers, where there are several\n\n{_WORKERS}\n{_list(WORKER_FAMILIES)}")
    parts.append(f"## The group of replicas, where there is one\n\n{_list(MEMBER_FAMILIES)}")
    parts.append(f"## Histogram bounds\n\n{_bounds()}")
    parts.append(f"## Label values\n\n{_label_values()}")
    parts.append("Tests: `tests/telemetry/test_exposition.py`.\n")
    return "\n".join(parts)


def _list(families: Iterable[Family[Any]]) -> str:
    rows = ["|metric|kind|meaning|", "|---|---|---|"]
    for family in families:
        name = f"{family.name}_total" if family.kind is Kind.COUNTER else family.name
        labels = f" `{{{','.join(family.labels)}}}`" if family.labels else ""
        rationale = f" *Rationale:* {family.why}" if family.why else ""
        rows.append(f"|`{name}`{labels}|{family.kind.value}|{family.text}{rationale}|")
    return "\n".join(rows) + "\n"


def _bounds() -> str:
    names: dict[tuple[float, ...], list[str]] = {}
    for family in _FAMILIES:
        if family.bounds:
            names.setdefault(family.bounds, []).append(f"`{family.name}`")
    rows = [
        f"- {', '.join(metrics)}: {', '.join(f'{bound:g}' for bound in bounds)}" for bounds, metrics in names.items()
    ]
    return "\n".join(rows) + "\n"


def _label_values() -> str:
    sets: dict[str, list[str]] = {}
    for family in _FAMILIES:
        for label, values in zip(family.labels, family.values, strict=False):
            known = sets.setdefault(label, [])
            known.extend(value for value in values if value not in known)
    rows = [f"- `{label}`: {', '.join(f'`{value}`' for value in values)}" for label, values in sets.items() if values]
    rows.append("- `policy`: a name in [policies.md](policies.md), or the configured name of your own policy")
    rows.append(f"- {' and '.join(f'`{label}`' for label in REVISION_LABELS)}: as configured")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
