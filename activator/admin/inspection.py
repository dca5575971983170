"""What `GET /debug/config` shows."""

from __future__ import annotations

from typing import Any

import msgspec

from activator.config.model.file import Config

_HIDDEN = "…"


def configuration(config: Config) -> Any:
    """The configuration in force, defaults included; what may be secret is hidden: values of environment variables."""
    shown = msgspec.to_builtins(config, enc_hook=_plain)
    for revision in shown["revisions"]:
        for program in (revision["process"], revision["container"]):
            if program is not None:
                program["environment"] = dict.fromkeys(program["environment"], _HIDDEN)
    return shown


def _plain(value: object) -> float | int:
    """Seconds and bytes are numbers with a name."""
    assert isinstance(value, float | int), f"{value!r} is no setting"
    return float(value) if isinstance(value, float) else int(value)
