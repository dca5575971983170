"""The path of a target's scale: from a table for built-in kinds, from the API's discovery for others."""

from __future__ import annotations

from typing import Final, final

import msgspec

from activator.control_plane.reconcile.api import Api, not_found
from activator.control_plane.reconcile.desired import TargetReference
from activator.control_plane.reconcile.rights import SCALES, Right, scale_right
from activator.runtime.clock import Now

KINDS_MAX: Final = 256  # other kinds of targets that are remembered
KINDS_TRUSTED_S: Final = 600.0  # until the discovery is read again
KINDS_UNKNOWN_S: Final = 30.0  # the same for a kind that it did not have, which may be defined later


class NoScaleError(Exception):
    """No object of this kind can be scaled."""


class _Resource(msgspec.Struct, frozen=True):
    name: str = ""
    kind: str = ""


class _ResourceList(msgspec.Struct, frozen=True):
    resources: list[_Resource] | None = None


_RESOURCES: Final = msgspec.json.Decoder(_ResourceList)


@final
class Kinds:
    """The kinds of targets. Discovery is open to every account (the role system:discovery), so no right is needed."""

    def __init__(self, api: Api, now: Now) -> None:
        self._api = api
        self._now = now
        self._known: dict[tuple[str, str], tuple[Right | None, float]] = {}

    async def scale_path(self, target: TargetReference, namespace: str) -> str:
        """Return the path of the target's scale; raise NoScaleError, or the API's refusal."""
        right = SCALES.get((target.api_version, target.kind)) or await self._discovered(target)
        if right is None:
            raise NoScaleError(f"the API has no {target.kind} of {target.api_version} that can be scaled")
        return right.path(namespace, target.name)

    def may_apply(self, target: TargetReference) -> bool:
        """Return True if its scale accepts a server-side apply; a custom resource's answers 500 (Kubernetes 1.36)."""
        return (target.api_version, target.kind) in SCALES

    async def _discovered(self, target: TargetReference) -> Right | None:
        """Return the right for the scale of the target's kind; None: it has no scale. Answers are cached."""
        key = (target.api_version, target.kind)
        right, until_s = self._known.get(key, (None, 0.0))
        if self._now() < until_s:
            return right
        right = await self._discover(target)
        if len(self._known) >= KINDS_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[key] = (right, self._now() + (KINDS_UNKNOWN_S if right is None else KINDS_TRUSTED_S))
        return right

    async def _discover(self, target: TargetReference) -> Right | None:
        """Ask the API for the kinds of this version; return the right, or None if the kind has no scale."""
        path = f"/apis/{target.api_version}" if "/" in target.api_version else f"/api/{target.api_version}"
        try:
            resources = _RESOURCES.decode(await self._api.get(path)).resources or []
        except Exception as error:
            if not_found(error) or getattr(error, "status", 0) == 404:  # the answer for an unknown group has no Status
                return None
            raise
        scaled = {resource.name.removesuffix("/scale") for resource in resources if resource.name.endswith("/scale")}
        for resource in resources:
            if resource.kind == target.kind and resource.name in scaled:
                return scale_right(target.api_version, resource.name)
        return None
