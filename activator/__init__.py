"""The activator: a reverse proxy in front of serverless revisions.

Read docs/architecture.md, then `data_plane/proxy/exchange.py`, which handles one request. This module stays cheap to
import; heavy modules are imported where they are used.
"""

from __future__ import annotations

from typing import Final

import lb  # decides, before any other module is imported, whether compiled files are used

__all__ = ["COMPILED", "__version__"]

__version__ = "0.1.0"  # the only definition; the build reads it from here

COMPILED: Final[bool] = lb.COMPILED
