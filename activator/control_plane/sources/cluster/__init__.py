"""What the sources of a cluster share: their life, passes per object, and slices put together."""
