"""What everything stands on: clock and timing wheel, tasks, errors, histograms, transports, buffered writing, TLS."""
