"""The assignment of GPUs to programs: a GPU has one holder until that program has ended, also while it sleeps."""

from __future__ import annotations

from collections.abc import Sequence

# The variables that restrict a program to some GPUs: NVIDIA's and AMD's.
VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class GpuPool:
    """The GPUs that the configuration lists, in its order; a holder is the identity of a process."""

    def __init__(self) -> None:
        self._listed: tuple[str, ...] = ()
        self._holders: dict[str, str] = {}  # by GPU, including GPUs that are no longer listed

    def configure(self, listed: Sequence[str]) -> None:
        """Set the listed GPUs; the holder of a GPU that is no longer listed keeps it until it ends."""
        self._listed = tuple(listed)

    def free(self) -> list[str]:
        return [gpu for gpu in self._listed if gpu not in self._holders]

    def assign(self, count: int, holder: str) -> tuple[str, ...] | None:
        """Assign `count` GPUs to the holder; None if fewer are free."""
        free = self.free()
        if len(free) < count:
            return None
        taken = tuple(free[:count])
        for gpu in taken:
            self._holders[gpu] = holder
        return taken

    def register(self, gpus: Sequence[str], holder: str) -> None:
        """Register the GPUs of a program that was handed over."""
        self._holders.update(dict.fromkeys(gpus, holder))

    def release(self, holder: str) -> bool:
        """Release the GPUs of a holder that has ended; True if it had any."""
        held = [gpu for gpu, present in self._holders.items() if present == holder]
        for gpu in held:
            del self._holders[gpu]
        return bool(held)

    def shown(self) -> dict[str, str]:
        """Return the holder of each GPU; empty: it is free."""
        return {gpu: self._holders.get(gpu, "") for gpu in (*self._listed, *self._holders)}
