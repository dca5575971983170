"""Decides how many pods are wanted, by a pure function, and reports to Knative's autoscaler where that decides."""
