"""The figures that the design started from: the same structure in Go, in the wording and on the machine of its authors.

They are shown beside ours for orientation; they come from another machine and another language.
"""

from __future__ import annotations

from typing import Final

# One acquire (pick + reserve + release) at 100 pods.
BEFORE_NS: Final = 303.5  # a map, filtered into a slice for each request: 920 B, 2 allocations
VALUE_ARRAY_NS: Final = 52.96  # 24 B, 1 allocation
SPARSE_ARRAY_NS: Final = 57.0
# The same by number of pods: with the filter (before) and with the array (after).
SCAN_PODS: Final = (10, 500)
SCAN_NS: Final = (86.0, 1258.0)
ARRAY_NS: Final = (53.0, 57.0)  # whatever the number of pods
# The cold path.
ADD_POD_NS: Final = 8042.0  # 4,196 B, 24 allocations; before 200,522 ns
LIST_NS: Final = {100: 27_000.0, 500: 57_305.0}  # by number of pods, all known; for 500: 26,314 B, 64 allocations
TABLE_BYTES: Final = {2_000: 500_000, 20_000: 5_000_000}

# Reconciling 500 objects with 1,000 pods on 100 simulated nodes, 20 at once (grove 545), in Go: before, after.
SCALE_CPU_S: Final = {"deploy": (14.98, 10.0), "steady": (0.68, 0.37)}
SCALE_WALL_S: Final = {"pods-ready": (47.8, 42.8), "delete": (50.0, 37.9)}

LINES: Final = (
    "The seed (Go, another machine), at 100 pods: 303.5 ns, 920 B, 2 allocations before; 52.96 ns (value array) and",
    "57 ns (sparse array), 24 B, 1 allocation after. From 10 to 500 pods: 86 -> 1,258 ns before, 53 - 57 ns after.",
    "Adding a pod: 8,042 ns, 4,196 B, 24 allocations. A table of 2,000 / 20,000 slots: 500 KB / 5 MB.",
)
