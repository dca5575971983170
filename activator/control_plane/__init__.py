"""The control plane: it exists once, decides about revisions and pods, and sends the data plane messages."""
