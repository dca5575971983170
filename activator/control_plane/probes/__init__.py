"""Probes of pods: one question (`probe`), the schedule of questions (`prober`), the port before it (`tcp_probe`)."""
