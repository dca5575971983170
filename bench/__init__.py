"""Measurements of the activator: `python -m bench micro | load | cold | report`.

Rules
  1. Every figure comes with how it was measured, the machine, the versions and the load of the machine before the run.
  2. Whatever is compared was measured side by side in one run; a run in which any request failed has no figures worth
     quoting and exits with 1.
  3. Nothing here is imported by the product, and the product is only ever started through its command line.
  4. Times are monotonic seconds; names carry the unit.
"""
