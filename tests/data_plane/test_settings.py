"""A data plane that was reconfigured has the settings of one that began so, whatever the keys."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from activator.config.model.file import Config
from activator.config.model.kinds import Duration, Size
from activator.config.model.listeners import Forwarded, Limits
from activator.data_plane.plane import DataPlane
from activator.runtime.tasks import TaskGroupOwner
from lb.rng import Rng

IN_THE_PARENT = "worker_stall"  # of the file's limits, what is not the data plane's


def settings_of(data: DataPlane) -> dict[str, Any]:
    registry, origins = data.registry, data.registry.origins
    return {
        "held": (data.held.bytes_max, data.held.requests_max),
        "files": data.files.bytes_max,
        "answers": (data.answers.bytes_max, data.answers.requests_max),
        "send_timeout": data.proxy.send_timeout_s,
        "trusts": data.router.trusts_revision_headers,
        "connections": (registry.connections_max, registry.handshakes_max),
        "requests": (registry.limits.header_bytes, registry.limits.headers, registry.limits.body_bytes),
        "idle": registry.idle_s,
        "rate": registry.body_rate,
        "streams": registry.streams_max,
        "overload": (float(data.overload.limits.loop_delay), data.overload.limits.memory),
        "half_close": registry.abort_on_half_close,
        "origins": (origins.trusted, origins.writes, origins.writes_request_id, origins.via),
    }


def changed(value: object) -> object:
    if isinstance(value, float):
        return Duration(float(value) + 1.0)
    assert isinstance(value, int)
    return Size(value // 2 + 1)


CASES: dict[str, Config] = {
    **{
        name: Config(limits=msgspec.structs.replace(Limits(), **{name: changed(getattr(Limits(), name))}))
        for name in Limits.__struct_fields__
        if name != IN_THE_PARENT
    },
    "trust": Config(forwarded=Forwarded(trust=["10.0.0.0/8"])),
    "headers written": Config(forwarded=Forwarded(headers="both", request_id=False, via="me")),
    "abort_on_half_close": Config(abort_on_half_close=True),
    "trust_revision_headers": Config(trust_revision_headers=True),
}


@pytest.mark.parametrize("name", CASES)
def test_reconfigured_is_as_begun_so(name: str) -> None:
    async def main() -> None:
        tasks = TaskGroupOwner(lambda _name, _error: None)
        began, other = (
            DataPlane(config, time.monotonic, lambda _message: None, Rng(1), tasks)
            for config in (Config(), CASES[name])
        )
        before = settings_of(began)
        assert before != settings_of(other), "the case changes something"
        began.reconfigure(CASES[name])
        assert settings_of(began) == settings_of(other)
        began.reconfigure(Config())
        assert settings_of(began) == before
        for data in (began, other):
            data.wheel.close()
        await tasks.close()

    asyncio.run(main())
