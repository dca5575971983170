"""Admission: which requests get a slot of a pod at once, which wait in the queue, and which are rejected."""
