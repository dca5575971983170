"""A small HTTP server for the tests, started as a local process: `serving.py PORT`. Starts fast: few imports.

/            its process id
/sleep/1.5   the same after so many seconds
/until/tmp/x the same once there is a file /tmp/x
/exit/3      exits with that code at once
"""

import os
import socket
import sys
import threading
import time


def serve(connection: socket.socket) -> None:
    file = connection.makefile("rb")
    with connection, file:
        while line := file.readline():
            target = line.split(b" ")[1].decode()
            while file.readline() not in {b"\r\n", b""}:
                pass
            _, _, word = target.partition("/sleep/")
            if word:
                time.sleep(float(word))
            _, _, word = target.partition("/until")
            while word and not os.path.exists(word):
                time.sleep(0.005)
            _, _, word = target.partition("/exit/")
            if word:
                os._exit(int(word))
            body = b"%d" % os.getpid()
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            except OSError:
                return


def main() -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(sys.argv[1])))
    listener.listen(128)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


main()
