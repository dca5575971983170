"""`activator demo`: a guided tour, which scales a real program from zero to several copies and back under real load."""

from __future__ import annotations

from activator.demo.tour import run

__all__ = ["run"]
