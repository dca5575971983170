"""Tables of pods and the load-balancing policies that pick among them.

The package imports nothing from `activator`, and nothing third-party but mypy_extensions.
"""

from __future__ import annotations

from typing import Final

from lb import world

COMPILED: Final[bool] = world.enter()  # True if this process runs the compiled modules
