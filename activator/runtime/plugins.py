"""Loading of classes that other packages provide, by the name of an entry point or as `package.module:Class`."""

from __future__ import annotations

from importlib import import_module
from typing import Final

# The entry points that were found: `package.module:Class` by group and name.
_PATHS: Final[dict[tuple[str, str], str]] = {}


class PluginError(ValueError):
    """There is no such class, or it cannot be imported."""


def installed(group: str) -> dict[str, str]:
    """Return the entry points of the group: name and `package.module:Class`."""
    from importlib.metadata import entry_points  # imported here because it takes 15 ms

    return {point.name: point.value for point in entry_points(group=group)}


def load_plugin(group: str, name: str, what: str) -> object:
    """Return the object with this name. Raises PluginError, in whose text `what` names the kind of object."""
    module, _, attribute = (name if ":" in name else _path(group, name, what)).partition(":")
    try:
        found: object = getattr(import_module(module), attribute)
    except Exception as error:  # a package may raise anything while it is imported
        raise PluginError(f"{what} {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return found


def _path(group: str, name: str, what: str) -> str:
    """Return `package.module:Class` of an entry point; it is searched for once, because each revision asks for it."""
    path = _PATHS.get((group, name))
    if path is None:
        known = installed(group)
        path = known.get(name)
        if path is None:
            names = ", ".join([*sorted(known), "package.module:Class"])
            raise PluginError(f"no {what} is called {name!r}; there are {names}")
        _PATHS[group, name] = path
    return path
