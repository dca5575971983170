"""Each command that asks a running program brings its token along."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from activator.cli import NOT_STARTED, main


class Admin(HTTPServer):
    """An admin port that asks for a token."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Admin)
        self.server.asked.append(f"{self.command} {self.path}")
        allowed = self.headers["Authorization"] == "Bearer s3cret"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(b"{}" if allowed else b"the token is missing or wrong\n")

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *said: Any) -> None:
        pass


@pytest.fixture(name="admin")
def _admin() -> Iterator[Admin]:
    with Admin() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        (["status", "--json"], "GET /debug/revisions"),
        (["drain"], "POST /drain"),
        (["load", "a b", "--for", "10m"], "POST /load/a%20b?for=10m"),
        (["unload", "a"], "POST /unload/a"),
        (["restart", "a"], "POST /restart/a"),
        (["member-ended", "2"], "POST /members/2/ended"),
    ],
)
def test_a_command_asks_with_the_token(words: list[str], asks: str, admin: Admin) -> None:
    assert main([*words, "--admin", admin.url, "--token", "s3cret"]) == 0
    assert main([*words, "--admin", admin.url]) == NOT_STARTED
    assert admin.asked == [asks, asks]
