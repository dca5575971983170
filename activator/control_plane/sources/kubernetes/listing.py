"""A whole list, page by page, without holding up the loop: a page may be megabytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from activator.control_plane.sources.kubernetes.client import KubeClient
from activator.control_plane.sources.kubernetes.decoding import Decoding
from activator.control_plane.sources.kubernetes.errors import TooLargeError
from activator.control_plane.sources.kubernetes.objects import Object, ObjectList
from activator.control_plane.sources.kubernetes.resources import Selection
from activator.runtime.units import MIB

KUBE_PAGE_OBJECTS: Final = 250  # objects in one page of a list
KUBE_PAGES_MAX: Final = 2_000  # of one list: a server that never ends it is not trusted
KUBE_BYTES_PER_TURN_MAX: Final = MIB  # … or so much of what came, decoded in 3 ms

Pause = Callable[[float], Awaitable[None]]


async def list_all(
    client: KubeClient,
    selection: Selection[Object],
    decoding: Decoding[Object],
    pause: Pause,
    page_objects: int = KUBE_PAGE_OBJECTS,
) -> tuple[list[Object], str]:
    """The objects and the resource version that they are of. Raises KubeError; 410: it took too long, begin again.

    Without a resource version in the query the answer is consistent: at least as new as any answer before.
    Pages of one list are all of one version.
    """
    query = {**selection.query(), "limit": str(page_objects)}
    items: list[Object] = []
    for _ in range(KUBE_PAGES_MAX):
        page = await _decoded(await client.list_page(selection.path, query), decoding, pause)
        items += page.items or ()
        if not page.metadata.continue_token:
            return items, page.metadata.resource_version
        query["continue"] = page.metadata.continue_token
    raise TooLargeError(f"a list of more than {KUBE_PAGES_MAX} pages")


async def _decoded(body: bytes, decoding: Decoding[Object], pause: Pause) -> ObjectList[Object]:
    if len(body) <= KUBE_BYTES_PER_TURN_MAX:
        return decoding.list(body)
    raw = decoding.raw_list(body)
    items: list[Object] = []
    size = 0
    for one in raw.items or ():
        item = decoding.item(one)
        if item is not None:
            items.append(item)
        size += len(memoryview(one))
        if size > KUBE_BYTES_PER_TURN_MAX:
            size = 0
            await pause(0)
    return ObjectList(raw.metadata, items)
