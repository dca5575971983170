"""Where the chart's files are; for tests that do without Helm."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "charts" / "activator"
RULES: Final = CHART / "rules" / "activator.rules.yaml"
DASHBOARD: Final = CHART / "dashboards" / "activator.json"
FILES: Final = CHART / "files"
RULES_FILE: Final = FILES / "kubernetes-rules.yaml"
MEMBER_RULES_FILE: Final = FILES / "member-rules.yaml"
OWN_RULES_FILE: Final = FILES / "own-rules.yaml"
CRD_FILE: Final = FILES / "activations-crd.yaml"
VALUES_SCHEMA: Final = CHART / "values.schema.json"
