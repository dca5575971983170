"""The exceptions of the program itself. The reasons for which requests end are in reasons.py.

Third-party exceptions are mapped to a reason where they first appear, and are not propagated further.
"""

from __future__ import annotations

from activator.runtime.reasons import Reason


class ActivatorError(Exception):
    """The base of errors for the user; the text is one line that states what to do."""


def one_line(text: str) -> str:
    """Return the text with all characters that are not printable escaped."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class ConfigError(ActivatorError):
    """The configuration was refused; `problems` has one line per mistake, with quoted values escaped."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = [one_line(problem) for problem in problems]
        super().__init__("\n".join(self.problems))


class NoWorkerError(Exception):
    """There is no such worker process, or it does not answer; the text is the reason."""


class StartError(ActivatorError):
    """The program could not start (a port in use, a file not readable)."""


class CommandError(ActivatorError):
    """A command was refused: the running activator has no object of this name."""


class WireError(Exception):
    """A peer's bytes were refused. Raised by the codecs; `detail` is for the log."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
