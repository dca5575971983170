"""The guard of requests from users who may not use all revisions: pods read the model that was allowed, and no other.

Rules
  1. It applies at revisions with models. The first `model` of a body selects; further ones are removed, in any case and
     however they are escaped, and also the first if it names no model of the revision.
  2. Pods get the Content-Type application/json, which is UTF-8. Other bodies (multipart, a content coding, gRPC) and a
     parameter `model` in the target are refused, because pods may find a model there.
  3. From the first byte on that shows that a body is not valid JSON, nothing of it is passed on, nor what follows the
     object: readers that accept more than JSON may find a model there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from activator.codec.json_edit import ObjectEdit, ObjectEditor
from activator.codec.json_field import FOUND, FieldScan
from activator.codec.message import RequestHead
from activator.config.specs import RoutingSpec
from activator.data_plane.buffering import is_request_streamed
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.users import Access
from activator.runtime.units import KIB

MODEL: Final = "model"
SCAN_BYTES_MAX: Final = 64 * KIB  # the part of a body that is scanned for the model
DIGESTS: Final = frozenset({b"content-md5", b"digest", b"content-digest", b"repr-digest"})
_PARAMETER: Final = b"model"
_MULTIPART: Final = b"multipart/"


def is_guarded(access: Access | None, routing: RoutingSpec) -> bool:
    """Return True if the guard applies: the user may not use all revisions, and this one has models."""
    if access is None or access.user is None or not access.user.is_limited:
        return False
    return len(routing.match.models) > 0 or len(routing.aliases) > 0


def guard_problem(head: RequestHead, has_body: bool) -> str:
    """Return why a request cannot be guarded; empty if it can."""
    _, mark, query = head.target.partition(b"?")
    if mark:
        for part in query.replace(b";", b"&").split(b"&"):
            if unquote_to_bytes(part.partition(b"=")[0].replace(b"+", b" ")).strip().lower() == _PARAMETER:
                return "with this key the model is named in the body, not in the path"
    if not has_body:
        return ""
    media_type = (head.headers.get(b"content-type") or b"").strip().lower()
    if media_type.startswith(_MULTIPART) or is_request_streamed(head) or not is_identity(head):
        return "with this key the body is JSON, without a content coding"
    return ""


def guarding_editor(edits: HeadEdits, model: str) -> ObjectEditor:
    """Return the editor of the body, and edit the head. `model`: the one that the pod reads; empty: none."""
    edits.set(b"Content-Type", b"application/json")
    added = [(MODEL, json.dumps(model))] if model else []
    return ObjectEditor(ObjectEdit([MODEL], added, is_strict=True))


def scan_for_model(pieces: Iterable[bytes]) -> FieldScan:
    """Search the part of a body that has arrived for the model; return the search."""
    scan = FieldScan(MODEL, SCAN_BYTES_MAX)
    for piece in pieces:
        scan.feed(piece)
    return scan


def model_of(routing: RoutingSpec, scan: FieldScan | None) -> str:
    """Return the model that the pod receives; empty if the body names no model of the revision."""
    if scan is None or scan.state != FOUND:
        return ""
    if is_alias(routing, scan.value):
        return routing.rewrite_model
    names = (*routing.match.models, *routing.aliases)
    has_model = any(scan.value == name or (name[-1:] == "*" and scan.value.startswith(name[:-1])) for name in names)
    return scan.value if has_model else ""


def is_alias(routing: RoutingSpec, model: str) -> bool:
    """Return True if the pod has another name for the model."""
    return routing.rewrite_model != "" and model in routing.aliases and model not in routing.match.models


def is_identity(head: RequestHead) -> bool:
    """Return True if the body has no content coding."""
    return (head.headers.get(b"content-encoding") or b"identity").lower() == b"identity"
