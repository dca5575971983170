"""A listener of a supervisor of programs that keeps what it is told."""

from __future__ import annotations


class ProgramReports:
    """`grace_s` is what every group allows its programs."""

    def __init__(self, grace_s: float | None = None) -> None:
        self.grace_s = grace_s
        self.ready: list[tuple[str, int]] = []
        self.changed: list[tuple[str, str]] = []
        self.released_keys: list[str] = []

    def ready_changed(self, key: str, count: int) -> None:
        self.ready.append((key, count))

    def programs_changed(self, key: str, group: str) -> None:
        self.changed.append((key, group))

    def stopped_by_other(self, key: str) -> None:
        self.released_keys.append(key)

    def stop_reason(self, key: str, wanted: int) -> str:
        return f"because {wanted} are wanted"

    def grace_of(self, group: str) -> float | None:
        return self.grace_s
