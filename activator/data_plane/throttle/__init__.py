"""Admission: who gets a slot of a pod at once, who waits in line, who is rejected."""
