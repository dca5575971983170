"""The admin port (health, metrics, debug pages, control) and `activator status`, its client."""
