"""The lists of models that are answered here: all that the revisions of a host declare, whether they run or not.

Rules
  1. A name that is declared exactly is listed, and so is an alias; a beginning (`llama-*`) is no name.
  2. There is a list where there are names: at `/v1/models` in the shape of OpenAI's API and at `/api/tags` in
     Ollama's. Where a revision's own path is stripped, it is behind that path.
  3. What the program does not know of a model (size, family, digest) is empty, and present: clients insist on the
     fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from activator.config.specs import RevisionSpec

OPENAI_PATH: Final = b"/v1/models"
OLLAMA_PATH: Final = b"/api/tags"


def lists_of(specs: Iterable[RevisionSpec]) -> dict[bytes, bytes]:
    """The answers by path; each in the order of the file, and every name once."""
    names: dict[bytes, dict[str, str]] = {}  # by the path before it, the namespace of the first that has a name
    for spec in specs:
        match = spec.match
        before = match.path.encode("latin-1") if match.strip_path else b""
        for name in (*match.models, *spec.aliases):
            if not name.endswith("*"):
                names.setdefault(before, {}).setdefault(name, spec.key.partition("/")[0])
    found: dict[bytes, bytes] = {}
    for before, listed in names.items():
        found[before + OPENAI_PATH] = _body({"object": "list", "data": [_openai(*one) for one in listed.items()]})
        found[before + OLLAMA_PATH] = _body({"models": [_ollama(name) for name in listed]})
    return found


def _body(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()


def _openai(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


def _ollama(name: str) -> dict[str, Any]:
    details = {
        "parent_model": "",
        "format": "",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": "",
    }
    return {
        "name": name,
        "model": name,
        "modified_at": "1970-01-01T00:00:00Z",
        "size": 0,
        "digest": "",
        "details": details,
    }
