"""How many pods are wanted: our own autoscaler for local processes, and what Knative's autoscaler is sent."""
