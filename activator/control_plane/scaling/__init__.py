"""How many pods are wanted: the autoscaler, whose decisions are a pure function, and what Knative's is sent."""
