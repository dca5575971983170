"""A tool that answers one request and ends, as those behind inetd do; on $PORT, or on $SOCKET where that is set.

Whoever connects to it is its one client: a connection without a request makes it exit with 3.

/            its process id
/slow        the same, after 0.1 s
/crash       exits with 7 instead
/nothing     exits with 0 instead
/linger      answers, and does not end
"""

import os
import socket
import sys
import time


def listener() -> socket.socket:
    path = os.environ.get("SOCKET")
    if path:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(path)
    else:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", int(os.environ["PORT"])))
    sock.listen(1)
    return sock


def main() -> int:
    listening = listener()
    connection, _ = listening.accept()
    listening.close()
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            print("a connection without a request", flush=True)
            return 3
        data += more
    target = data.split(b" ")[1].decode()
    if target == "/crash":
        print("out of cheese", flush=True)
        return 7
    if target == "/nothing":
        return 0
    if target == "/slow":
        time.sleep(0.1)
    body = b"%d" % os.getpid()
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    connection.close()
    if target == "/linger":
        time.sleep(60.0)
    return 0


sys.exit(main())
