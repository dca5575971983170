"""Seats of replicas: claimed through the Kubernetes API, dense, unique and stable (docs/membership.md)."""
