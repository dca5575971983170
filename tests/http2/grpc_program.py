"""The gRPC service for tests, and its client, as programs: each in a process of its own, since grpcio has threads.

python -m tests.http2.grpc_program serve grpcio 0                        prints the port that it listens on
python -m tests.http2.grpc_program ask grpclib 127.0.0.1:50051           prints what is wrong with each case, as JSON
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

LIBRARIES = ("grpcio", "grpclib")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["serve", "ask"])
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("where", help="a port; or host:port")
    parser.add_argument("--ca", type=Path, help="ask with TLS, and trust this")
    parser.add_argument("--authority", default="", help="of requests, where it is not host:port (grpcio only)")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds for one call")
    told = parser.parse_args()
    if told.library == "grpcio":
        from tests.http2 import grpc_with_grpcio as library
    else:
        from tests.http2 import grpc_with_grpclib as library  # type: ignore[no-redef]
    if told.what == "serve":
        library.serve(int(told.where), lambda port: print(port, flush=True))
    else:
        found = library.run_cases(told.where, ca=told.ca, authority=told.authority, patience_s=told.patience)
        json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
