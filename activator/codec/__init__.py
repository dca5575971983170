"""Conversion between bytes and HTTP messages. A codec does no I/O and belongs to neither plane."""
