"""A pod on an event loop that counts its requests as such servers do: one is over when it is answered, or when the
loop has reported the end of its connection.

Usage: counting.py SECONDS, the time that each request takes; the port is printed. `GET /most` answers the highest
number of requests that were there at once.
"""

import asyncio
import sys


class Pod:
    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.count = 0
        self.most = 0


class Connection(asyncio.Protocol):
    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._transport: asyncio.BaseTransport | None = None
        self._answer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /most"):
            self._write(str(self._pod.most))
            return
        pod = self._pod
        pod.count += 1
        pod.most = max(pod.most, pod.count)
        self._answer = asyncio.get_running_loop().call_later(pod.takes_s, self._done)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None:
            self._answer.cancel()
            self._pod.count -= 1

    def _done(self) -> None:
        self._answer = None
        self._pod.count -= 1
        self._write("ok")

    def _write(self, body: str) -> None:
        assert isinstance(self._transport, asyncio.WriteTransport)
        self._transport.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


async def main() -> None:
    pod = Pod(float(sys.argv[1]))
    server = await asyncio.get_running_loop().create_server(lambda: Connection(pod), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
