"""Connections to pods: one pool per pod, a dial window, and identity checks."""
