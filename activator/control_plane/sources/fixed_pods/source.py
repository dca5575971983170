"""The fixed pods of each revision: configured addresses, addresses of names, and those of a file.

Rules
  1. They are submitted as one list per revision, after each change of a part: a pod stays as long as any part has its
     address, with its weight and zone in the first one. Pods that are in no part drain.
  2. A revision that has no pods because a name or a file fails has a cause (`cause_of`), from the moment at which the
     first of them failed.
  3. A reload keeps the state of names and files that are still configured.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

import msgspec

from activator.config.model.pods import Pod
from activator.config.model.revision import Revision
from activator.control_plane.probes.probed_pod import Failing
from activator.control_plane.sources.fixed_pods.name_watch import NAMES_AT_ONCE_MAX, NameWatch, Wait
from activator.control_plane.sources.fixed_pods.pods_file import Entries, PodsFile
from activator.control_plane.sources.fixed_pods.resolver import NameResolver, Target
from activator.messages import Change, ObservedPod, PodsListed, PodStatus
from activator.runtime.clock import Now
from activator.runtime.sockets import join_address, split_address
from activator.runtime.tasks import TaskGroupOwner, wait_for
from activator.runtime.unix_address import is_unix

SOURCE: Final = "static"
FORMER_S: Final = 30.0  # how long the answers that a former process had serve new names


class HandedName(msgspec.Struct, frozen=True, array_like=True):
    """The last answer for a name, for another process of the activator. `port` 0: its SRV records."""

    host: str
    port: int
    targets: tuple[Target, ...]


class _Name(NamedTuple):
    """A query: the addresses of `host`, all with `port`; or, with port 0, the SRV records of `host`."""

    host: str
    port: int


class _Parts:
    """The parts from which the pods of one revision come."""

    def __init__(self, fixed: Entries, path: str) -> None:
        self.fixed = fixed
        self.path = path
        self.file: PodsFile | None = None
        self.names: dict[_Name, NameWatch] = {}
        self.tasks: dict[object, asyncio.Task[None]] = {}  # by name, or path of the file
        self.submitted: PodsListed | None = None


class FixedPods:
    """The fixed pods. `changed(key, new_pods)` is called when a revision's pods, or else its cause, have changed."""

    def __init__(
        self,
        tasks: TaskGroupOwner,
        submit: Callable[[Change], None],
        changed: Callable[[str, bool], None],
        now: Now,
        resolver: NameResolver,
        wall_clock: Now,
        wait: Wait = wait_for,
    ) -> None:
        self._tasks = tasks
        self._submit = submit
        self._changed = changed
        self._now = now
        self.resolver = resolver
        self._wall_clock = wall_clock
        self._wait = wait
        self._permits = asyncio.Semaphore(NAMES_AT_ONCE_MAX)
        self._revisions: dict[str, _Parts] = {}
        self._former: dict[_Name, tuple[Target, ...]] = {}  # the answers of a former process
        self._former_until_s = 0.0

    def set_revision(self, key: str, revision: Revision) -> None:
        """Add or replace a revision, and submit its pods."""
        parts = self._revisions.get(key)
        if parts is None:
            parts = self._revisions[key] = _Parts([], "")
        parts.fixed = revision.pods
        if parts.path != revision.pods_file:
            self._cancel_task(parts, parts.path)
            parts.path, parts.file = revision.pods_file, None
            if parts.path:
                label = f"{key}: the pods_file {parts.path}"
                changed = partial(self._submit_changed, key)
                parts.file = PodsFile(label, parts.path, changed, self._now, self._wait, self._wall_clock)
                parts.tasks[parts.path] = self._tasks.keep_running("pods file", parts.file.step)
        parts.submitted = None
        self._submit_changed(key)

    def drop_revision(self, key: str) -> None:
        parts = self._revisions.pop(key, None)
        if parts is not None:
            for name in list(parts.tasks):
                self._cancel_task(parts, name)

    def has_pods(self, key: str) -> bool:
        """Return True if the revision is configured with fixed pods."""
        parts = self._revisions.get(key)
        return parts is not None and bool(parts.fixed or parts.path)

    def handed(self) -> tuple[HandedName, ...]:
        """Return the last answers for all names that have addresses."""
        answers = {
            name: watch.targets
            for parts in self._revisions.values()
            for name, watch in parts.names.items()
            if watch.targets
        }
        return tuple([HandedName(name.host, name.port, targets) for name, targets in answers.items()])

    def restore(self, names: Iterable[HandedName]) -> None:
        """Continue with the answers of a former process where no query has been answered yet.

        They also serve names of files that are read within FORMER_S.
        """
        self._former = {_Name(handed.host, handed.port): handed.targets for handed in names}
        self._former_until_s = self._now() + FORMER_S
        for parts in list(self._revisions.values()):
            for name, watch in parts.names.items():
                watch.restore(self._former.get(name, ()))

    def resubmit(self, key: str) -> None:
        self._submit(self.listed(key))

    def expedite(self, key: str) -> None:
        """Query failing names of a revision without pods soon: requests wait for it."""
        parts = self._revisions.get(key)
        if parts is not None and parts.names and not (parts.submitted and parts.submitted.pods):
            for watch in parts.names.values():
                watch.expedite()

    def cause_of(self, key: str) -> Failing | None:
        """Return why the revision has no pods; None if it has some, or nothing fails."""
        parts = self._revisions.get(key)
        if parts is None or (parts.submitted is not None and parts.submitted.pods):
            return None
        return min(
            (Failing(part.failing_since_s, _problem_of(part)) for part in self._failing_parts(parts)), default=None
        )

    def problems(self, key: str) -> list[str]:
        """Return the problems of its failing names and files, whether it has pods or not; for people."""
        parts = self._revisions.get(key)
        return [] if parts is None else [_problem_of(part) for part in self._failing_parts(parts)]

    def listed(self, key: str) -> PodsListed:
        """Return all of its pods as one list."""
        parts = self._revisions.get(key)
        pods: dict[str, ObservedPod] = {}
        if parts is not None:
            for entry in self._entries(parts):
                zone = "" if isinstance(entry, str) else entry.zone
                for address, weight in self._addresses(parts, entry):
                    if address not in pods:
                        pods[address] = ObservedPod(
                            key, SOURCE, address, address, PodStatus.PENDING, True, weight, zone=zone
                        )
        return PodsListed(key, SOURCE, tuple(pods.values()))

    # --- within ---

    def _failing_parts(self, parts: _Parts) -> list[NameWatch | PodsFile]:
        watched: list[NameWatch | PodsFile] = [*parts.names.values()]
        if parts.file is not None:
            watched.append(parts.file)
        return [part for part in watched if part.problem]

    def _entries(self, parts: _Parts) -> Entries:
        return parts.fixed if parts.file is None else [*parts.fixed, *parts.file.entries]

    def _addresses(self, parts: _Parts, entry: str | Pod) -> list[tuple[str, int]]:
        name = _name_of(entry)
        if name is None:
            assert isinstance(entry, str) or entry.address
            address, weight = (entry, 1) if isinstance(entry, str) else (entry.address, entry.weight)
            return [(canonical(address), weight)]
        watch = parts.names.get(name)
        entry_weight = 1 if isinstance(entry, str) else entry.weight
        targets = () if watch is None else watch.targets
        return [
            (join_address(target.ip, target.port or name.port), target.weight if not name.port else entry_weight)
            for target in targets
        ]

    def _submit_changed(self, key: str) -> None:
        """Submit the pods of a revision if they have changed; to be called when a part has changed."""
        parts = self._revisions.get(key)
        if parts is None:
            return  # the call is from a task that is being cancelled
        self._watch_names(key, parts)
        listed = self.listed(key)
        new_pods = listed != parts.submitted
        if new_pods:
            parts.submitted = listed
            self._submit(listed)
        self._changed(key, new_pods)

    def _watch_names(self, key: str, parts: _Parts) -> None:
        """Start and end watches, so that exactly the names of the entries are watched."""
        wanted = {name for entry in self._entries(parts) if (name := _name_of(entry)) is not None}
        for name in [known for known in parts.names if known not in wanted]:
            del parts.names[name]
            self._cancel_task(parts, name)
        for name in wanted - parts.names.keys():
            query = f"{name.host}:{name.port}" if name.port else f"SRV {name.host}"
            ask = partial(self.resolver.addresses if name.port else self.resolver.services, name.host)
            changed = partial(self._submit_changed, key)
            watch = NameWatch(f"{key}: {query}", ask, changed, self._permits, self._now, self._wait)
            if self._now() < self._former_until_s:
                watch.targets = self._former.get(name, ())
            parts.names[name] = watch
            parts.tasks[name] = self._tasks.keep_running("name", watch.step)

    def _cancel_task(self, parts: _Parts, name: object) -> None:
        task = parts.tasks.pop(name, None)
        if task is not None:
            task.cancel()


def _problem_of(part: NameWatch | PodsFile) -> str:
    return f"{part.label.partition(': ')[2]}: {part.problem}"


def _name_of(entry: str | Pod) -> _Name | None:
    """Return the query of an entry; None if it is an address."""
    if not isinstance(entry, str) and entry.srv:
        return _Name(entry.srv, 0)
    address = entry if isinstance(entry, str) else entry.address
    host, port = split_address(address)
    return None if is_unix(address) or is_ip(host) else _Name(host, port)


def is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def canonical(address: str) -> str:
    """Return `ip:port` or `unix:/path` in its canonical form; IPv6 in brackets."""
    host, port = split_address(address)
    if is_unix(address):
        return join_address(host, port)
    ip = ipaddress.ip_address(host)
    return join_address(str(getattr(ip, "ipv4_mapped", None) or ip), port)
