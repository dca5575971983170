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
    plugin = load_plugin(FILTER_ENTRY_POINTS, name, "filter")
    if not (isinstance(plugin, type) and issubclass(plugin, Filter)):
        raise PluginError(f"filter {name!r} is {plugin!r}, which is not a subclass of activator.filters.Filter")
    filter_class: Any = plugin  # the base class has no parameter
    created: Filter = filter_class(options)
    return created


@final
class Unusable(Filter):
    """The replacement of a filter that could not be created; it refuses every request, for security."""

    def __init__(self, name: str) -> None:
        self._name = name

    def on_request(self, request: Exchange) -> None:
        raise PluginError(f"filter {self._name!r} could not be made")
