"""The wheel as it is installed: every module that is to be compiled is imported, and is what the wheel says.

`python -I tests/wheel.py compiled|plain pyproject.toml`, with the Python that the wheel is installed for. `make wheel`
does it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import sys
import tomllib
from pathlib import Path

DISTRIBUTION = "activator-proxy"
SHOWN_MAX = 5  # problems


def modules(pyproject: Path) -> list[str]:
    """Return the names of the modules that are to be compiled."""
    listed = tomllib.loads(pyproject.read_text("utf-8"))["tool"]["activator"]["compile"]
    root = pyproject.resolve().parent
    included = {path for pattern in listed["include"] for path in root.glob(pattern)}
    excluded = {path for pattern in listed["exclude"] for path in root.glob(pattern)}
    return sorted(".".join(path.relative_to(root).with_suffix("").parts) for path in included - excluded)


def problems(world: str, pyproject: Path) -> list[str]:
    """Return what is not as it should be in `world`."""
    import lb

    found = []
    root = pyproject.resolve().parent
    wheel = importlib.metadata.distribution(DISTRIBUTION).read_text("WHEEL") or ""
    said = "plain" if "Root-Is-Purelib: true" in wheel else "compiled"
    is_compiled = "compiled" if lb.COMPILED else "plain"
    if (said, is_compiled) != (world, world):
        found.append(f"the wheel says {said} and is {is_compiled}, expected {world}")
    suffix = ".py" if world == "plain" else importlib.machinery.EXTENSION_SUFFIXES[0]
    for name in modules(pyproject):
        file = str(importlib.import_module(name).__file__)
        if not file.endswith(suffix):
            found.append(f"{name} is {file}, expected a file that ends in {suffix}")
        if Path(file).is_relative_to(root / "lb") or Path(file).is_relative_to(root / "activator"):
            found.append(f"{name} is that of the checkout: {file}")
    return found


if __name__ == "__main__":
    found = problems(sys.argv[1], Path(sys.argv[2]))
    if found:
        raise SystemExit("\n".join(found[:SHOWN_MAX]))
    print(f"the wheel: {sys.argv[1]}, {len(modules(Path(sys.argv[2])))} modules imported")
