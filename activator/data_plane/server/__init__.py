"""Listening sockets, and the connections of clients."""
