"""A real server that whatever is sent away is posted to."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str]]  # the status, and fields beside the usual ones


class HttpCollector:
    """Whoever collects something overrides `take`, which is called in threads of the server's."""

    def __init__(self) -> None:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, more = collector.take(self.path, headers, body)
                self.send_response(status)
                for name, value in {"Content-Length": "0", "Connection": "close", **more}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *said: Any) -> None:
                """Nothing of it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """What this post is answered with."""
        raise NotImplementedError

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(10.0)
