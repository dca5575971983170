"""A program that writes a line to its standard output for each request: `talker.py PORT`."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Talker(BaseHTTPRequestHandler):
    """Answers everything with 200."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        print(f"GET {self.path}", flush=True)
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """The line above is enough."""


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Talker).serve_forever()
