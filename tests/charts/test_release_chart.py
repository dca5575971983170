"""The chart as a release publishes it, packaged and rendered by Helm's engine."""

from __future__ import annotations

from pathlib import Path

import helm_python
import pytest

from tests.charts.renditions import CLUSTER, KNATIVE, Values
from tests.release_files import check_image, copy_chart

REGISTRY = "registry.test/owner"


@pytest.mark.parametrize("values", [{}, KNATIVE, CLUSTER], ids=["standalone", "knative", "kubernetes"])
def test_the_packaged_chart_runs_the_published_image(values: Values, tmp_path: Path) -> None:
    copy_chart(REGISTRY, tmp_path)
    package = helm_python.package(tmp_path / "activator", destination=tmp_path)
    with helm_python.Chart.load(package) as chart:
        rendered = chart.render(values)
    check_image("\n".join(rendered.values()), REGISTRY)
