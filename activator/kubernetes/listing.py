"""Reads a whole list page by page without blocking the loop; a page may be megabytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from activator.kubernetes.client import WHOLE_OBJECTS, KubeClient
from activator.kubernetes.decoding import Decoding
from activator.kubernetes.errors import TooLargeError
from activator.kubernetes.objects import Key, ListMetadata, Object
from activator.kubernetes.resources import Selection
from activator.runtime.units import MIB

KUBE_PAGE_OBJECTS: Final = 500  # objects in one page of a list, as in Kubernetes' own clients
KUBE_PAGES_MAX: Final = 2_000  # bounds a list that a faulty server never ends
KUBE_BYTES_PER_TURN_MAX: Final = MIB  # bytes decoded before the loop gets a turn; takes 3 ms

Pause = Callable[[float], Awaitable[None]]


async def list_all(
    client: KubeClient,
    selection: Selection[Any],
    decoding: Decoding[Object],
    pause: Pause,
    page_objects: int = KUBE_PAGE_OBJECTS,
    accept: str = WHOLE_OBJECTS,
) -> tuple[dict[Key, Object], str]:
    """Return the objects and their resource version. Raise KubeError; 410: it took too long and must start again.

    `accept`: the representation of the objects to ask for, which `decoding` can read.

    Without a resource version in the query the answer is consistent: at least as new as any answer before.
    All pages of one list are of one version.
    """
    query = {**selection.query(), "limit": str(page_objects)}
    items: dict[Key, Object] = {}
    for _ in range(KUBE_PAGES_MAX):
        body = await client.list_page(selection.path, query, accept)
        metadata, page = await _decoded(body, decoding, pause)
        items.update(page)
        if not metadata.continue_token:
            return items, metadata.resource_version
        query["continue"] = metadata.continue_token
    raise TooLargeError(f"a list of more than {KUBE_PAGES_MAX} pages")


async def _decoded(body: bytes, decoding: Decoding[Object], pause: Pause) -> tuple[ListMetadata, dict[Key, Object]]:
    """Return the metadata and the objects of a page; a large page is decoded in several turns of the loop."""
    if len(body) <= KUBE_BYTES_PER_TURN_MAX:
        page = decoding.list(body)
        return page.metadata, {item.key: item for item in page.items or ()}
    raw = decoding.raw_list(body)
    items: dict[Key, Object] = {}
    size = 0
    for raw_item in raw.items or ():
        item = decoding.item(raw_item)
        if item is not None:
            items[item.key] = item
        size += len(memoryview(raw_item))
        if size > KUBE_BYTES_PER_TURN_MAX:
            size = 0
            await pause(0)
    return raw.metadata, items
