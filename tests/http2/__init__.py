"""HTTP/2 from outside: conformance, hostile clients, independent clients; against any server at an address."""
