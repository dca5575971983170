"""A program that appends a line to a file for each request: `recorder.py FILE PORT`.

A line is `NAME METHOD PATH BODY`; NAME is the file's. `/fail` is answered with 500, `/stall` not at all, `/slow` with a
body that takes a second, and `/exit` ends the program.
"""

from __future__ import annotations

import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RECORD = Path(sys.argv[1])


class Recorder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def answer(self, body: bytes) -> None:
        if self.path == "/health":
            self.reply(200)
            return
        kind = self.headers.get("Content-Type", "")
        with RECORD.open("a", encoding="utf-8") as file:
            file.write(" ".join(filter(None, [RECORD.stem, self.command, self.path, kind, body.decode()])) + "\n")
        if self.path == "/exit":
            os._exit(0)
        if self.path == "/stall":
            time.sleep(60.0)
        if self.path == "/slow":
            self.stream()
            return
        self.reply(500 if self.path == "/fail" else 200)

    def stream(self) -> None:
        """Answer at once, and be done when the body is."""
        self.send_response(200)
        self.send_header("Content-Length", "10")
        self.end_headers()
        for _ in range(9):
            self.wfile.write(b".")
            time.sleep(0.1)
        with RECORD.open("a", encoding="utf-8") as file:
            file.write(f"{RECORD.stem} done\n")
        self.wfile.write(b".")

    def reply(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words: object) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Recorder).serve_forever()
