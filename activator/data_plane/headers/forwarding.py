"""The origin of a request, and the header fields that describe it to the pod.

Rules
  1. What a client states about its own origin (X-Forwarded-*, Forwarded, X-Real-IP) is a claim. Claims of untrusted
     peers never reach a pod, however they are spelled: the pod gets the address of the peer instead.
  2. Claims of a trusted peer are kept and extended: the peer's own address is appended to its list.
  3. A valid request id is kept (`is_valid_request_id`), any other is replaced. It serves correlation and proves
     nothing. If no id is to be written, the client's is forwarded unchanged.
  4. A client of a Unix socket has no address. `Forwarded` then has `unknown` (RFC 7239 section 6.2). X-Forwarded-For,
     a list of addresses, is not written; it is forwarded unchanged if such clients are trusted.
  5. Fields that do not change during a connection are built once, and kept for the peer's next connections.

X-Forwarded-* follow common practice, because there is no standard; Forwarded is RFC 7239, Via is RFC 9110 7.6.3.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from mypy_extensions import i64

from activator.codec.message import Fields, RequestHead
from activator.runtime.networks import Network, canonical, is_within
from lb import COMPILED

_COMPILED: Final[bool] = COMPILED
_MASK: Final = (1 << 64) - 1
_REQUEST_ID_MAX: Final = 128
ORIGINS_KEPT_MAX: Final = 256  # peers whose fields are kept for their next connections
AUTHORITIES_KEPT_MAX: Final = 16  # authorities of one peer whose fields are kept
AUTHORITY_KEPT_BYTES: Final = 256  # longer ones are not kept
_NOT_IN_REQUEST_ID: Final = bytes(
    byte for byte in range(256) if not ((chr(byte).isalnum() and byte < 128) or byte in b"-_.~:/+=@")
)
_IN_REQUEST_ID: Final[bytes] = bytes(0 if byte in _NOT_IN_REQUEST_ID else 1 for byte in range(256))
_COLON: Final = 58
_SPACE: Final = 32

_TWO_DIGITS: Final = [b"%02x" % number for number in range(256)]

X_FORWARDED: Final = 1
FORWARDED: Final = 2
FOR_ONLY: Final = 4  # X-Forwarded-For, as Knative's activator does


class Origins:
    """The settings and the request ids that all connections of a worker share.

    `trusted`: the networks whose claims are accepted. `writes`: X_FORWARDED, FORWARDED, both (3), FOR_ONLY or none (0).
    `via`: the name of this proxy in Via; empty: no Via. `seed`: 64 random bits, unique to the process.
    `trusts_unix`: clients of Unix sockets are trusted.
    """

    def __init__(
        self,
        trusted: tuple[Network, ...],
        writes: int,
        writes_request_id: bool,
        via: bytes,
        seed: int,
        trusts_unix: bool = False,
    ) -> None:
        self.trusted = trusted
        self.trusts_unix = trusts_unix
        self.writes = writes
        self.writes_request_id = writes_request_id
        self.via = via
        self._seed = seed & _MASK
        self._cached: dict[tuple[str, bool, bool, bytes], Origin] = {}  # by the arguments of `of`
        self._last_id: int = -1  # number of the last request id
        self._id_start: bytes = b""  # all but the last two digits of the current ids

    def of(self, peer_ip: str, secure: bool, is_unix: bool = False, version: bytes = b"1.1") -> Origin:
        """Return the origin of a connection, which the connections of one peer may share.

        `secure`: over TLS, `is_unix`: over a Unix socket, `version`: of HTTP, for Via.
        """
        key = (peer_ip, secure, is_unix, version)
        origin = self._cached.get(key)
        if origin is None:
            if len(self._cached) >= ORIGINS_KEPT_MAX:
                self._cached.clear()  # connections keep their origins; later ones get new objects
            origin = self._cached[key] = Origin(self, peer_ip, secure, is_unix, version)
        return origin

    def is_trusted(self, ip: str) -> bool:
        """Return True if the address is in a trusted network; False if it is not an address."""
        return bool(self.trusted) and is_within(ip, self.trusted)

    def request_id(self) -> bytes:
        """Return a new id of 32 hexadecimal digits: 16 of the process, and 16 of a number; the last two are counted up.

        Formatting all digits takes 1 us, which is 2 % of a request; two digits from a table take a tenth of that.
        """
        self._last_id += 1
        index = self._last_id & 255
        if index == 0:
            block = ((self._last_id >> 8) * 0x9E3779B97F4A7C15) & (_MASK >> 8)  # an odd factor: no number occurs twice
            self._id_start = b"%016x%014x" % (self._seed, block)
        return self._id_start + _TWO_DIGITS[index]


class Origin:
    """The peer of a connection."""

    def __init__(self, origins: Origins, peer_ip: str, secure: bool, is_unix: bool, version: bytes) -> None:
        self._origins = origins
        self.is_unix = is_unix
        self.peer_ip = unmapped(peer_ip)
        self.secure = secure
        self._version = version
        self.is_trusted = origins.trusts_unix if is_unix else origins.is_trusted(self.peer_ip)
        self._writes_request_id: bool = origins.writes_request_id
        self._fields: dict[bytes, bytes] = {}  # by authority

    def stamp(self, head: RequestHead) -> None:
        """Add the origin fields to the head for the pod."""
        claims = head.claims
        if self.is_trusted and claims:
            fields = self._trusted_fields(head)
        else:
            cached = self._fields.get(head.authority)
            fields = self._untrusted_fields(head.authority) if cached is None else cached
        if self._writes_request_id:
            request_id = _value_of(claims, b"x-request-id") if claims else b""
            if not is_valid_request_id(request_id):
                request_id = self._origins.request_id()
            head.headers.block = b"%b%b\r\nX-Request-Id: %b" % (head.headers.block, fields, request_id)
            return
        if claims and not self.is_trusted:  # the id of a trusted peer is in `fields` already
            request_id = _value_of(claims, b"x-request-id")
            if request_id:
                head.headers.block += b"\r\nX-Request-Id: %b" % request_id
        if fields:
            head.headers.block = head.headers.block + fields

    def client_ip(self, head: RequestHead) -> str:
        """Return the client's address: the last one in the list that is not a trusted proxy, or the peer's."""
        if not self.is_trusted:
            return self.peer_ip
        client = self.peer_ip
        for address in reversed(_addresses(head.claims)):
            client = address
            if not self._origins.is_trusted(address):
                break
        return client

    # --- within ---

    def _untrusted_fields(self, authority: bytes) -> bytes:
        """Return the fields of a peer that is not trusted, and keep them."""
        origins = self._origins
        peer = self.peer_ip.encode()
        pairs = []
        if origins.writes & X_FORWARDED and (peer or self.is_unix):
            if peer:
                pairs.append((b"X-Forwarded-For", peer))
            pairs.append((b"X-Forwarded-Proto", self._scheme()))
            if authority:
                pairs.append((b"X-Forwarded-Host", authority))
        if origins.writes & FOR_ONLY and peer:
            pairs.append((b"X-Forwarded-For", peer))
        if origins.writes & FORWARDED and (peer or self.is_unix):
            pairs.append((b"Forwarded", self._element(authority)))
        if origins.via:
            pairs.append((b"Via", b"%b %b" % (self._version, origins.via)))
        fields = Fields.from_pairs(pairs).block
        if len(authority) <= AUTHORITY_KEPT_BYTES:
            if len(self._fields) >= AUTHORITIES_KEPT_MAX:
                self._fields.clear()
            self._fields[authority] = fields
        return fields

    def _trusted_fields(self, head: RequestHead) -> bytes:
        """Return the fields for a trusted peer's request: its claims, with its own address appended."""
        origins = self._origins
        claims = head.claims
        peer = self.peer_ip.encode()
        pairs = []
        addresses = _list_of(claims, b"x-forwarded-for")
        chain = b", ".join([*addresses, peer] if peer else addresses)
        if origins.writes & X_FORWARDED:
            if chain:
                pairs.append((b"X-Forwarded-For", chain))
            pairs.append((b"X-Forwarded-Proto", _value_of(claims, b"x-forwarded-proto") or self._scheme()))
            host = _value_of(claims, b"x-forwarded-host") or head.authority
            if host:
                pairs.append((b"X-Forwarded-Host", host))
        elif chain and (addresses or origins.writes & FOR_ONLY):
            pairs.append((b"X-Forwarded-For", chain))
        elements = _list_of(claims, b"forwarded")
        if elements or origins.writes & FORWARDED:
            pairs.append((b"Forwarded", b", ".join([*elements, self._element(head.authority)])))
        written = {pair[0].lower() for pair in pairs} | {b"x-request-id", b"x-forwarded-for", b"forwarded"}
        for line in claims:
            name, _, value = line.partition(b":")
            if name.lower() not in written or (name.lower() == b"x-request-id" and not self._writes_request_id):
                pairs.append((name, value.strip(b" \t")))
        if origins.via:
            pairs.append((b"Via", b"%b %b" % (self._version, origins.via)))
        return Fields.from_pairs(pairs).block

    def _scheme(self) -> bytes:
        return b"https" if self.secure else b"http"

    def _element(self, authority: bytes) -> bytes:
        """Return an element of Forwarded; values with a colon or bracket are quoted (RFC 7239 4)."""
        peer = self.peer_ip.encode()
        node = b'"[%b]"' % peer if b":" in peer else peer or b"unknown"
        host = b';host="%b"' % authority if authority else b""
        return b"for=%b%b;proto=%b" % (node, host, self._scheme())


