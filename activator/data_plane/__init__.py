"""The data plane: the path of requests from clients to pods. Each worker has one, on one event loop."""
