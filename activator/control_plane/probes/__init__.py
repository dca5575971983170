"""Probes of pods: one probe (`probe`), the schedule of probes (`prober`), the port before it (`tcp_probe`)."""
