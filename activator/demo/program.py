"""The program behind the demo's activator: an ordinary HTTP server of the standard library.

It listens after START_S, as a program that loads data would, and takes SERVE_S for each request.
"""

from __future__ import annotations

import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

START_S = 2.0  # long enough to see the requests that wait
SERVE_S = 0.005


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # sends head and body in one segment

    def do_GET(self) -> None:
        time.sleep(SERVE_S)
        body = f"hello from process {os.getpid()}\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Log nothing, because the output belongs to the demo."""


def main() -> None:
    time.sleep(START_S)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
