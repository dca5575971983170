"""In the place of a program that is not here: `stand_in.py NAME WORDS…`, in the shape of that program's own server.

It listens where its words say so (`--port 8000`), else on the port of OLLAMA_HOST, and answers
GET    with its name, what it was asked, and with which words and where it was started, as JSON
POST   with the same and the `model` of the body
A WebSocket is accepted (RFC 6455, section 4.2.2) and closed by whoever asked for it.
"""

import base64
import hashlib
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME, WORDS = sys.argv[1], sys.argv[2:]
ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers.get("Upgrade", "").lower() == "websocket":
            key = self.headers["Sec-WebSocket-Key"].encode()
            accept = base64.b64encode(hashlib.sha1(key + ACCEPT).digest()).decode()
            self.send_response(101)
            for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)):
                self.send_header(name, value)
            self.end_headers()
            self.rfile.read(1)
            self.close_connection = True
        else:
            self.answer({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer({"model": json.loads(body).get("model", "")} if body else {})

    def answer(self, more: dict[str, str]) -> None:
        body = json.dumps(
            {"program": NAME, "words": WORDS, "path": self.path, "directory": os.getcwd(), **more}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


def main() -> None:
    if "--port" in WORDS:
        port = int(WORDS[WORDS.index("--port") + 1])
    else:
        port = int(os.environ["OLLAMA_HOST"].rpartition(":")[2])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


main()
