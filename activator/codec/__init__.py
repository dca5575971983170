"""Bytes to messages of HTTP and back. A codec does no I/O and belongs to no plane."""
