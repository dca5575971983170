"""Whole groups of members in one process, from one seed (docs/decisions/ownership.md).

`world.py` has members with real throttlers, tables and ownership, and everything around them made up; `network.py` the
links; `storm.py` what happens to them. A scenario is a few calls of `World` (`ask`, `kill`, `leave`, `run`, …), then
`calm_down` and `check_calm`; the rules are looked at all the time. To see a failure again, run its seed.
"""
