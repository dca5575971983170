"""Replicas of one group: their seats, the links between them, and the views that they agree on."""
