"""The settings of a run, and the imports before its event loop begins."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import msgspec

from activator.config.model.file import AUTO, Config
from activator.config.specs import RevisionSpec
from activator.runtime.processors import processors


class Settings(msgspec.Struct, frozen=True):
    """The settings of a run: the configuration, how to read the file again, and the seed of every random choice."""

    config: Config
    specs: list[RevisionSpec]
    reload: Callable[[], tuple[Config, list[RevisionSpec]]] | None = None
    seed: int | None = None
    encode_messages: bool = False  # encode every message between the planes


def worker_count(config: Config) -> int:
    """Return the number of processes that serve."""
    return processors() if config.workers == AUTO else int(config.workers)


def load() -> None:
    """Import the modules that the parent of several workers uses.

    Call it before the workers' zygote is forked: modules that are loaded later are copied in every process.
    """
    importlib.import_module("activator.workers.pool")
    importlib.import_module("encodings.idna")  # used for every lookup of a name
