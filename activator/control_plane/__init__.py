"""The control plane: what exists and what is decided about it. It exists once, and sends the data plane messages."""
