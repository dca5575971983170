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


def starter(situation: str) -> str:
    """Return the text of the file for a situation of SITUATIONS."""
    return (Path(__file__).parent / f"{situation}.yaml").read_text("utf-8")


def file_for(situation: str) -> str:
    """Return the name of the file that a situation has by default."""
    return MANIFEST if situation == "cluster" else FILE
