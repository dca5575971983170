"""The data plane: the path of a request, from a client to a pod. It exists once per worker, on one event loop."""
