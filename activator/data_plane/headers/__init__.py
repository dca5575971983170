"""Reading and editing of header fields: origin, trace context, affinity key, gRPC, Knative's fields."""
