"""The keys of clients: a request without a valid one gets 401 before it can start anything.

Rules
  1. A key comes as `Authorization: Bearer KEY`, as the password of `Authorization: Basic`, or as `x-api-key: KEY`.
  2. Only hashes are kept and compared. A client cannot choose the bytes of a hash, so the time of a lookup reveals
     nothing about a key.
  3. A field with a valid key is not passed on to the pod. Another one is, if requests without a key are allowed: it may
     be for the pod.
  4. Responses to paths below /v1/ are errors in the form of OpenAI's API.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable
from typing import Final, final

from activator.codec.message import RequestHead
from activator.config.model.keys import SHA256, Key
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Failure, Filter
from activator.runtime.reasons import Reason
from activator.runtime.secret_text import read_secret

CREDENTIAL_BYTES_MAX: Final = 4_096  # a longer one is no key

_AUTHORIZATION: Final = b"authorization"
_API_KEY: Final = b"x-api-key"
_CHALLENGE: Final = (b"WWW-Authenticate", b'Bearer realm="activator", Basic realm="activator"')
_NAMESPACE: Final = "default/"  # revisions of a file have it
_CODES: Final = {
    Reason.KEY_REQUIRED: ("invalid_request_error", "invalid_api_key"),
    Reason.KEY_NOT_ALLOWED: ("permission_error", "model_not_allowed"),
}


@final
class _Client:
    """A client with its rights, and the number of its requests."""

    def __init__(self, key: Key) -> None:
        self.name: str = key.name
        self.user: bytes = key.name.encode()
        revisions = key.revisions
        self._revisions: frozenset[str] | None = None if revisions is None else frozenset(revisions)
        self.requests_total: int = 0

    def may_use(self, revision: str) -> bool:
        allowed = self._revisions
        return allowed is None or revision.removeprefix(_NAMESPACE) in allowed


@final
class Keys(Filter):
    """The filter of all requests if there are keys."""

    def __init__(self, keys: Iterable[Key]) -> None:
        """Read the keys. Raises StartError."""
        self._clients: dict[bytes, _Client] = {}  # keyed by the hash
        self._anyone: _Client | None = None  # requests without a key
        for key in keys:
            if key.key is None:
                self._anyone = _Client(key)
            else:
                self._clients[_hash_of(read_secret(str(key.key), f"key {key.name}"))] = _Client(key)

    def totals(self) -> dict[str, int]:
        """Return the number of admitted requests of each client."""
        totals = {client.name: client.requests_total for client in self._clients.values()}
        if self._anyone is not None:
            totals[self._anyone.name] = self._anyone.requests_total
        return totals

    def continue_from(self, totals: dict[str, int]) -> None:
        """Continue the counts of the filter before a reload."""
        clients = list(self._clients.values())
        if self._anyone is not None:
            clients.append(self._anyone)
        for client in clients:
            client.requests_total = totals.get(client.name, 0)

    # --- Filter ---

    def on_request(self, request: Exchange) -> None:
        head = request.head
        revision = request.revision_key()
        field, credential = credential_of(head)
        client = self._clients.get(hashlib.sha256(credential).digest()) if field else None
        if client is not None and client.may_use(revision):
            request.edit().remove(frozenset([field]))
        elif self._anyone is not None and self._anyone.may_use(revision):
            client = self._anyone
        else:
            detail = "it is not known" if field and client is None else ""
            request.fail(Reason.KEY_REQUIRED if client is None else Reason.KEY_NOT_ALLOWED, detail)
            return
        if head.user != client.user:  # otherwise another revision has taken the request
            client.requests_total += 1
            head.user = client.user

    def on_failure(self, request: Exchange, failure: Failure) -> None:
        codes = _CODES.get(failure.reason)
        if codes is None:
            return
        if failure.reason is Reason.KEY_REQUIRED:
            failure.fields = [*failure.fields, _CHALLENGE]
        if request.head.target.startswith(b"/v1/") and not request.is_grpc:
            kind, code = codes
            sentence = failure.reason.sentence + (f": {failure.detail}" if failure.detail else "")
            failure.text = json.dumps(
                {"error": {"message": sentence, "type": kind, "param": None, "code": code}}
            ).encode()
            failure.content_type = b"application/json"


def credential_of(head: RequestHead) -> tuple[bytes, bytes]:
    """Return the name of the field with a credential, and the credential; both empty if there is none."""
    value = head.headers.get(_AUTHORIZATION)
    if value is not None and len(value) <= CREDENTIAL_BYTES_MAX:
        scheme, _, rest = value.partition(b" ")
        scheme = scheme.lower()
        rest = rest.strip(b" ")
        if scheme == b"bearer" and rest:
            return _AUTHORIZATION, rest
        if scheme == b"basic":
            password = _password_of(rest)
            if password:
                return _AUTHORIZATION, password
    value = head.headers.get(_API_KEY)
    if value and len(value) <= CREDENTIAL_BYTES_MAX:
        return _API_KEY, value
    return b"", b""


def _password_of(encoded: bytes) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _hash_of(text: str) -> bytes:
    if text.startswith(SHA256):
        return bytes.fromhex(text.removeprefix(SHA256))
    return hashlib.sha256(text.encode()).digest()
