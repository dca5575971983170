"""The keys of users: a request without a valid one is refused before its body is read and before it starts anything.

Rules
  1. A key comes as `Authorization: Bearer KEY`, as the password of `Authorization: Basic`, or as `X-Api-Key: KEY`. With
     several keys, the first that may use the revision counts.
  2. Keys are found by a hash: SHA-256, or for a key that was used before, that of Python's dictionaries, whose secret
     differs in each process. A client can choose neither, so the time of a lookup reveals nothing about a key.
  3. A header field with a valid key is never forwarded to a pod, nor are more fields with its name. A field with an
     unknown key is forwarded, because it may be for the pod.
  4. A request that may not use its revision is quiet (`Exchange.is_quiet`): it starts no pod and is no load.
  5. Rights are those of the time at which the revision is known: a reload may have changed them since the arrival.
  6. A listener with `keys: false` requires no key, and may use all revisions; known keys count as elsewhere.
  7. Without a valid key, a refusal does not show which routes and models exist (proxy/entering.py).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from typing import Final, final

from mypy_extensions import i64

from activator.codec.http1.field_names import is_field
from activator.codec.http1.fields import end_of_line, value_of
from activator.codec.message import RequestHead
from activator.config.specs import UserSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Failure, Filter
from activator.data_plane.headers.edits import FieldEdit, removal
from activator.data_plane.users import Access, User, UserTotals
from activator.runtime.reasons import Reason

CREDENTIAL_BYTES_MAX: Final = 4_096  # a longer one is no key
CREDENTIALS_MAX: Final = 4  # per request; a request with more is refused

_AUTHORIZATION: Final = b"authorization"
_API_KEY: Final = b"x-api-key"
# Servers that pass fields as environment variables (CGI, WSGI) take these names for the same.
_API_KEYS: Final = frozenset([_API_KEY, b"x_api_key", b"x-api_key", b"x_api-key"])
_COLON: Final = ord(":")
_A: Final = ord("a") & 31  # a letter in either case
_X: Final = ord("x") & 31
_WITHOUT_AUTHORIZATION: Final = removal(frozenset([_AUTHORIZATION]))
_WITHOUT_API_KEY: Final = removal(_API_KEYS)
_CHALLENGE: Final = (b"WWW-Authenticate", b'Bearer realm="activator", Basic realm="activator"')


@final
class Keys(Filter):
    """The filter of all requests if there are users."""

    def __init__(self, specs: Iterable[UserSpec], totals: dict[str, UserTotals]) -> None:
        """Make the filter; `totals`: by name, those of the filter before, which requests in progress still change."""
        self._users: dict[bytes, User] = {}  # keyed by the digest
        self._used: dict[bytes, User] = {}  # keyed by the key itself; only valid keys
        all_totals = dict(totals)
        for spec in specs:
            if spec.name not in all_totals:
                all_totals[spec.name] = UserTotals()
            self._users[spec.digest] = User(spec, all_totals[spec.name])
        self._anyone: User | None = self._users.pop(b"", None)  # for requests without a key
        # For requests at listeners that require no key; it has no name and no limits, and its totals are not shown.
        self._unnamed = User(UserSpec("", b"", None), UserTotals())

    def totals(self) -> dict[str, UserTotals]:
        """Return the totals of each user."""
        users = [*self._users.values(), *([] if self._anyone is None else [self._anyone])]
        return {user.name: user.totals for user in users}

    # --- Filter ---

    def on_arrival(self, request: Exchange) -> None:
        credentials = credentials_of(request.head)
        self._identify(request, credentials)
        if request.access is None:
            is_excess = len(credentials) > CREDENTIALS_MAX
            detail = "there are too many" if is_excess else "it is not known" if credentials else ""
            request.fail(Reason.KEY_REQUIRED, detail)

    def on_routed(self, request: Exchange) -> None:
        access = request.access
        if access is None or access.source is not self:
            self._identify(request, credentials_of(request.head))
            access = request.access
        user = None if access is None else access.choose(request.revision_key())
        request.place.user = user
        if user is None:
            request.is_quiet = True

    def on_request(self, request: Exchange) -> None:
        access = request.access
        user = None if access is None else access.user
        if user is None:
            has_key = access is not None and access.has_key
            request.fail(Reason.KEY_NOT_ALLOWED if has_key else Reason.KEY_REQUIRED, "")
        elif request.fallbacks == 0:
            user.totals.requests += 1

    def on_failure(self, request: Exchange, failure: Failure) -> None:
        if failure.reason is Reason.KEY_REQUIRED:
            failure.fields = [*failure.fields, _CHALLENGE]

    # --- within ---

    def _identify(self, request: Exchange, credentials: list[tuple[bytes, FieldEdit]]) -> None:
        """Set `request.access` to the users whose keys the request has; to None without any, or with too many keys."""
        request.access = None
        if len(credentials) > CREDENTIALS_MAX:
            return
        users: list[User] = []
        for key, field_removal in credentials:
            user = self._user_of(key)
            if user is not None:
                users.append(user)
                request.edit().add(field_removal)
        has_key = len(users) > 0
        if not request.head.needs_key:
            users.append(self._unnamed)
            has_key = True
        elif self._anyone is not None:
            users.append(self._anyone)
        if users:
            request.access = Access(self, tuple(users), has_key)

    def _user_of(self, key: bytes) -> User | None:
        """Return the user with this key; None if there is none."""
        user = self._used.get(key)
        if user is None:
            user = self._users.get(hashlib.sha256(key).digest())
            if user is not None:
                self._used[key] = user
        return user


def credentials_of(head: RequestHead) -> list[tuple[bytes, FieldEdit]]:
    """Return the keys of a request, known or not, each with the edit that removes its field.

    The keys of Authorization come first. At most one more than CREDENTIALS_MAX is returned.
    """
    block = head.headers.block
    authorizations: list[tuple[bytes, FieldEdit]] = []
    api_keys: list[tuple[bytes, FieldEdit]] = []
    stop: i64 = len(block)
    pos: i64 = 2
    while pos < stop and len(authorizations) + len(api_keys) <= CREDENTIALS_MAX:
        end = end_of_line(block, pos, stop)
        if end < 0:
            end = stop
        letter = block[pos] & 31
        if letter == _A and is_field(block, pos, end, _AUTHORIZATION):
            key = _key_in(value_of(block[pos:end]))
            if key:
                authorizations.append((key, _WITHOUT_AUTHORIZATION))
        elif letter == _X and _is_api_key(block, pos, end):
            key = _key_in(value_of(block[pos:end]))
            if key:
                api_keys.append((key, _WITHOUT_API_KEY))
        pos = end + 2
    return authorizations + api_keys


def _is_api_key(block: bytes, pos: i64, end: i64) -> bool:
    """Return True if the line is X-Api-Key, or a name that a server could take for it."""
    size: i64 = len(_API_KEY)
    return end - pos > size and block[pos + size] == _COLON and block[pos : pos + size].lower() in _API_KEYS


def _key_in(value: bytes) -> bytes:
    """Return the key in the value of a field; empty if there is none."""
    if len(value) > CREDENTIAL_BYTES_MAX:
        return b""
    words = value.split(None, 1)
    scheme = words[0].lower() if words else b""
    if scheme == b"bearer":
        return words[1] if len(words) > 1 else b""
    if scheme == b"basic" and len(words) > 1:
        return _password_of(words[1])
    return value


def _password_of(encoded: bytes) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""
