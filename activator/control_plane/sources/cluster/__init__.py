"""The parts that the sources of a cluster share: their lifecycle, passes per object, and merged EndpointSlices."""
