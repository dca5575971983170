"""HTTP/2 clients that are not ours, run against a server at an address: curl, nghttp, h2load and Node's own.

`CLIENTS[name](address)` says what is wrong, scenario by scenario; empty for what is as it must be. The server answers
GET / with a small body, GET /large with more than 1 MB, and POST / with what was sent.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 30.0
NODE_CLIENT = Path(__file__).parent / "programs" / "client.js"
UPLOAD = b"0123456789abcdef" * 20_000
LARGE = 2**20


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    ca: Path | None = None  # who signed the certificate; None: no TLS

    @property
    def url(self) -> str:
        return f"{'http' if self.ca is None else 'https'}://{self.host}:{self.port}"


Problems = dict[str, str]


def run(command: list[str], data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, input=data, capture_output=True, timeout=PATIENCE_S, check=False)


def said(done: subprocess.CompletedProcess[bytes]) -> str:
    return f"exit {done.returncode}: {(done.stderr or done.stdout)[-300:].decode(errors='replace')}"


# --- curl ---


def curl(address: Address) -> Problems:
    if address.ca is None:
        return _curl(address, "--http2-prior-knowledge")
    return _curl(address, "--http2", "--cacert", str(address.ca))


def curl_upgrade(address: Address) -> Problems:
    """`Upgrade: h2c` in a request of HTTP/1.1: answered in HTTP/2 or, as RFC 9113 allows, in HTTP/1.1."""
    assert address.ca is None
    done = run(["curl", "-sS", "-o", "/dev/null", "-w", "%{response_code}", "--http2", address.url + "/"])
    return {"upgrade": "" if done.stdout == b"200" else said(done)}


def _curl(address: Address, *options: str) -> Problems:
    url = address.url

    def one(path: str, *more: str, data: bytes | None = None) -> tuple[str, bytes]:
        """What is wrong, and the body."""
        mark = b"\n--mark--"
        told = ["-w", mark.decode() + "%{http_version} %{response_code}"]
        done = run(["curl", "-sS", *options, *told, *more, url + path], data)
        body, _, last = done.stdout.rpartition(mark)
        return ("" if last == b"2 200" else f"{last!r}, {said(done)}"), body

    problems = {}
    problems["get"], _ = one("/")
    problems["head"], _ = one("/", "--head")
    problems["large"], body = one("/large")
    problems["large"] = problems["large"] or ("" if len(body) > LARGE else f"{len(body)} bytes")
    # Without `expect`, which curl sends with much data.
    post = ["--data-binary", "@-", "-H", "expect:"]
    problems["echo"], body = one("/", *post, data=UPLOAD)
    problems["echo"] = problems["echo"] or ("" if body == UPLOAD else f"another body, of {len(body)} bytes")
    problems["echo without length"], body = one("/", *post, "-H", "transfer-encoding: chunked", data=UPLOAD)
    if not problems["echo without length"] and body != UPLOAD:
        problems["echo without length"] = f"another body, of {len(body)} bytes"
    problems["expect"], body = one("/", "--data-binary", "@-", "-H", "expect: 100-continue", data=UPLOAD)
    problems["expect"] = problems["expect"] or ("" if body == UPLOAD else f"another body, of {len(body)} bytes")
    # Not with prior knowledge: curl 7.88 cannot use such a connection twice, whatever the server.
    if address.ca is not None:
        many = ["--parallel", "-o", "/dev/null", "-w", "%{response_code} "]
        done = run(["curl", "-sS", *options, *many, f"{url}/?[1-50]"])
        problems["fifty at once"] = "" if done.stdout.split() == [b"200"] * 50 else said(done)
    return problems


# --- nghttp and h2load, both of nghttp2 ---


def nghttp(address: Address) -> Problems:
    def one(*more: str) -> tuple[str, str]:
        done = run(["nghttp", "-v", "-n", "-y", "--timeout=10", *more])
        text = done.stdout.decode(errors="replace")
        statuses = re.findall(r"recv \(stream_id=\d+\) :status: (\d+)", re.sub(r"\x1b\[[0-9;]*m", "", text))
        good = bool(statuses) and set(statuses) == {"200"} and done.returncode == 0
        return ("" if good else f"{statuses}, {said(done)}"), text

    url = address.url
    problems = {}
    problems["get"], _ = one(f"{url}/")
    problems["several"], _ = one(*[f"{url}/?{number}" for number in range(5)])
    problems["padding"], _ = one("--padding=100", f"{url}/")
    problems["continuation"], _ = one("--continuation", f"{url}/")  # some 32 KB of fields
    problems["small windows"], _ = one("--window-bits=10", "--connection-window-bits=16", f"{url}/large")
    problems["no header table"], _ = one("--header-table-size=0", f"{url}/")
    with tempfile.NamedTemporaryFile() as file:
        file.write(UPLOAD)
        file.flush()
        problems["upload"], _ = one(f"--data={file.name}", f"{url}/")
        problems["upload with trailers"], _ = one(f"--data={file.name}", "--trailer=x-sum: 1", f"{url}/")
    return problems


def h2load(address: Address) -> Problems:
    def one(count: int, *more: str) -> str:
        done = run(["h2load", "-n", str(count), *more])
        text = done.stdout.decode(errors="replace")
        good = re.search(rf"{count} succeeded, 0 failed, 0 errored, 0 timeout", text)
        statuses = re.search(rf"status codes: {count} 2xx, 0 3xx, 0 4xx, 0 5xx", text)
        return "" if done.returncode == 0 and good and statuses else f"{text[-600:]} {said(done)}"

    return {
        "many": one(1_000, "-c", "4", "-m", "25", f"{address.url}/"),
        "large": one(20, "-c", "2", "-m", "10", f"{address.url}/large"),
        "small windows": one(5, "-c", "1", "-m", "5", "-w", "12", "-W", "17", f"{address.url}/large"),
    }


# --- Node ---


def node(address: Address) -> Problems:
    done = run(["node", str(NODE_CLIENT), address.url, *([str(address.ca)] if address.ca else [])])
    if done.returncode or not done.stdout:
        return {"all": said(done)}
    found: Problems = json.loads(done.stdout)
    return found


CLIENTS: dict[str, Callable[[Address], Problems]] = {"curl": curl, "nghttp": nghttp, "h2load": h2load, "node": node}
