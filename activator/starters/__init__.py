"""Commented configuration files to begin with, one for each situation (`activator init`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SITUATIONS: Final = {
    "program": "one program on this machine",
    "models": "model servers that share a GPU",
    "backends": "servers that run already",
    "cluster": "a Deployment of a Kubernetes cluster",
}
FILE: Final = "activator.yaml"
MANIFEST: Final = "activation.yaml"  # what a cluster takes


def starter(situation: str, name: str = "") -> str:
    """Return the example file for `situation`, a key of SITUATIONS, with comments for a file of this name."""
    text = (Path(__file__).parent / f"{situation}.yaml").read_text("utf-8")
    return text.replace(file_for(situation), name) if name else text


def file_for(situation: str) -> str:
    """Return the default name of the file that `activator init SITUATION` writes."""
    return MANIFEST if situation == "cluster" else FILE
