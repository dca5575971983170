"""A program that writes down what it does: `handover_program.py PORT RECORD [GATE [START_S]]`.

It listens once there is a file GATE (`-`: at once) and START_S seconds have passed. Each line of RECORD is an event:
`boot PID`, `ready PID`, `begin ID PID COUNT`, `end ID PID` and `cut ID PID`, where COUNT is the number of requests that
are at the program at that time. ID is the request's field X-Id; a request without one is answered and not recorded.

/plain/SECONDS           its process id, the size and the SHA-256 of the body as JSON, after so many seconds
/events/NAME/SECONDS     numbers as an event stream, one in each interval; with a file RECORD.NAME, `done` ends it
/down/SIZE               so many bytes of `PATTERN`, as fast as the client reads
/say/WORD                prints WORD on its standard output, and answers
/exit/CODE               exits with that code at once
/ws                      a WebSocket that echoes
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import sys
import time
from typing import cast

PATTERN = bytes(range(251)) * 300
PIECE_BYTES = 251 * 256
ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Record:
    """The file of events; each line is written in one call, so that lines of several processes do not mix."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.count = 0

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(str(word) for word in words) + "\n").encode())


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._id = ""  # that of the request that is counted
        self._words: list[str] = []
        self._fields: dict[str, str] = {}
        self._busy = False  # the request has been read whole, and is not answered
        self._tunnel = False
        self._left = -1  # bytes of the body that are to come; -1: none is being read, -2: it is chunked
        self._size = 0
        self._digest = hashlib.sha256()
        self._timer: asyncio.TimerHandle | None = None
        self._down = (0, 0)  # how much of a download is sent, and its size
        self._writable = True

    # --- the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        # Ends of other connections that the kernel reported in the same turn are processed first: two turns later.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._take, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._id:
            self._record.count -= 1
            self._record.write("end" if self._tunnel else "cut", self._id, os.getpid())
            self._id = ""

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._down[1]:
            self._send_more()

    # --- reading ---

    def _take(self, data: bytes) -> None:
        self._data += data
        if self._transport is None:
            return
        if self._tunnel:
            self._echo()
            return
        while not self._busy and not self._tunnel:
            if self._left == -1:
                head, end, rest = self._data.partition(b"\r\n\r\n")
                if not end:
                    return
                self._data = rest
                self._begin(head.decode("latin-1"))
            if not self._read_body():
                return
            self._left = -1
            self._busy = True
            self._serve()

    def _begin(self, head: str) -> None:
        line, *fields = head.split("\r\n")
        self._words = line.split(" ")[1].strip("/").split("/")
        pairs = [field.partition(":") for field in fields]
        self._fields = {name.lower(): value.strip() for name, _, value in pairs}
        chunked = "chunked" in self._fields.get("transfer-encoding", "")
        self._left = -2 if chunked else int(self._fields.get("content-length", "0"))
        self._size = 0
        self._digest = hashlib.sha256()
        self._id = self._fields.get("x-id", "")
        if self._id:
            self._record.count += 1
            self._record.write("begin", self._id, os.getpid(), self._record.count)

    def _read_body(self) -> bool:
        """Read what there is of the body; True if it is complete."""
        if self._left >= 0:
            taken, self._data = self._data[: self._left], self._data[self._left :]
            self._left -= len(taken)
            self._add(taken)
            return self._left == 0
        while True:
            size, end, rest = self._data.partition(b"\r\n")
            if not end or len(rest) < int(size, 16) + 2:
                return False
            length = int(size, 16)
            self._add(rest[:length])
            self._data = rest[length + 2 :]
            if not length:
                return True

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        self._digest.update(data)

    # --- answering ---

    def _serve(self) -> None:
        kind = self._words[0]
        if kind == "plain":
            self._after(float(self._words[1]), self._describe)
        elif kind == "events":
            self._write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            self._event(0)
        elif kind == "down":
            self._down = (0, int(self._words[1]))
            self._write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % self._down[1])
            self._send_more()
        elif kind == "say":
            print(self._words[1], flush=True)
            self._describe()
        elif kind == "exit":
            os._exit(int(self._words[1]))
        elif kind == "ws":
            key = self._fields["sec-websocket-key"].encode()
            accept = base64.b64encode(hashlib.sha1(key + ACCEPT).digest())
            fields = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %b\r\n" % accept
            self._write(b"HTTP/1.1 101 Switching Protocols\r\n%b\r\n" % fields)
            self._tunnel = True
            self._echo()
        else:
            self._describe()

    def _after(self, seconds: float, call: object, *arguments: object) -> None:
        assert callable(call)
        self._timer = asyncio.get_running_loop().call_later(seconds, call, *arguments)

    def _describe(self) -> None:
        told = {"id": self._id, "pid": os.getpid(), "size": self._size, "sha256": self._digest.hexdigest()}
        body = json.dumps(told).encode()
        self._finish(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    def _event(self, number: int) -> None:
        done = os.path.exists(f"{self._record.path}.{self._words[1]}")
        event = b"data: done\n\n" if done else b"data: %d\n\n" % number
        self._write(b"%x\r\n%b\r\n" % (len(event), event))
        if done:
            self._finish(b"0\r\n\r\n")
            return
        self._after(float(self._words[2]), self._event, number + 1)

    def _send_more(self) -> None:
        sent, size = self._down
        while sent < size and self._writable:
            offset = sent % 251
            piece = PATTERN[offset : offset + min(PIECE_BYTES, size - sent)]
            sent += len(piece)
            self._down = (sent, size)
            self._write(piece)
        if sent == size and self._down[1]:
            self._down = (0, 0)
            self._finish(b"")

    def _finish(self, data: bytes) -> None:
        """Send the end of the answer, and continue with the next request."""
        if self._id:
            self._record.count -= 1
            self._record.write("end", self._id, os.getpid())
            self._id = ""
        self._busy = False
        self._write(data)
        self._take(b"")

    def _write(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def _echo(self) -> None:
        """Send back each whole frame that has come, without its mask (RFC 6455, section 5.2)."""
        while len(self._data) >= 2:
            length, start = self._data[1] & 127, 2
            if length >= 126:
                start = 4 if length == 126 else 10
                length = int.from_bytes(self._data[2:start], "big")
            if len(self._data) < start + 4 + length:
                return
            mask = self._data[start : start + 4]
            payload = self._data[start + 4 : start + 4 + length]
            plain = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
            code = self._data[0] & 15
            self._data = self._data[start + 4 + length :]
            first = bytes([self._data_flags(code)])
            if length < 126:
                self._write(first + bytes([length]) + plain)
            else:
                self._write(first + b"\x7e" + length.to_bytes(2, "big") + plain)
            if code == 8 and self._transport is not None:
                self._transport.close()

    @staticmethod
    def _data_flags(code: int) -> int:
        return 128 | (10 if code == 9 else code)  # a ping is answered with a pong


async def serve(record: Record, port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(record), "127.0.0.1", port, backlog=1024)
    record.write("ready", os.getpid())
    print(f"program {os.getpid()} is ready", flush=True)
    await server.serve_forever()


def main() -> None:
    port, path, gate, start_s = [*sys.argv[1:], "-", "0"][:4] if len(sys.argv) < 5 else sys.argv[1:5]
    record = Record(path)
    record.write("boot", os.getpid())
    time.sleep(float(start_s))
    while gate != "-" and not os.path.exists(gate):
        time.sleep(0.01)
    asyncio.run(serve(record, int(port)))


if __name__ == "__main__":
    main()
