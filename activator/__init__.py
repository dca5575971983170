"""The activator: a reverse proxy in front of serverless revisions.

Read docs/architecture.md, then `data_plane/proxy/exchange.py`, the life of one request. This file stays cheap to
import; heavy parts are imported where they are used.
"""

from __future__ import annotations

from typing import Final

import lb  # settles, before any module of ours is loaded, whether compiled files are used

__all__ = ["COMPILED", "__version__"]

__version__ = "0.1.0"  # the one place; the build reads it from here

COMPILED: Final[bool] = lb.COMPILED
