"""A model server for the tests: `model_server.py PORT NAME GPU LOAD_S`. It holds a GPU while it is loaded.

The GPU is a file with a lock that the kernel takes back however the program ends. Who finds it taken writes so into
`GPU.violations`, and ends. Each load and wake is a line of `GPU.loads`.

POST /v1/chat/completions   the name of the model, after `seconds` of the JSON body
POST /sleep, /wake_up       gives the GPU back, and takes it again; with `GPU.NAME.sick` there, /wake_up fails; with
                            `GPU.NAME.slow` there, /sleep and an end by SIGTERM take the seconds that it contains
"""

import fcntl
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TextIO

PORT, NAME, GPU, LOAD_S = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])


class Gpu:
    def __init__(self) -> None:
        self.file: TextIO | None = None
        self.lock = threading.Lock()

    def take(self) -> None:
        with self.lock:
            self.file = open(GPU, "a")  # noqa: SIM115 - held until it is given back
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                append("violations", f"{NAME} {os.getpid()} finds it taken")
                os._exit(1)
            append("loads", NAME)

    def give_back(self) -> None:
        with self.lock:
            if self.file is not None:
                self.file.close()
                self.file = None


def append(what: str, line: str) -> None:
    with open(f"{GPU}.{what}", "a") as file:
        file.write(line + "\n")


def slowly() -> None:
    if os.path.exists(f"{GPU}.{NAME}.slow"):
        with open(f"{GPU}.{NAME}.slow") as file:
            time.sleep(float(file.read()))


def leave(number: int, frame: object) -> None:
    slowly()
    os._exit(0)


signal.signal(signal.SIGTERM, leave)
gpu = Gpu()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/sleep":
            slowly()
            gpu.give_back()
            self.answer(200, {})
        elif self.path == "/wake_up":
            if os.path.exists(f"{GPU}.{NAME}.sick"):
                self.answer(500, {})
                return
            gpu.take()
            self.answer(200, {})
        elif gpu.file is None:
            append("violations", f"{NAME} {os.getpid()} is asked while it sleeps")
            self.answer(503, {})
        else:
            time.sleep(json.loads(body).get("seconds", 0.0))
            self.answer(200, {"model": NAME, "pid": os.getpid()})

    def answer(self, status: int, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


gpu.take()
time.sleep(LOAD_S)
Server(("127.0.0.1", PORT), Handler).serve_forever()
