"""KEDA's external scaler: reports the load of each revision to KEDA, which scales."""

import os

# gRPC's log is lines on stderr beside ours, with text that peers have sent. It reads the variable when it is imported;
# the programs that this process starts must not inherit it.
if "GRPC_VERBOSITY" not in os.environ:
    os.environ["GRPC_VERBOSITY"] = "NONE"
    try:
        import grpc.aio  # type: ignore[import-untyped]  # noqa: F401
    finally:
        del os.environ["GRPC_VERBOSITY"]
