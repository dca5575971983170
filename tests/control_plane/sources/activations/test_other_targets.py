"""Targets that are read by their scale subresource."""

from __future__ import annotations

import pytest

from activator.control_plane.sources.activations.other_targets import labels_of


@pytest.mark.parametrize(
    ("selector", "labels"),
    [
        ("app=web", {"app": "web"}),
        ("app=web,tier==front", {"app": "web", "tier": "front"}),
        (" app = web ", {}),
        ("app in (web)", {}),
        ("app=web,!canary", {}),
        ("app!=web", {}),
        ("example.com/name=a_b.c-d", {"example.com/name": "a_b.c-d"}),
        ("empty=", {"empty": ""}),
        ("", {}),
    ],
)
def test_labels_of_a_selector(selector: str, labels: dict[str, str]) -> None:
    assert labels_of(selector) == labels
