"""`make coverage`: the covered lines of each folder, and whether each is above its floor.

A floor stands a little below what was measured, in percent of the lines of the folder. It may only be raised.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from typing import Final

import coverage

from tests.sources import ROOT

FLOORS: Final = {
    "lb": 0.0,
    "activator/codec": 0.0,
    "activator/data_plane": 0.0,
    "activator/control_plane": 0.0,
}


def covered() -> dict[str, float]:
    """Percent of the lines of each folder, from the data file that COVERAGE_FILE names."""
    data = coverage.Coverage(config_file=False)
    data.load()
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        data.json_report(outfile=file.name)
        files = json.load(io.TextIOWrapper(file.buffer, "utf-8"))["files"]
    shares = {}
    for folder in FLOORS:
        lines = [one["summary"] for path, one in files.items() if path.replace(f"{ROOT}/", "").startswith(f"{folder}/")]
        shares[folder] = (
            100.0 * sum(one["covered_lines"] for one in lines) / sum(one["num_statements"] for one in lines)
        )
    return shares


def main() -> int:
    low = 0
    for folder, share in covered().items():
        is_low = share < FLOORS[folder]
        low += is_low
        print(f"{folder:26} {share:5.1f} %, floor {FLOORS[folder]:g} %{'  TOO LOW' if is_low else ''}")
    return min(low, 1)


if __name__ == "__main__":
    sys.exit(main())
