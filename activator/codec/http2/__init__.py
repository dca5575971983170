"""HTTP/2 (RFC 9113) and its header compression (RFC 7541), without any I/O."""
