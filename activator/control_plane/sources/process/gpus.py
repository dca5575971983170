"""Which program has which GPU: never two on one, also not while the first one ends or sleeps."""

from __future__ import annotations

from collections.abc import Sequence

# What programs look at: those for NVIDIA's, and those for AMD's.
VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class GpuPool:
    """Those that the file lists, in its order; a holder is the identity of a process."""

    def __init__(self) -> None:
        self._listed: tuple[str, ...] = ()
        self._holders: dict[str, str] = {}  # by GPU; also of such as the file does not list any more

    def configure(self, listed: Sequence[str]) -> None:
        """The file lists these; whoever has another one keeps it until it ends."""
        self._listed = tuple(listed)

    def free(self) -> list[str]:
        return [gpu for gpu in self._listed if gpu not in self._holders]

    def take(self, count: int, holder: str) -> tuple[str, ...] | None:
        """So many for this holder; None: there are not so many."""
        free = self.free()
        if len(free) < count:
            return None
        taken = tuple(free[:count])
        for gpu in taken:
            self._holders[gpu] = holder
        return taken

    def give_back(self, holder: str) -> bool:
        """The holder has gone; whether it had any."""
        had = [gpu for gpu, one in self._holders.items() if one == holder]
        for gpu in had:
            del self._holders[gpu]
        return bool(had)

    def shown(self) -> dict[str, str]:
        """By GPU: who has it, empty: nobody."""
        return {gpu: self._holders.get(gpu, "") for gpu in (*self._listed, *self._holders)}