def unmapped(ip: str) -> str:
    """Return an IPv4-mapped address (::ffff:192.0.2.1) as IPv4, and any other without its zone."""
    return ip[7:] if ip.startswith("::ffff:") and "." in ip else ip.partition("%")[0]


def _value_of(claims: list[bytes], lowered_name: bytes) -> bytes:
    """Return the value of the first field with this name; b"" if there is none."""
    colon: i64 = len(lowered_name)
    for line in claims:
        # without `partition`: 60 ns instead of 250, for each request with an id
        if len(line) > colon and line[colon] == _COLON and line[:colon].lower() == lowered_name:
            return line[colon + 2 :] if _is_plain(line, colon) else line[colon + 1 :].strip(b" \t")
    return b""


def _is_plain(line: bytes, colon: i64) -> bool:
    """Return True if one space follows the colon, and nothing needs to be stripped from the value."""
    end: i64 = len(line)
    return end > colon + 2 and line[colon + 1] == _SPACE and line[colon + 2] > _SPACE and line[end - 1] > _SPACE


def _list_of(claims: list[bytes], lowered_name: bytes) -> list[bytes]:
    """Return the values of all fields with this name; each may itself be a list."""
    values = []
    for line in claims:
        name, _, value = line.partition(b":")
        if name.lower() == lowered_name and value.strip(b" \t"):
            values.append(value.strip(b" \t"))
    return values


def _addresses(claims: list[bytes]) -> list[str]:
    """Return the addresses in X-Forwarded-For, the nearest last; those before an invalid one are dropped."""
    addresses: list[str] = []
    for value in _list_of(claims, b"x-forwarded-for"):
        for member in value.split(b","):
            text = member.strip(b" \t").decode("latin-1")
            if text.startswith("["):
                text = text[1:].partition("]")[0]
            elif text.count(":") == 1:
                text = text.partition(":")[0]
            try:
                addresses.append(str(canonical(ipaddress.ip_address(text))))
            except ValueError:
                addresses.clear()  # entries before it come from an unknown sender
    return addresses


def is_valid_request_id(request_id: bytes) -> bool:
    """Return True if the id is short and has only letters, digits and common separators: it can be shown anywhere."""
    size: i64 = len(request_id)
    if not 0 < size <= _REQUEST_ID_MAX:
        return False
    if not _COMPILED:
        return len(request_id.translate(None, _NOT_IN_REQUEST_ID)) == size
    pos: i64 = 0
    while pos < size:
        if _IN_REQUEST_ID[request_id[pos]] == 0:
            return False
        pos += 1
    return True
