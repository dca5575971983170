"""The revisions of a running activator by name, to correct a command that names an unknown one."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import NoReturn

from activator.admin.client import RefusedError
from activator.config.specs import key_of
from activator.runtime.errors import CommandError, one_line

Ask = Callable[[str, str], bytes]  # method and path → the body of the response


def require(ask: Ask, name: str) -> None:
    """Raise CommandError, with the nearest name, if there is no revision of this name. `ask` may raise StartError."""
    known = [row["key"] for row in json.loads(ask("GET", "/debug/overview")).get("revisions", [])]
    if key_of(name) not in known:
        raise missing(name, known)


def explain(ask: Ask, name: str, refusal: RefusedError) -> NoReturn:
    """Raise the refusal of a command about a revision, or CommandError if there is no revision of this name."""
    if refusal.status in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
        require(ask, name)
    raise refusal


def missing(name: str, known: list[str]) -> CommandError:
    """Return the error that none of the known revisions, by key, has this name."""
    prefix = key_of("")
    names = [key.removeprefix(prefix) for key in known]
    near = difflib.get_close_matches(name.removeprefix(prefix), names, n=1)
    advice = f"did you mean {near[0]}?" if near else "`activator status` lists them"
    return CommandError(f"there is no revision {one_line(name)}; {advice}")
