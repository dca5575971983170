"""The exceptions of the program itself. The reasons for which requests end are in reasons.py.

Third-party exceptions are mapped to a reason once, at the border where they appear, and never travel further.
"""

from __future__ import annotations

from activator.runtime.reasons import Reason


class ActivatorError(Exception):
    """Base of what the program raises on purpose; its text is one line that says what to do."""


def one_line(text: str) -> str:
    """The text with everything that cannot be printed replaced by an escape."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class ConfigError(ActivatorError):
    """The configuration was refused; `problems` has one line per mistake, whatever stands in the values it quotes."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = [one_line(problem) for problem in problems]
        super().__init__("\n".join(self.problems))


class NoWorkerError(Exception):
    """There is no such worker process, or it does not answer; in words."""


class StartError(ActivatorError):
    """The program could not start (a port in use, a file not readable)."""


class WireError(Exception):
    """A peer's bytes were refused. Raised inside `http1/` only, and turned into a `Reason` there."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
