"""Pods that report their own state, over HTTP."""
