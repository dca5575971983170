"""The error of a header block that cannot be decoded."""

from __future__ import annotations


class HpackError(Exception):
    """A header block that cannot be decoded: the connection must end with COMPRESSION_ERROR (RFC 9113 4.3).

    The tables of the two ends may differ after it, so the decoder must not be used again.
    """
