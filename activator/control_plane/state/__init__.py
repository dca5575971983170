"""The single writer of structure: changes are queued, folded, and reduced to effects (docs/state-worker.md)."""
