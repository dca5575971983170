"""The program that `bench cold` starts from zero: it answers every request with the times of its own start.

    python bench/cold_program.py PORT [--says-listening]

With the option it prints a line once it listens, and closes its standard output.
The times are monotonic seconds, which on Linux all processes of a machine share. Nothing is imported before the first
time is taken, and little after it, so that the program's own start is short and constant.
"""

import time

STARTED_S = time.monotonic()


def main() -> None:
    """Serve on the port with a thread per connection, because readiness probes open connections without a request."""
    import json
    import socket
    import sys
    import threading

    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=128)
    listening_s = time.monotonic()
    if sys.argv[2:] == ["--says-listening"]:
        print("listening", flush=True)
        sys.stdout.close()

    def answer(connection: socket.socket) -> None:
        with connection:
            received, request_s = b"", 0.0
            while data := connection.recv(65536):
                if not received:
                    request_s = time.monotonic()
                received += data
                if b"\r\n\r\n" in received:
                    life = {"started_s": STARTED_S, "listening_s": listening_s, "request_s": request_s}
                    content = json.dumps(life).encode()
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))
                    received = b""

    while True:
        connection, _ = listening.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
