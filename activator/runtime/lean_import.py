"""Imports large packages without their unused modules.

`import kubernetes_asyncio` imports every API and every model class, about 900 modules, none of which is used: objects
are decoded into our own structs (docs/decisions/kubernetes-objects.md has the measurement). `import aiohttp` imports
its client, which a program with an admin port does not need: 4 MB resident and 60 of 370 ms of a start.

Rules
  1. The packages that import everything are replaced by shells with their name, path and spec, which are not executed.
  2. An attribute of a shell is first looked up among its submodules. Any other attribute executes the real package in
     place of the shell, so that code that needs the rest works, at the full cost.
  3. A package that has already been imported stays unchanged.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any, Final

# Names that the packages' own modules import from them, and their modules, so that the import does not execute the
# package.
_SHELLS: Final[dict[str, dict[str, str]]] = {
    "kubernetes_asyncio": {},
    "kubernetes_asyncio.client": {
        "ApiClient": "kubernetes_asyncio.client.api_client",
        "Configuration": "kubernetes_asyncio.client.configuration",
    },
    "kubernetes_asyncio.client.models": {},
    "aiohttp": {},
}

# Special names that need the real package. Tools ask for others only to inspect a module.
_NEEDS_PACKAGE: Final = {"__all__", "__version__"}


def prepare(package: str) -> None:
    """Put the shells of `package` in place; call it before anything of the package is imported. Idempotent."""
    for name, modules in _SHELLS.items():
        if name.partition(".")[0] == package and name not in sys.modules:
            _put_shell(name, modules)


def _put_shell(name: str, modules: dict[str, str]) -> None:
    """Put a shell in place of one package; `modules` has the module of each name that is imported from it."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None, f"{name} is not installed"
    loader = spec.loader
    shell = importlib.util.module_from_spec(spec)
    lock = threading.RLock()  # others wait until the package is executed
    is_executed = False

    def find(attribute: str) -> Any:
        nonlocal is_executed
        with lock:
            if attribute in shell.__dict__:
                value = shell.__dict__[attribute]
            elif attribute in modules:
                value = getattr(importlib.import_module(modules[attribute]), attribute)
            elif attribute == "__version__" and "." not in name:
                value = importlib.import_module("importlib.metadata").version(name)  # it takes 2 MB
            elif not attribute.startswith("__") and importlib.util.find_spec(f"{name}.{attribute}") is not None:
                value = importlib.import_module(f"{name}.{attribute}")
            elif not is_executed and (attribute in _NEEDS_PACKAGE or not attribute.startswith("__")):
                is_executed = True  # from here on this is the real package
                try:
                    loader.exec_module(shell)
                except BaseException:
                    is_executed = False
                    raise
                if shell.__dict__.get("__getattr__") is find:
                    del shell.__dict__["__getattr__"]
                return getattr(shell, attribute)
            else:
                raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
            setattr(shell, attribute, value)
            return value

    shell.__dict__["__getattr__"] = find
    sys.modules[name] = shell
    parent, _, child = name.rpartition(".")
    if parent:
        _set_child(sys.modules[parent], child, shell)


def _set_child(parent: ModuleType, child: str, module: ModuleType) -> None:
    setattr(parent, child, module)  # as the import system does after the import of a submodule
