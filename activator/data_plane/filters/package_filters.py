"""Filters of other packages, from entry points of the group `activator.filters` or by their import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from activator.config.specs import FILTER_ENTRY_POINTS
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Filter
from activator.runtime.plugins import PluginError, load_plugin


def make_filter(name: str, options: Mapping[str, str]) -> Filter:
    """Return a new filter for one revision. Raises PluginError, or any exception of its class."""
    found = load_plugin(FILTER_ENTRY_POINTS, name, "filter")
    if not (isinstance(found, type) and issubclass(found, Filter)):
        raise PluginError(f"filter {name!r} is {found!r}, which is not a subclass of activator.filters.Filter")
    make: Any = found  # the base class has no parameter
    made: Filter = make(options)
    return made


@final
class Unusable(Filter):
    """The replacement of a filter that could not be created; it refuses every request, for security."""

    def __init__(self, name: str) -> None:
        self._name = name

    def on_request(self, request: Exchange) -> None:
        raise PluginError(f"filter {self._name!r} could not be made")
