"""Measurements of the activator: `python -m bench micro | load | cold | report`.

Rules
  1. Every figure is reported with the method, the machine, the versions and the machine's load before the run.
  2. Figures that are compared are measured side by side in one run; a run in which any request failed is not valid and
     exits with 1.
  3. The product imports nothing from this package, and benchmarks start it only by its command line.
  4. Times are monotonic seconds; names carry the unit.
"""
