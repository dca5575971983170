"""Whether the chart is tested at all."""

from __future__ import annotations

import importlib.util

from tests.conftest import Need


def test_helm_is_here(need: Need) -> None:
    need(importlib.util.find_spec("helm_python") is not None, "helm-python-sdk, which has no wheel for this platform")
