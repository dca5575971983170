"""An authoriser for the tests, as a program of its own: `authoriser.py LOG`. Prints its port, writes what it was asked.

A request with `Authorization: Basic alice` is alice's; a browser (`Accept: text/html`) is sent to a page with a cookie,
and others get 401. Below /admin even alice gets 403.
"""

import contextlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        with open(sys.argv[1], "a") as log:
            log.write(json.dumps([self.path, self.headers.items()]) + "\n")
        if self.headers["Authorization"] == "Basic alice":
            if self.headers["X-Forwarded-Uri"].startswith("/admin"):
                self._answer(403, {}, b"not alice")
            else:
                self._answer(200, {"Remote-User": "alice", "Remote-Groups": "a,b"}, b"welcome")
        elif "text/html" in self.headers.get("Accept", ""):
            page = f"https://auth.test/?rd={self.headers['X-Forwarded-Host']}{self.headers['X-Forwarded-Uri']}"
            self._answer(302, {"Location": page, "Set-Cookie": "session=1"}, b"")
        else:
            self._answer(401, {"WWW-Authenticate": 'Basic realm="test"'}, b"who are you?")

    def _answer(self, status: int, fields: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a question was cancelled
            super().handle()

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
