"""The configuration file, key by key: the name, meaning, unit, bounds, default and an example of each.

    file  →  revision  →  listeners, routing, queueing, scaling, programs, pods  →  kinds
          →  members, kubernetes, telemetry

Rules
  1. The structs mirror the file of `activator run -c`; `config/file.py` reads it into them, and `config/specs.py` has
     the part of a revision that the rest of the activator sees. Bounds that no file can change are in the modules that
     enforce them.
  2. A duration is seconds as float (`Duration`), a size is bytes as int (`Size`); in a file they are written `300ms`,
     `5s`, `2m`, `32KiB`, `1MiB`, or as plain numbers of seconds or bytes.
  3. Each key is described where it is defined, with `doc`. `activator schema`, editors and docs/configuration.md show
     that text; `make docs` writes the page.
  4. No file has `from __future__ import annotations`: msgspec would evaluate each annotation twice, 25 ms of a start.
"""
