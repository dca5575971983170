"""Replicas of one group: who they are, which of them live, and what they say to each other."""
