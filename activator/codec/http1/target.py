"""Validation of the request line and of the authority.

Rules
  1. The line is checked here before llhttp sees it, because llhttp accepts other versions and protocols, repeated
     spaces and characters that a URI must not contain. llhttp refuses HTTP/1.2 and methods that it does not know: for
     such a line it is fed a common one instead.
  2. A target is forwarded in origin-form or as `*`; absolute-form is rewritten (RFC 9112 3.2.2). Some characters that
     RFC 3986 forbids but clients send unencoded are forwarded percent-encoded.
  3. An authority may contain only characters of DNS names and IP addresses. RFC 3986 would also allow sub-delims and
     percent-encoding, which no DNS name has and which routers, logs and pods interpret differently.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv6Address
from typing import Final

from activator.runtime.errors import WireError
from activator.runtime.reasons import Reason

REQUEST_LINE_SLACK_BYTES: Final = 64  # for the rest of a request line: the method, two spaces, the version

_PORT_DIGITS_MAX: Final = 5
_PORT_MAX: Final = 65_535
_SLASH: Final = 47

# All methods of HTTP that llhttp knows (it also knows those of RTSP). Only methods that llhttp knows may be added.
METHODS: Final = frozenset({
    b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"QUERY",
    b"PROPFIND", b"PROPPATCH", b"MKCOL", b"COPY", b"MOVE", b"LOCK", b"UNLOCK", b"SEARCH", b"REPORT", b"ACL", b"BIND",
    b"REBIND", b"UNBIND", b"CHECKOUT", b"MERGE", b"MKACTIVITY", b"MKCALENDAR", b"LINK", b"UNLINK", b"PURGE", b"SOURCE",
    b"M-SEARCH", b"NOTIFY", b"SUBSCRIBE", b"UNSUBSCRIBE",
})  # fmt: skip

_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CONTROLS: Final = bytes(range(0x20)) + b"\x7f"
_NOT_ASCII: Final = bytes(range(0x80, 0x100))
# Browsers send `[]^`{|} unencoded (WHATWG's URL standard, query state), and servers accept them.
_NOT_IN_TARGET: Final = _CONTROLS + _NOT_ASCII + b' "#<>\\'
# curl and clients of Prometheus send these unencoded; some servers refuse them, and some treat a backslash as a slash.
_ENCODED: Final = {b'"': b"%22", b"<": b"%3C", b">": b"%3E", b"\\": b"%5C"}
# Changes forbidden bytes. If there are none, translate returns the same object, at a third of the cost of deleting.
_TARGET_CHECK: Final = bytes(byte ^ 0x80 if byte in _NOT_IN_TARGET else byte for byte in range(256))
_NAME: Final = b"-._~0123456789abcdefghijklmnopqrstuvwxyz"


class RequestLine:
    """The method, target and version of the request being parsed; each parser has one object and reuses it."""

    def __init__(self, target_max: int) -> None:
        self._target_max = target_max
        self._validated: bytes = b""  # the last valid line
        self.method: bytes = b""
        self.target: bytes = b""
        self.http_1_0: bool = False
        self.authority: bytes | None = None  # the authority of an absolute-form target, lowered
        self.for_grammar: bytes = b""  # the line that llhttp is fed instead of one that it would refuse

    def validate(self, line: bytes) -> None:
        """Parse the line. Raises WireError if it is malformed or not supported."""
        if line == self._validated:
            return  # clients that poll or call procedures repeat the same line
        self._validated = b""
        self.check_length(line)
        parts = line.split(b" ")
        if len(parts) != 3:
            raise WireError(Reason.BAD_REQUEST, "the request line is not a method, a target and a version")
        method = parts[0]
        target = parts[1]
        version = parts[2]
        llhttp_knows_line = True
        if version == b"HTTP/1.1":
            self.http_1_0 = False
        elif version == b"HTTP/1.0":
            self.http_1_0 = True
        else:
            _check_version(version)
            self.http_1_0 = False
            llhttp_knows_line = False
        if len(target) > self._target_max:
            raise _target_error()
        if method not in METHODS:
            _check_method(method)
            llhttp_knows_line = False
        if target.translate(_TARGET_CHECK) != target:
            target = _encoded(target)
        self.for_grammar = b"" if llhttp_knows_line else b"POST / HTTP/1.0" if self.http_1_0 else b"POST / HTTP/1.1"
        self.method = method
        self.authority = None
        if target and target[0] == _SLASH:
            self.target = target
        else:
            self._other_form(target)
        self._validated = line

    def check_length(self, line: bytes) -> None:
        """Refuse a line, complete or not, whose target must be too long."""
        if len(line) > self._target_max + REQUEST_LINE_SLACK_BYTES:
            raise _target_error()

    def _other_form(self, target: bytes) -> None:
        """Set `target` and `authority` for a target that is not in origin-form."""
        if target == b"*":
            if self.method != b"OPTIONS":
                raise WireError(Reason.BAD_REQUEST, "the target * is for OPTIONS only")
            self.target = target
            return
        scheme_end = target.find(b"://")
        if scheme_end < 0 or target[:scheme_end].lower() not in {b"http", b"https"}:
            raise WireError(Reason.BAD_REQUEST, "the target is neither a path nor an http URI")
        start = scheme_end + 3
        end = len(target)
        for delimiter in (b"/", b"?"):
            found = target.find(delimiter, start)
            if 0 <= found < end:
                end = found
        self.authority = check_authority(target[start:end])
        rest = target[end:]
        if rest.startswith(b"/"):
            self.target = rest
        elif rest or self.method != b"OPTIONS":
            self.target = b"/" + rest
        else:
            self.target = b"*"  # RFC 9112 3.2.4: OPTIONS on a URI without a path asks about the whole server


def check_authority(value: bytes) -> bytes:
    """Return `value` lowered if it is host or host:port. Raises WireError otherwise.

    A host is a name, an IPv4 address or an IPv6 address in brackets. The colon before an empty port is removed
    (RFC 3986 6.2.3).
    """
    lowered = value.lower()
    rest = lowered.translate(None, _NAME)
    if not rest and lowered:
        return lowered
    if lowered.startswith(b"["):
        host_end = lowered.find(b"]") + 1
        if host_end == 0 or not _is_ipv6(lowered[1 : host_end - 1]):
            raise _authority_error()
        if host_end == len(lowered):
            return lowered
        if lowered[host_end : host_end + 1] != b":":
            raise _authority_error()
        port = lowered[host_end + 1 :]
    else:
        host_end = lowered.find(b":")
        if rest != b":" or host_end == 0:
            raise _authority_error()
        port = lowered[host_end + 1 :]
    if not port:
        return lowered[:-1]
    if not port.isdigit() or len(port) > _PORT_DIGITS_MAX or int(port) > _PORT_MAX:
        raise _authority_error()
    return lowered


def check_target(target: bytes) -> bytes:
    """Return a path and query that may be forwarded. Raises WireError if it contains a character no URI may contain."""
    return _encoded(target) if target.translate(_TARGET_CHECK) != target else target


def is_method(method: bytes) -> bool:
    """Return True if `method` is a token, as any method is (RFC 9110 9.1)."""
    return method in METHODS or (len(method) > 0 and not method.translate(None, _TOKEN))


def _is_ipv6(text: bytes) -> bool:
    """Return True if the text is an IPv6 address without a zone, in lower case."""
    if text.translate(None, b"0123456789abcdef:."):
        return False  # also zones, because they are valid only on the client's machine
    try:
        IPv6Address(text.decode("ascii"))
    except AddressValueError:
        return False
    return True


def _authority_error() -> WireError:
    return WireError(Reason.BAD_REQUEST, "Host or the target's authority is not host or host:port")


def _target_error() -> WireError:
    return WireError(Reason.TARGET_TOO_LONG, "the target is too long")


def _check_version(version: bytes) -> None:
    """Accept HTTP/1.2 to 1.9 as HTTP/1.1, the highest minor version (RFC 9110 2.5). Raises WireError for any other."""
    is_http = len(version) == 8 and version.startswith(b"HTTP/") and version[6:7] == b"."
    if not is_http or not version[5:6].isdigit() or not version[7:].isdigit():
        raise WireError(Reason.BAD_REQUEST, "the request line does not end in a version of HTTP")
    if version[5:6] != b"1":
        raise WireError(Reason.VERSION_NOT_SUPPORTED, "the version is not HTTP/1")


def _check_method(method: bytes) -> None:
    """Accept any token (RFC 9110 9.1) but CONNECT, behind which the framing of requests does not apply."""
    if not method or method.translate(None, _TOKEN):
        raise WireError(Reason.BAD_REQUEST, "the method is not a token")
    if method == b"CONNECT":
        raise WireError(Reason.METHOD_NOT_SUPPORTED, "CONNECT")


def _encoded(target: bytes) -> bytes:
    """Percent-encode the bytes in _ENCODED. Raises WireError if the target has another forbidden byte."""
    for character, code in _ENCODED.items():
        target = target.replace(character, code)
    if target.translate(_TARGET_CHECK) != target:
        if b"#" in target:
            raise WireError(Reason.BAD_REQUEST, "the target has a fragment (#)")
        raise WireError(Reason.BAD_REQUEST, "the target holds a character that must be percent-encoded")
    return target
