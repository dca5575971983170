"""Filters: the interface, and one file for each feature that acts on requests."""
