"""What all other parts use: clock and timing wheel, tasks, errors, histograms, transports, buffered writing, TLS."""
