"""A pod that resets every connection, each at another point; prints its port, and at the end how many there were.

Arguments: a certificate chain and its key, where it is to speak TLS.
"""

from __future__ import annotations

import signal
import socket
import ssl
import struct
import sys
import time
from types import FrameType

RESET = struct.pack("ii", 1, 0)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Stop(BaseException):
    pass


def stop(number: int, frame: FrameType | None) -> None:
    raise Stop


def serve(sock: socket.socket, number: int, context: ssl.SSLContext | None) -> None:
    point = number % 7
    if point == 0:
        return
    if point == 1:
        time.sleep(0.0003)
        return
    if context is not None:
        if point == 2:
            sock.recv(1)
            return
        sock = context.wrap_socket(sock, server_side=True)
    with sock:
        if point in {2, 3}:
            sock.recv(1)
        elif point == 4:
            sock.recv(5000)
        elif point == 5:
            sock.recv(1000)
            sock.sendall(ANSWER[:30])
        else:
            sock.recv(1000)
            sock.sendall(ANSWER)


def main() -> None:
    context = None
    if len(sys.argv) > 1:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[1], sys.argv[2])
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    signal.signal(signal.SIGTERM, stop)
    print(listener.getsockname()[1], flush=True)
    number = 0
    try:
        while True:
            sock, _ = listener.accept()
            number += 1
            sock.settimeout(0.2)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            try:
                serve(sock, number, context)
            except OSError:
                pass
            sock.close()
    except Stop:
        print(number, flush=True)


main()
