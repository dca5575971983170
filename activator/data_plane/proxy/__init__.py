"""The proxying of a request: routing, exchange, attempts, retries, time limits and tunnels."""
