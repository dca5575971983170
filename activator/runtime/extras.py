"""Features that need packages which a default install omits, and the error that names the command to install them.

Rules
  1. A feature imports the packages of an extra where it uses them, after `need` for that extra.
  2. `EXTRAS` names importable packages; pyproject.toml, [project.optional-dependencies], names the distributions that
     hold them. Both are changed together.
"""

from __future__ import annotations

import importlib.util
from typing import Final

from activator.runtime.errors import StartError

DISTRIBUTION: Final = "activator-proxy"
EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "kubernetes": ("kubernetes_asyncio", "google.protobuf", "grpc"),
    "tracing": (
        "opentelemetry.sdk",
        "opentelemetry.exporter.otlp.proto.http",
        "opentelemetry.proto",
        "google.protobuf",
        "requests",
    ),
}


def need(extra: str, feature: str) -> None:
    """Raise StartError with the command that installs `extra`, unless all of its packages are installed."""
    missing = [package for package in EXTRAS[extra] if not _is_installed(package)]
    if missing:
        raise StartError(
            f"{feature} needs packages that are not installed ({', '.join(missing)}): "
            f"pip install '{DISTRIBUTION}[{extra}]'"
        )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a package that should hold it is missing, such as `google`
        return False
