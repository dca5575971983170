"""The program behind `bench upgrades`: GET /events is a stream with an event every 10 ms, all else a small response.

python bench/upgrade_program.py PORT
"""

import asyncio
import sys

EVENT_S = 0.01
SMALL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"9\r\ndata: 1\n\n\r\n"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"GET /events "):
                writer.write(SMALL)
                continue
            writer.write(STREAM)
            while True:
                writer.write(EVENT)
                await writer.drain()
                await asyncio.sleep(EVENT_S)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
