"""`activator demo`: the guided tour. A real program, scaled from zero to several and back to zero under real load."""

from __future__ import annotations

from activator.demo.tour import run

__all__ = ["run"]
