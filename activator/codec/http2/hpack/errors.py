"""What goes wrong in a header block."""

from __future__ import annotations


class HpackError(Exception):
    """A header block cannot be decoded: an error of the connection, COMPRESSION_ERROR (RFC 9113 4.3).

    The state of the two ends differs from here on, so the decoder must not be used again.
    """
