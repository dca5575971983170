"""Admission: which requests get a slot of a pod at once, which wait in line, which are rejected."""
