"""What the API last said of the objects of one Activation, beside what watches show.

Rules
  1. Of both the newer one counts, by resource version: a watch that has not shown our own write yet changes nothing.
  2. Where nothing is watched, what the API said counts for REMEMBERED_S, and is read again then.
  3. Of a Service whose content is not handed in, its versions may be: a newer one is read.
  4. A call whose outcome is not known makes it forget what the call was about.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from activator.control_plane.reconcile.desired import Desired, Observed, ScaleSeen, ServiceSeen, StatusSeen
from activator.control_plane.reconcile.traffic_wanted import FrontSlice, FrontSliceSeen, TrafficSeen

REMEMBERED_S: Final = 30.0  # what the API said of an object that nothing watches

Seen = TypeVar("Seen", ServiceSeen, ScaleSeen, StatusSeen)


class SaidTraffic:
    """What the API has answered to the last writes of a Service's traffic, each with its resource version."""

    __slots__ = ("gone", "is_alone", "slices")

    def __init__(self) -> None:
        self.slices: dict[str, tuple[FrontSlice, str]] = {}  # by name
        self.is_alone: tuple[bool, str] | None = None
        self.gone: set[str] = set()  # UIDs of slices that were deleted, as long as a watch shows them

    def known(self, watched: TrafficSeen) -> TrafficSeen:
        """The newer of what is watched and what was answered."""
        self.gone &= {one.uid for one in watched.slices}
        slices = {one.slice.name: one for one in watched.slices if one.uid not in self.gone}
        for name, (said, version) in self.slices.items():
            seen = slices.get(name)
            if seen is not None and is_newer(version, seen.version):
                slices[name] = msgspec.structs.replace(seen, slice=said, version=version)
            elif seen is None and not is_newer(watched.slices_version, version):
                slices[name] = FrontSliceSeen(said, version, "", watched.service_uid)
        is_alone = watched.is_alone
        if self.is_alone is not None and is_newer(self.is_alone[1], watched.service_version):
            is_alone = self.is_alone[0]
        return msgspec.structs.replace(watched, slices=tuple(slices.values()), is_alone=is_alone)


class Memory:
    """Of one Activation. UNSET: not known; None: there is none."""

    __slots__ = (
        "had_service",
        "scale",
        "scale_s",
        "service",
        "service_gone",
        "service_news",
        "service_s",
        "settled",
        "status",
        "status_s",
        "taken_at_s",
        "taken_for",
        "takes",
        "traffic",
    )

    def __init__(self) -> None:
        self.service: ServiceSeen | UnsetType | None = UNSET
        self.scale: ScaleSeen | UnsetType | None = UNSET
        self.status: StatusSeen | UnsetType | None = UNSET
        self.service_s = self.scale_s = self.status_s = 0.0
        self.service_news = ""  # the version of the Service that was last heard of …
        self.service_gone = ""  # … and the last one of one that was deleted
        self.had_service = False  # the API has answered with one of ours before
        # The UID of the target and its replicas, when they were last as wanted. Another number of the same target was
        # written by somebody else.
        self.settled: tuple[str, int] | None = None
        self.taken_for: int | None = None  # the replicas that were last taken from another manager
        self.takes = 0  # how often they were taken in a row
        self.taken_at_s = 0.0
        self.traffic = SaidTraffic()

    @property
    def is_service_outdated(self) -> bool:
        """Somebody has written or deleted it since the API answered."""
        if not isinstance(self.service, ServiceSeen):
            return False
        version = self.service.version
        return is_newer(self.service_news, version) or (
            bool(self.service_gone) and not is_newer(version, self.service_gone)
        )

    def known_service(self, observed: Observed, now_s: float) -> ServiceSeen | UnsetType | None:
        if observed.service is None:
            if isinstance(self.service, ServiceSeen) and is_newer(self.service.version, observed.services_version):
                return self.service
            return None
        if observed.service is UNSET and self.is_service_outdated:
            return UNSET
        return _newer(observed.service, self.service, now_s - self.service_s)

    def known_scale(self, observed: Observed, now_s: float) -> ScaleSeen | UnsetType | None:
        return _newer(observed.scale, self.scale, now_s - self.scale_s)

    def known_status(self, desired: Desired, now_s: float) -> StatusSeen | UnsetType | None:
        """A status of an Activation with another UID is as good as none known."""
        known = _newer(desired.observed.status, self.status, now_s - self.status_s)
        if isinstance(known, StatusSeen) and known.uid != desired.uid:
            return UNSET
        return known

    def says_service(self, service: ServiceSeen | UnsetType | None, now_s: float) -> None:
        self.service, self.service_s = service, now_s
        self.had_service |= isinstance(service, ServiceSeen)

    def says_scale(self, scale: ScaleSeen | UnsetType | None, now_s: float) -> None:
        self.scale, self.scale_s = scale, now_s

    def says_status(self, status: StatusSeen | UnsetType | None, now_s: float) -> None:
        self.status, self.status_s = status, now_s


def _newer(watched: Seen | UnsetType | None, said: Seen | UnsetType | None, age_s: float) -> Seen | UnsetType | None:
    if watched is UNSET:
        return said if age_s < REMEMBERED_S else UNSET
    if watched is None or said is None or said is UNSET:
        return watched
    assert not isinstance(watched, UnsetType)
    assert not isinstance(said, UnsetType)
    return said if watched.uid == said.uid and is_newer(said.version, watched.version) else watched


def is_newer(version: str, than: str) -> bool:
    """Whether one resource version is newer than another; where one of them is no number, it is not."""
    if not (version.isascii() and version.isdigit() and than.isascii() and than.isdigit()):
        return False
    return int(version) > int(than)
