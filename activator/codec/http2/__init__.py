"""HTTP/2 without I/O (RFC 9113): frames, flow control and header compression, in the roles of server and client."""
