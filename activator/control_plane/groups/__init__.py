"""Groups of revisions that share the resources of a machine: which programs are loaded, evicted, and served next."""
