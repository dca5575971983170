"""Tables of pods and the policies that pick among them; imports nothing of ours and nothing third-party but
mypy_extensions."""

from __future__ import annotations

from typing import Final

from lb import world

COMPILED: Final[bool] = world.enter()  # the truth about this process: compiled modules, or plain Python
