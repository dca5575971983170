"""The control plane: what there is and what is decided about it. It exists once, and sends the data plane messages."""
