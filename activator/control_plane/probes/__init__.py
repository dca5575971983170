"""Whether a pod answers: one question (`probe`), when to ask which pod (`prober`), the port before it (`tcp_probe`)."""
