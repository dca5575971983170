"""Shared utilities: clock and timing wheel, tasks, errors, histograms, transports, buffered writing, TLS."""
