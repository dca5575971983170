"""docs/metrics.md, from the families themselves: `python -m activator.telemetry.catalogue > docs/metrics.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from activator.config import METRICS_REVISIONS_MAX
from activator.telemetry.families import REVISION_LABELS, Family, Kind
from activator.telemetry.program_families import CLIENTS, CONTROL, OWN, PROGRAM_FAMILIES
from activator.telemetry.revision_families import PODS, QUEUEING, REVISION_FAMILIES, SPARSE_ARRAY, STARTING, TRAFFIC

_INTRODUCTION = f"""# Metrics

`GET /metrics` on the admin port, for Prometheus: its text format, or OpenMetrics where that is asked for; compressed
where that is accepted. This page is written from the code (`python -m activator.telemetry.catalogue`), and a test
compares the two.

- Times are seconds, sizes bytes. A counter only grows; it begins at 0 with the process, and those of a revision with
  the revision.
- Labels are the namespace and the name of the revision, and words of closed sets, listed below. Nothing that a request
  carries (paths, hosts, methods, headers) and no pod is ever a label, so the number of series does not grow with
  traffic. A word of a counter's set appears when it has first been counted.
- At most {METRICS_REVISIONS_MAX:,} revisions are shown by name; all others are added up under
  `namespace="_other",revision="_other"` (ratios: the greatest). A revision stays where it was first shown.
- Reading costs the requests nothing: their path counts in plain integers, and the text is made in slices between which
  requests are served.
- `process_…` are the Prometheus client library's, by its names: processor time, memory, open files, start time.

Metrics are for questions about many requests. Which step of one request was slow, its line in the access log says
(`docs/access-log.md`).
"""


def markdown() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for title, families in (
        ("Requests", TRAFFIC),
        ("Waiting", QUEUEING),
        ("Starts from zero", STARTING),
        ("Pods", PODS),
        ("The sparse array", SPARSE_ARRAY),
    ):
        parts.append(f"## {title}, of each revision\n\n{_list(families)}")
    parts.append(f"## Clients, and what is held\n\n{_list(CLIENTS)}")
    parts.append(f"## The control plane\n\nWithout names of any kind.\n\n{_list(CONTROL)}")
    parts.append(f"## The program\n\n{_list(OWN)}")
    parts.append(f"## Words\n\n{_words()}")
    return "\n".join(parts)


def _list(families: Iterable[Family[Any]]) -> str:
    rows = ["| metric | | meaning |", "|---|---|---|"]
    for family in families:
        name = f"{family.name}_total" if family.kind is Kind.COUNTER else family.name
        labels = f" `{{{','.join(family.labels)}}}`" if family.labels else ""
        bounds = f" Bounds: {', '.join(f'{bound:g}' for bound in family.bounds)}." if family.bounds else ""
        rows.append(f"| `{name}`{labels} | {family.kind.value} | {family.text}{bounds} |")
    return "\n".join(rows) + "\n"


def _words() -> str:
    sets: dict[str, list[str]] = {}
    families: tuple[Family[Any], ...] = (*REVISION_FAMILIES, *PROGRAM_FAMILIES)
    for family in families:
        for label, values in zip(family.labels, family.values, strict=False):
            known = sets.setdefault(label, [])
            known.extend(value for value in values if value not in known)
    rows = [f"- `{label}`: {', '.join(f'`{value}`' for value in values)}" for label, values in sets.items() if values]
    rows.append("- `policy`: the names in `docs/policies.md`, or that of a policy of your own, as configured")
    rows.append(f"- {' and '.join(f'`{label}`' for label in REVISION_LABELS)}: as configured")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
