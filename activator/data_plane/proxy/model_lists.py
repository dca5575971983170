"""The lists of models that the activator answers itself: all models of the revisions of a host, running or not.

Rules
  1. Exact model names and aliases are listed; prefixes (`llama-*`) are not.
  2. A list exists only if there are names: at `/v1/models` in the format of OpenAI's API, and at `/api/tags` in that of
     Ollama; a single model is at `/v1/models/NAME`. If `strip_path` is set for a revision, all are below its path.
  3. Fields that the activator cannot know (size, family, digest) are present and empty, because clients require them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from activator.config.specs import RevisionSpec

OPENAI_PATH: Final = b"/v1/models"
OLLAMA_PATH: Final = b"/api/tags"


def lists_of(specs: Iterable[RevisionSpec]) -> dict[bytes, bytes]:
    """Return the response bodies by path; models are in the order of the file, each name once."""
    names: dict[bytes, dict[str, str]] = {}  # path prefix -> model name -> namespace of the first revision that has it
    for spec in specs:
        routing = spec.routing
        match = routing.match
        before = match.path.encode("latin-1") if match.strip_path else b""
        for name in (*match.models, *routing.aliases):
            if not name.endswith("*"):
                names.setdefault(before, {}).setdefault(name, spec.key.partition("/")[0])
    found: dict[bytes, bytes] = {}
    for before, listed in names.items():
        found[before + OPENAI_PATH] = _body({"object": "list", "data": [_openai(*one) for one in listed.items()]})
        for name, owner in listed.items():
            for text in (name, quote(name), quote(name, safe="")):
                found[before + OPENAI_PATH + b"/" + text.encode()] = _body(_openai(name, owner))
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
