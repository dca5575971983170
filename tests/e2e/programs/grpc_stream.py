"""A gRPC client with one stream open: `grpc_stream.py HOST:PORT`. For each line of its input a message goes out and one
comes back, which is told by `answered`; at the end of the input the stream ends. The last line is its status."""

import sys
import time
from collections.abc import Iterator

import grpc  # type: ignore[import-untyped]

from tests.http2.grpc_service import DUPLEX, message, path


def main() -> None:
    def requests() -> Iterator[bytes]:
        for _ in sys.stdin:
            yield message(10, answers=[20])

    with grpc.insecure_channel(sys.argv[1], options=[("grpc.enable_retries", 0)]) as channel:
        call = channel.stream_stream(path(DUPLEX))(requests(), timeout=60)
        try:
            for _ in call:
                print("answered", flush=True)
        except grpc.RpcError:
            pass
        print(f"status {call.code().value[0]} {call.details()}", flush=True)
        time.sleep(0.1)


main()
