"""The API's last answers about the objects of one Activation, combined with the watches.

Rules
  1. Of an answer and the watch's state the newer one counts, by resource version, so a watch that has not shown our own
     write yet changes nothing.
  2. Without a watch, an answer is valid for REMEMBERED_S, after which the object is read again.
  3. A source may pass in the version of a Service without its content; if it is newer, the Service is read.
  4. A call without a known result clears the memory of its object.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from activator.control_plane.reconcile.desired import Desired, Observed, ObservedScale, ObservedService, ObservedStatus
from activator.control_plane.reconcile.traffic_wanted import FrontSlice, ObservedFrontSlice, ObservedTraffic

REMEMBERED_S: Final = 30.0  # how long an answer about an unwatched object is valid

ObservedObject = TypeVar("ObservedObject", ObservedService, ObservedScale, ObservedStatus)


class AnsweredTraffic:
    """The API's answers to the last writes of a Service's traffic, each with its resource version."""

    __slots__ = ("deleted", "is_alone", "slices")

    def __init__(self) -> None:
        self.slices: dict[str, tuple[FrontSlice, str]] = {}  # by name
        self.is_alone: tuple[bool, str] | None = None
        self.deleted: set[str] = set()  # UIDs of deleted slices, for as long as a watch shows them

    def merged_with(self, watched: ObservedTraffic) -> ObservedTraffic:
        """Return the watched state with the answers that are newer."""
        self.deleted &= {observed.uid for observed in watched.slices}
        slices = {observed.slice.name: observed for observed in watched.slices if observed.uid not in self.deleted}
        for name, (answered, version) in self.slices.items():
            seen = slices.get(name)
            if seen is not None and is_newer(version, seen.version):
                slices[name] = msgspec.structs.replace(seen, slice=answered, version=version)
            elif seen is None and not is_newer(watched.slices_version, version):
                slices[name] = ObservedFrontSlice(answered, version, "", watched.service_uid)
        is_alone = watched.is_alone
        if self.is_alone is not None and is_newer(self.is_alone[1], watched.service_version):
            is_alone = self.is_alone[0]
        return msgspec.structs.replace(watched, slices=tuple(slices.values()), is_alone=is_alone)


class ObservedCache:
    """The last known objects of one Activation. UNSET: unknown; None: there is no object."""

    __slots__ = (
        "had_service",
        "last_as_wanted",
        "scale",
        "scale_s",
        "service",
        "service_deleted",
        "service_s",
        "service_watched",
        "status",
        "status_s",
        "taken_at_s",
        "taken_for",
        "takes",
        "traffic",
    )

    def __init__(self) -> None:
        self.service: ObservedService | UnsetType | None = UNSET
        self.scale: ObservedScale | UnsetType | None = UNSET
        self.status: ObservedStatus | UnsetType | None = UNSET
        self.service_s = self.scale_s = self.status_s = 0.0
        self.service_watched = ""  # the last version of the Service that a watch has shown
        self.service_deleted = ""  # the last version of a deleted Service that a watch has shown
        self.had_service = False  # the API has answered with our Service before
        # The UID of the target and its replicas when they were last as wanted. Another number of the same target was
        # written by another program.
        self.last_as_wanted: tuple[str, int] | None = None
        self.taken_for: int | None = None  # the number of replicas that was last taken from another manager
        self.takes = 0  # how often they were taken in a row
        self.taken_at_s = 0.0
        self.traffic = AnsweredTraffic()

    @property
    def is_service_outdated(self) -> bool:
        """True if another program has written or deleted the Service after the API's answer."""
        if not isinstance(self.service, ObservedService):
            return False
        version = self.service.version
        return is_newer(self.service_watched, version) or (
            bool(self.service_deleted) and not is_newer(version, self.service_deleted)
        )

    def known_service(self, observed: Observed, now_s: float) -> ObservedService | UnsetType | None:
        """Return the last known private Service."""
        if observed.service is None:
            if isinstance(self.service, ObservedService) and is_newer(self.service.version, observed.services_version):
                return self.service
            return None
        if observed.service is UNSET and self.is_service_outdated:
            return UNSET
        return _newer(observed.service, self.service, now_s - self.service_s)

    def known_scale(self, observed: Observed, now_s: float) -> ObservedScale | UnsetType | None:
        """Return the last known scale of the target."""
        return _newer(observed.scale, self.scale, now_s - self.scale_s)

    def known_status(self, desired: Desired, now_s: float) -> ObservedStatus | UnsetType | None:
        """Return the last known status; UNSET if it belongs to an earlier Activation of the same name."""
        known = _newer(desired.observed.status, self.status, now_s - self.status_s)
        if isinstance(known, ObservedStatus) and known.uid != desired.uid:
            return UNSET
        return known

    def store_service(self, service: ObservedService | UnsetType | None, now_s: float) -> None:
        self.service, self.service_s = service, now_s
        self.had_service |= isinstance(service, ObservedService)

    def store_scale(self, scale: ObservedScale | UnsetType | None, now_s: float) -> None:
        self.scale, self.scale_s = scale, now_s

    def store_status(self, status: ObservedStatus | UnsetType | None, now_s: float) -> None:
        self.status, self.status_s = status, now_s


def _newer(
    watched: ObservedObject | UnsetType | None, answer: ObservedObject | UnsetType | None, age_s: float
) -> ObservedObject | UnsetType | None:
    """Return the newer of the state of a watch and an answer that is `age_s` old; UNSET: neither is known."""
    if watched is UNSET:
        return answer if age_s < REMEMBERED_S else UNSET
    if watched is None or answer is None or answer is UNSET:
        return watched
    assert not isinstance(watched, UnsetType)
    assert not isinstance(answer, UnsetType)
    return answer if watched.uid == answer.uid and is_newer(answer.version, watched.version) else watched


def is_newer(version: str, than: str) -> bool:
    """Return True if one resource version is newer than another; False if one of them is not a number."""
    if not (version.isascii() and version.isdigit() and than.isascii() and than.isdigit()):
        return False
    return int(version) > int(than)
