"""Loading of classes that other packages provide, by the name of an entry point or as `package.module:Class`."""

from __future__ import annotations

from importlib import import_module


class PluginError(ValueError):
    """There is no such class, or it cannot be imported."""


def installed(group: str) -> dict[str, str]:
    """Return the entry points of the group: name and `package.module:Class`."""
    from importlib.metadata import entry_points  # imported here because it takes 15 ms

    return {point.name: point.value for point in entry_points(group=group)}


def load_plugin(group: str, name: str, what: str) -> object:
    """Return the object with this name. Raises PluginError, in whose text `what` names the kind of object."""
    path = name
    if ":" not in name:
        known = installed(group)
        if name not in known:
            names = ", ".join([*sorted(known), "package.module:Class"])
            raise PluginError(f"no {what} is called {name!r}; there are {names}")
        path = known[name]
    module, _, attribute = path.partition(":")
    try:
        found: object = getattr(import_module(module), attribute)
    except Exception as error:  # a package may raise anything while it is imported
        raise PluginError(f"{what} {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return found
