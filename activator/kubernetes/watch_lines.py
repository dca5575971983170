"""Splits the data of a watch into lines, with a bound on their length."""

from __future__ import annotations

from activator.kubernetes.errors import LineTooLongError


class LineSplitter:
    """Splits bytes into lines in O(bytes). `pending_bytes` is the size of the incomplete line."""

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._pieces: list[bytes] = []
        self.pending_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the non-empty lines that end in `data`, without line ends; raise LineTooLongError."""
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines:
            self._pieces.append(lines[0])
            lines[0] = b"".join(self._pieces)
            self._pieces.clear()
            self.pending_bytes = 0
        self.pending_bytes += len(rest)
        if rest:
            self._pieces.append(rest)
        longest = max(self.pending_bytes, max(map(len, lines), default=0))
        if longest > self._line_bytes_max:
            raise LineTooLongError(f"a watch event of more than {self._line_bytes_max} bytes")
        return [line for line in lines if line]
