"""Programs in containers, run by Docker's or Podman's API over its unix socket (docs/containers.md)."""
