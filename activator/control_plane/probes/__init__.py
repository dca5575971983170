"""Whether a pod answers: one question (`probe`), whom to ask when (`prober`), the port before it (`tcp_probe`)."""
