"""The lists of models that the activator answers itself: all models of the revisions of a host, running or not.

Rules
  1. Exact model names and aliases are listed; prefixes (`llama-*`) are not.
  2. A list exists only if there are names: at `/v1/models` in the format of OpenAI's API, and at `/api/tags` in that of
     Ollama; a single model is at `/v1/models/NAME`. If `strip_path` is set for a revision, all are below its path.
  3. Fields that the activator cannot know (size, family, digest) are present and empty, because clients require them.
  4. In the format of OpenAI each model has the `status` that llama.cpp's router reports: `loaded` if a pod is ready,
     `loading`, `failed` or `unloaded`. The rest of a response is made once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, final
from urllib.parse import quote

from activator.data_plane.throttle.revision import RevisionThrottler
from lb.tracker import PENDING

OPENAI_PATH: Final = b"/v1/models"
OLLAMA_PATH: Final = b"/api/tags"
LONG_LIST: Final = 100  # models; a list of 10,000 takes some 10 ms
LONG_LIST_KEPT_S: Final = 0.5


_STATUS: Final = b',"status":{"value":"%b"}}'


@final
class _Model:
    """A model, and the revisions that serve it."""

    def __init__(self, name: str, revision: RevisionThrottler) -> None:
        self.text = _json(_openai(name, revision.spec.key.partition("/")[0]))[:-1]
        self.revisions = [revision]

    def to_json(self, now_s: float) -> bytes:
        """Return the model in the format of OpenAI's API."""
        return self.text + _STATUS % max((_state(revision, now_s) for revision in self.revisions), key=_STATES.index)


@final
class ModelList:
    """A response with the current status of each of `models`; if there are none, it is `text`."""

    def __init__(self, text: bytes, models: Sequence[_Model] = (), is_list: bool = False) -> None:
        self._text = text
        self._models = models
        self._is_list = is_list
        self._built_s: float = 0.0  # when `_text` of a long list was built

    def body(self, now_s: float) -> bytes:
        """Return the body of the response; that of a long list may be LONG_LIST_KEPT_S old."""
        if len(self._models) >= LONG_LIST:
            if not self._text or now_s - self._built_s >= LONG_LIST_KEPT_S:
                self._text, self._built_s = self._build(now_s), now_s
            return self._text
        return self._build(now_s)

    def _build(self, now_s: float) -> bytes:
        listed = b",".join([model.to_json(now_s) for model in self._models])
        if self._is_list:
            return b'{"object":"list","data":[%b]}' % listed
        return listed or self._text


def lists_of(revisions: Sequence[RevisionThrottler]) -> dict[bytes, ModelList]:
    """Return the lists by path; models are in the order of the file, each name once."""
    names: dict[bytes, dict[str, _Model]] = {}  # by path prefix and by name
    for revision in revisions:
        routing = revision.spec.routing
        match = routing.match
        listed = names.setdefault(match.path.encode("latin-1") if match.strip_path else b"", {})
        for name in (*match.models, *routing.aliases):
            if name in listed:
                listed[name].revisions.append(revision)
            elif not name.endswith("*"):
                listed[name] = _Model(name, revision)
    lists: dict[bytes, ModelList] = {}
    for prefix, listed in names.items():
        if not listed:
            continue
        lists[prefix + OPENAI_PATH] = ModelList(b"", list(listed.values()), is_list=True)
        for name, model in listed.items():
            for text in (name, quote(name), quote(name, safe="")):
                lists[prefix + OPENAI_PATH + b"/" + text.encode()] = ModelList(b"", [model])
        lists[prefix + OLLAMA_PATH] = ModelList(_json({"models": [_ollama(name) for name in listed]}))
    return lists


# A model of several revisions has the last of their states in this order.
_STATES: Final = (b"unloaded", b"failed", b"loading", b"loaded")


def _state(revision: RevisionThrottler, now_s: float) -> bytes:
    """Return the state of a revision, as this worker knows it."""
    table, queue = revision.table, revision.queue
    if table.capacity > 0:
        return b"loaded"
    if queue.failure is not None:
        return b"failed"
    is_starting = queue.start_progress(now_s)[0] > 0.0
    if is_starting or any(tracker.state == PENDING for tracker in table.slots[: table.length]):
        return b"loading"
    return b"unloaded"


def _json(answer: dict[str, Any]) -> bytes:
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
