"""What is reported of requests and of the program: metrics, traces, the access log, the program's own log."""
