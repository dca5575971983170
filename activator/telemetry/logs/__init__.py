"""The access log (docs/access-log.md) and the program's own log (docs/logging.md)."""
