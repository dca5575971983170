"""KEDA's external scaler: reports the load of each revision to KEDA, which scales."""

import os

# gRPC reads it when it is imported. Its log is lines on stderr beside ours, with text that peers have sent.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
