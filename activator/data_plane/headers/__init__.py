"""What is read from heads and added to them: origin, trace context, affinity key, Knative's fields."""
