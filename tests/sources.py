"""What is compiled, and where our files are; for the tests of the build and of the architecture."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("activator", "lb")

_build = runpy.run_path(str(ROOT / "setup.py"))  # under another name than __main__ it builds nothing

COMPILED_SOURCES: list[Path] = _build["compiled_sources"]()
COMPILED_MODULES: list[str] = [_build["module_name"](source) for source in COMPILED_SOURCES]
PRODUCT_FILES: list[Path] = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_of(path: Path) -> str:
    name: str = _build["module_name"](path.relative_to(ROOT))
    return name.removesuffix(".__init__")


PRODUCT_MODULES: list[str] = [module_of(path) for path in PRODUCT_FILES]
