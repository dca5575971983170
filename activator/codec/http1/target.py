"""The request line and the authority: which requests are well-formed, and whom they are for.

Rules
  1. The line is judged here before llhttp sees it: llhttp lets pass other versions and protocols, repeated spaces and
     characters that no URI has.
  2. A target leaves in origin-form, or as `*`; absolute-form is rewritten (RFC 9112 3.2.2).
  3. An authority is made of what DNS names and IP addresses are made of, and no more: RFC 3986 would let pass
     sub-delims and percent-encoding, which no name has and which routers, logs and pods read in different ways.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv6Address
from typing import Final

from activator.runtime.errors import Reason, WireError

REQUEST_LINE_SLACK_BYTES: Final = 64  # of a request line beside its target: the method, two spaces, the version

_PORT_DIGITS_MAX: Final = 5
_PORT_MAX: Final = 65_535
_SLASH: Final = 47

# All that llhttp knows of HTTP (it knows RTSP's too). Who adds one must know that llhttp does.
METHODS: Final = frozenset({
    b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"QUERY",
    b"PROPFIND", b"PROPPATCH", b"MKCOL", b"COPY", b"MOVE", b"LOCK", b"UNLOCK", b"SEARCH", b"REPORT", b"ACL", b"BIND",
    b"REBIND", b"UNBIND", b"CHECKOUT", b"MERGE", b"MKACTIVITY", b"MKCALENDAR", b"LINK", b"UNLINK", b"PURGE", b"SOURCE",
    b"M-SEARCH", b"NOTIFY", b"SUBSCRIBE", b"UNSUBSCRIBE",
})  # fmt: skip

_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CONTROLS: Final = bytes(range(0x20)) + b"\x7f"
_NOT_ASCII: Final = bytes(range(0x80, 0x100))
# What browsers encode as well. Of what else RFC 3986 has no place for, they send `[]^`{|} as they are (WHATWG's URL
# standard, query state), and servers take them; a backslash is a slash to some and not to others.
_NOT_IN_TARGET: Final = _CONTROLS + _NOT_ASCII + b' "#<>\\'
# Changes what must not be and gives back the very same object where nothing does: a third of the cost of deleting.
_TARGET_CHECK: Final = bytes(byte ^ 0x80 if byte in _NOT_IN_TARGET else byte for byte in range(256))
_NAME: Final = b"-._~0123456789abcdefghijklmnopqrstuvwxyz"


class RequestLine:
    """Method, target and version of the request being parsed; one object per parser, judged anew for each request."""

    def __init__(self, target_max: int) -> None:
        self._target_max = target_max
        self._judged: bytes = b""  # and found good
        self.method: bytes = b""
        self.target: bytes = b""
        self.http_1_0: bool = False
        self.authority: bytes | None = None  # of an absolute-form target, lowered

    def judge(self, line: bytes) -> None:
        """Take the line apart, or raise what is wrong with it."""
        if line == self._judged:
            return  # clients that poll or call procedures send the same line again and again
        self._judged = b""
        self.check_length(line)
        parts = line.split(b" ")
        if len(parts) != 3:
            raise WireError(Reason.BAD_REQUEST, "the request line is not a method, a target and a version")
        method = parts[0]
        target = parts[1]
        version = parts[2]
        if version == b"HTTP/1.1":
            self.http_1_0 = False
        elif version == b"HTTP/1.0":
            self.http_1_0 = True
        else:
            raise _version_error(version)
        if len(target) > self._target_max:
            raise _target_error()
        if method not in METHODS:
            raise _method_error(method)
        if target.translate(_TARGET_CHECK) != target:
            raise WireError(Reason.BAD_REQUEST, "the target holds a character that must be percent-encoded")
        self.method = method
        self.authority = None
        if target and target[0] == _SLASH:
            self.target = target
        else:
            self._other_form(target)
        self._judged = line

    def check_length(self, line: bytes) -> None:
        """Refuse a line, complete or not, whose target must be too long."""
        if len(line) > self._target_max + REQUEST_LINE_SLACK_BYTES:
            raise _target_error()

    def _other_form(self, target: bytes) -> None:
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
    """`value` lowered, if it is host or host:port; host is a name, an IPv4 address or an IPv6 address in brackets."""
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
    if not port.isdigit() or len(port) > _PORT_DIGITS_MAX or int(port) > _PORT_MAX:
        raise _authority_error()
    return lowered


def _is_ipv6(text: bytes) -> bool:
    if text.translate(None, b"0123456789abcdef:."):
        return False  # zones, too: they mean something on the client's machine only
    try:
        IPv6Address(text.decode("ascii"))
    except AddressValueError:
        return False
    return True


def _authority_error() -> WireError:
    return WireError(Reason.BAD_REQUEST, "Host or the target's authority is not host or host:port")


def _target_error() -> WireError:
    return WireError(Reason.TARGET_TOO_LONG, "the target is too long")


def _version_error(version: bytes) -> WireError:
    is_http = len(version) == 8 and version.startswith(b"HTTP/") and version[6:7] == b"."
    if is_http and version[5:6].isdigit() and version[7:].isdigit():
        return WireError(Reason.VERSION_NOT_SUPPORTED, "the version is neither HTTP/1.1 nor HTTP/1.0")
    return WireError(Reason.BAD_REQUEST, "the request line does not end in a version of HTTP")


def _method_error(method: bytes) -> WireError:
    if method and not method.translate(None, _TOKEN):
        return WireError(Reason.METHOD_NOT_SUPPORTED, "the method is not supported")
    return WireError(Reason.BAD_REQUEST, "the method is not a token")
