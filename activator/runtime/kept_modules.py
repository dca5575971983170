"""Modules that are imported later, as they are now: an upgrade of the package replaces their files while it runs."""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Final


def keep(package: ModuleType, *others: str) -> None:
    """Keep the code of the package's modules that are not imported yet, and that of other modules. Idempotent.

    Only modules of plain Python are kept; packages within the package are, too, but not their modules.
    """
    names = [f"{package.__name__}.{one.name}" for one in pkgutil.iter_modules(package.__path__)]
    for name in (*names, *others):
        if name in sys.modules or name in _FINDER.loaders:
            continue
        spec = importlib.util.find_spec(name)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            _FINDER.loaders[name] = _KeptLoader(name, spec.loader.path, spec.loader.get_code(name))
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


class _KeptLoader(SourceFileLoader):
    """The loader of one module, whose code has been read."""

    def __init__(self, name: str, path: str, code: CodeType | None) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType | None:
        return self._code


class _Finder:
    """The finder of kept modules, the first of all (`sys.meta_path`)."""

    def __init__(self) -> None:
        self.loaders: dict[str, _KeptLoader] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a kept module; None for all others."""
        loader = self.loaders.get(fullname)
        return None if loader is None else importlib.util.spec_from_file_location(fullname, loader.path, loader=loader)


_FINDER: Final = _Finder()
