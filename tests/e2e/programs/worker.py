"""A program that takes its time: `worker.py PORT [FILE]`.

It answers a POST with its body, filled up to `X-Size` bytes, after a moment; with the body `wait` it takes long. With
`X-Touch` the body names a file that it makes before it answers; with `X-Events` the answer is an event stream.
A GET opens a WebSocket at `/ws`, on which nothing is said; elsewhere it answers `busy` as long as there is FILE.
"""

from __future__ import annotations

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Worker(BaseHTTPRequestHandler):
    """Counts nothing."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        time.sleep(60.0 if body == b"wait" else 0.1)
        if self.headers.get("X-Touch"):
            Path(body.decode()).touch()
        body = body.ljust(int(self.headers.get("X-Size", "0")), b".")
        if self.headers.get("X-Events"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"data: " + body + b"\n\n")
            self.close_connection = True
            return
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Worker", "yes")
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/ws":
            self.send_response(101)
            self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", "websocket")
            self.end_headers()
            self.wfile.flush()
            self.rfile.read()  # until the other side ends it
            self.close_connection = True
            return
        body = b"busy" if Path(sys.argv[2]).exists() else b"idle"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Nobody reads it."""


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Worker).serve_forever()
