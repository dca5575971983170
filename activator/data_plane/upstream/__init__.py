"""Connections to pods: a pool per pod, dials within a window, identity checks."""
