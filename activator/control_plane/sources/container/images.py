"""Images: they are inspected, and pulled if they are missing. Starts of one image share its pull."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from activator.control_plane.sources.container.engine import Engine, EngineAwayError, EngineError
from activator.control_plane.sources.container.streams import JsonLines, NoStreamError
from activator.control_plane.sources.process.unit import NotStartedError
from activator.runtime.errors import one_line
from activator.runtime.tasks import TaskGroupOwner

PULL_STALL_S: Final = 60.0  # the longest time without progress
_READ_BYTES: Final = 64 * 1024

log = logging.getLogger("activator.container")

_Failure = NotStartedError | EngineAwayError | None  # the failure of a pull


class Images:
    """The images of one engine."""

    def __init__(self, engine: Engine, tasks: TaskGroupOwner) -> None:
        self._engine = engine
        self._tasks = tasks
        self._pulls: dict[str, asyncio.Task[_Failure]] = {}

    async def provide(self, name: str, pull: str, timeout_s: float) -> dict[str, object]:
        """Return the inspected image, pulled if needed. Raises NotStartedError, EngineAwayError."""
        image = None if pull == "always" else await self._engine.inspect("images", name)
        if image is None and pull != "never":
            failure = await self._shared_pull(name, timeout_s)
            if failure is not None:
                raise failure
            image = await self._engine.inspect("images", name)
        if image is None:
            tool = "podman" if self._engine.is_podman else "docker"
            raise NotStartedError(f"there is no image {name}: {tool} pull {name}, or correct `image`")
        return image

    async def _shared_pull(self, name: str, timeout_s: float) -> _Failure:
        """Pull the image, or join its present pull, which outlasts a start that is given up. Return why it failed."""
        task = self._pulls.get(name)
        if task is None:
            task = self._pulls[name] = self._tasks.start(f"pull of {name}", self._pull(name, timeout_s))
            task.add_done_callback(lambda _: self._pulls.pop(name, None))
        return await asyncio.shield(task)

    async def _pull(self, name: str, timeout_s: float) -> _Failure:
        """Pull the image; return why that failed, None if it did not."""
        log.info("pulling the image %s", name)
        try:
            async with asyncio.timeout(timeout_s):
                problem = await self._request_pull(name)
        except TimeoutError:
            problem = f"it took longer than {timeout_s:g} s (`containers.pull_timeout`)"
        except EngineError as error:
            problem = error.message
        except EngineAwayError as error:
            return EngineAwayError(f"the image {name} cannot be pulled: {error}")
        except NoStreamError as error:
            problem = str(error)
        if problem:
            return NotStartedError(f"the image {name} cannot be pulled: {problem}")
        log.info("pulled the image %s", name)
        return None

    async def _request_pull(self, name: str) -> str:
        """Have the engine pull the image; return its error, empty if there is none."""
        lines = JsonLines()
        query = query_of(name)
        async with self._engine.streamed("POST", "/images/create", query, idle_s=PULL_STALL_S) as content:
            while data := await content.read(_READ_BYTES):
                for step in lines.feed(data):
                    if "error" in step:
                        return one_line(str(step["error"]))[:300]
            for step in lines.end():
                if "error" in step:
                    return one_line(str(step["error"]))[:300]
        return ""


def query_of(name: str) -> dict[str, str]:
    """Return the query of a pull. A name without a tag gets `latest`; otherwise the engine would pull all tags."""
    if "@" in name:  # a digest
        return {"fromImage": name}
    head, slash, last = name.rpartition("/")
    base, _, tag = last.partition(":")
    return {"fromImage": head + slash + base, "tag": tag or "latest"}
