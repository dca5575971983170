"""The cause of a program's end, as clients see it: how it ended, and the most informative of its last lines.

The last line is often noise: a version, a stack frame, "see above". The order of preference: the last line with an
exception or a panic, the last that names a cause of the operating system or a wrong argument, the first that mentions
an error (later ones follow from it), the last line that is not noise, the last line.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Final

from activator.runtime.errors import one_line

CAUSE_CHARS_MAX: Final = 300
EXAMINED_CHARS_MAX: Final = 500  # the examined beginning of a line

_NOISE: Final = re.compile(
    r"at [\w$.<]|at (?:async |new |file:|/)|File \"|\.\.\. \d+ |goroutine \d+|exit status \d|Node\.js v\d|\[signal "
    r"|created by |Traceback \(|The above exception|During handling of|note: run with|stack backtrace"
    r"|code: '|requireStack"
    r"|npm (?:ERR!|error) (?:A complete log|code |errno |path |command )|[\W_]*$|throw |INFO\b|DEBUG\b"
)
_FOLLOWS: Final = re.compile(r"root cause|see above|see stack trace|exiting\.?$|SystemExit: \d+$", re.IGNORECASE)
_EXCEPTION: Final = re.compile(
    r"(?:^|[\s\])\"])(?:[\w$]+[.:]+)*[A-Z]\w*(?:Error|Exception)(?:: |$| \[)"  # Python, Node, Java, vLLM
    r"|^(?:Error|Uncaught)\b.*:|\((?:\w+::)*[A-Z]\w*Error\)$"
    r"|\bpanic: |\bpanicked at |\bfatal error: |^FATAL\b|: fatal: |^fatal: ",
    re.ASCII,
)
_CONCRETE: Final = re.compile(
    r"address (?:is )?already in use|port \S+ is (?:already )?in use|connection in use|no such file or directory"
    r"|permission denied|out of memory|no space left|command not found|: not found$|cannot execute"
    r"|(?:unknown|unrecognized|invalid|unexpected|missing|required) (?:option|argument|flag|command)"
    r"|arguments are required",
    re.IGNORECASE,
)
_ERROR: Final = re.compile(
    r"\b(?:error|fatal|emerg|crit(?:ical)?|panic|failed|failure|cannot|can't|could not|unable to)\b", re.IGNORECASE
)


def cause_of(code: int, lines: Sequence[str]) -> str:
    """Describe the end. `code`: the exit code, negative for a signal; `lines`: the program's last lines of output."""
    if code < 0:
        try:
            end = f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            end = f"was ended by signal {-code}"
    else:
        end = f"exited with code {code}"
    line = most_informative(lines)
    return f"the program {end}" + (f": {line}" if line else "")


def most_informative(lines: Sequence[str]) -> str:
    """Return the most informative line, printable and at most CAUSE_CHARS_MAX long; empty if all lines are empty."""
    kept = [line.strip()[:EXAMINED_CHARS_MAX] for line in lines if line.strip()]
    informative = [line for line in kept if _NOISE.match(line) is None and _FOLLOWS.search(line) is None]
    exceptions = [line for line in informative if _EXCEPTION.search(line) is not None]
    concrete = [line for line in informative if _CONCRETE.search(line) is not None]
    errors = [line for line in informative if _ERROR.search(line) is not None]
    by_preference = [*kept[-1:], *informative[-1:], *errors[:1], *concrete[-1:], *exceptions[-1:]]
    if not by_preference:
        return ""
    line = by_preference[-1]
    if "panicked at " in line and line.endswith(":"):  # Rust has the message on the next line
        line = " ".join(kept[kept.index(line) :][:2])
    shown = one_line(line)
    return shown if len(shown) <= CAUSE_CHARS_MAX else shown[: CAUSE_CHARS_MAX - 1] + "…"
