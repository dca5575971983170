"""Requests that must be refused: (where the idea is from, the bytes, the reason).

Each is fed whole, byte by byte, cut everywhere and with a tail; none may reach a pod. "facts" are those that llhttp was
measured to let pass.
"""

from __future__ import annotations

from activator.runtime.errors import Reason

BAD = Reason.BAD_REQUEST
H = b"Host: a\r\n"


def get(fields: bytes, line: bytes = b"GET / HTTP/1.1") -> bytes:
    return line + b"\r\n" + fields + b"\r\n"


def post(fields: bytes, body: bytes = b"") -> bytes:
    return b"POST / HTTP/1.1\r\n" + H + fields + b"\r\n" + body


UPGRADE = b"Connection: x, upgrade\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"

HOSTILE: list[tuple[str, bytes, Reason]] = [
    # --- Host: RFC 9112 3.2, facts
    ("no Host", get(b""), BAD),
    ("two Hosts", get(H + b"host: b\r\n"), BAD),
    ("two equal Hosts", get(H + H), BAD),
    ("empty Host", get(b"Host:\r\n"), BAD),
    ("blank Host", get(b"Host:   \r\n"), BAD),
    ("Host with a path", get(b"Host: a/b\r\n"), BAD),
    ("Host with userinfo", get(b"Host: u@a\r\n"), BAD),
    ("Host list", get(b"Host: a, b\r\n"), BAD),
    ("Host with a space", get(b"Host: a b\r\n"), BAD),
    ("Host not ASCII", get(b"Host: \xc3\xa4\r\n"), BAD),
    ("Host percent-encoded", get(b"Host: a%2eb\r\n"), BAD),
    ("Host port only", get(b"Host: :80\r\n"), BAD),
    ("Host port empty", get(b"Host: a:\r\n"), BAD),
    ("Host port not a number", get(b"Host: a:8x\r\n"), BAD),
    ("Host port too large", get(b"Host: a:65536\r\n"), BAD),
    ("Host two ports", get(b"Host: a:1:2\r\n"), BAD),
    ("Host bare IPv6", get(b"Host: ::1\r\n"), BAD),
    ("Host broken IPv6", get(b"Host: [::1\r\n"), BAD),
    ("Host not an IPv6", get(b"Host: [1:2]\r\n"), BAD),
    ("Host IPv6 zone", get(b"Host: [fe80::1%25eth0]\r\n"), BAD),
    ("Host after IPv6", get(b"Host: [::1]x\r\n"), BAD),
    ("two Hosts in HTTP/1.0", get(H + H, b"GET / HTTP/1.0"), BAD),
    # --- request line: RFC 9112 3, facts
    ("HTTP/2.0", get(H, b"GET / HTTP/2.0"), Reason.VERSION_NOT_SUPPORTED),
    ("HTTP/0.9", get(H, b"GET / HTTP/0.9"), Reason.VERSION_NOT_SUPPORTED),
    ("HTTP/1.2", get(H, b"GET / HTTP/1.2"), Reason.VERSION_NOT_SUPPORTED),
    ("HTTP/2 preface (RFC 9113 3.4)", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Reason.VERSION_NOT_SUPPORTED),
    ("HTTP/1.10", get(H, b"GET / HTTP/1.10"), BAD),
    ("http in small letters", get(H, b"GET / http/1.1"), BAD),
    ("no version", get(H, b"GET /"), BAD),
    ("RTSP", get(H, b"OPTIONS / RTSP/1.0"), BAD),
    ("ICE", get(H, b"SOURCE / ICE/1.0"), BAD),
    ("an RTSP method", get(H, b"DESCRIBE / HTTP/1.1"), Reason.METHOD_NOT_SUPPORTED),
    ("unknown method (RFC 9110 9.1)", get(H, b"BREW / HTTP/1.1"), Reason.METHOD_NOT_SUPPORTED),
    ("method in small letters", get(H, b"get / HTTP/1.1"), Reason.METHOD_NOT_SUPPORTED),
    ("CONNECT", get(H, b"CONNECT a:443 HTTP/1.1"), Reason.METHOD_NOT_SUPPORTED),
    ("method not a token", get(H, b"G@T / HTTP/1.1"), BAD),
    ("space before the method", get(H, b" GET / HTTP/1.1"), BAD),
    ("two spaces after the method", get(H, b"GET  / HTTP/1.1"), BAD),
    ("two spaces before the version", get(H, b"GET /  HTTP/1.1"), BAD),
    ("space after the version", get(H, b"GET / HTTP/1.1 "), BAD),
    ("tab for a space", get(H, b"GET\t/ HTTP/1.1"), BAD),
    ("space in the target", get(H, b"GET /a b HTTP/1.1"), BAD),
    ("empty target", get(H, b"GET  HTTP/1.1"), BAD),
    ("bare LF after the line", b"GET / HTTP/1.1\nHost: a\n\n", BAD),
    ("bare CR in the line", b"GET /\rx HTTP/1.1\r\nHost: a\r\n\r\n", BAD),
    ("LF before the line", b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", BAD),
    ("CR before the line", b"\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", BAD),
    ("TLS to a plain port", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", BAD),
    ("NUL", b"\x00", BAD),
    # --- target: RFC 9112 3.2, facts
    ("GET *", get(H, b"GET * HTTP/1.1"), BAD),
    ("** for OPTIONS", get(H, b"OPTIONS ** HTTP/1.1"), BAD),
    ("no slash", get(H, b"GET a HTTP/1.1"), BAD),
    ("another scheme", get(H, b"GET ftp://a/ HTTP/1.1"), BAD),
    ("authority-form", get(H, b"GET a:80 HTTP/1.1"), BAD),
    ("absolute-form against Host", get(H, b"GET http://b/ HTTP/1.1"), BAD),
    ("absolute-form, other port", get(H, b"GET http://a:80/ HTTP/1.1"), BAD),
    ("absolute-form without Host", get(b"", b"GET http://a/ HTTP/1.1"), BAD),
    ("absolute-form with userinfo", get(H, b"GET http://u@a/ HTTP/1.1"), BAD),
    ("absolute-form without authority", get(H, b"GET http:///x HTTP/1.1"), BAD),
    ("absolute-form, backslash (browsers read it as /)", get(H, b"GET http://a\\@b/ HTTP/1.1"), BAD),
    *[
        (f"0x{byte:02x} in the target", get(H, b"GET /x" + bytes([byte]) + b"y HTTP/1.1"), BAD)
        for byte in b'"#<>\\\x00\x01\t\x0b\x7f\x80\xff'
    ],
    ("target too long", get(H, b"GET /" + b"x" * 16_384 + b" HTTP/1.1"), Reason.TARGET_TOO_LONG),
    # --- fields: RFC 9112 5, 2.2
    ("space before the colon", get(H + b"X-A : 1\r\n"), BAD),
    ("obs-fold", get(H + b"X-A: 1\r\n 2\r\n"), BAD),
    ("fold after the line", b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", BAD),
    ("no colon", get(H + b"X-A\r\n"), BAD),
    ("no name", get(H + b": 1\r\n"), BAD),
    ("name not a token", get(H + b"X(A: 1\r\n"), BAD),
    ("name not ASCII", get(H + b"X\xc3\xa4: 1\r\n"), BAD),
    ("NUL in a value", get(H + b"X-A: \x00\r\n"), BAD),
    ("bare CR in a value", get(H + b"X-A: 1\rX-B: 2\r\n"), BAD),
    ("bare LF in a value", get(H + b"X-A: 1\nX-B: 2\r\n"), BAD),
    ("bare LF at the end", b"GET / HTTP/1.1\r\nHost: a\r\n\nGET / HTTP/1.1\r\n\r\n", BAD),
    ("Transfer_Encoding (facts)", post(b"Transfer_Encoding: chunked\r\n"), BAD),
    ("Content_Length", post(b"content_length: 5\r\n"), BAD),
    ("Connection names Host", get(H + b"Connection: x, Host\r\n"), BAD),
    ("Connection names Content-Length", post(b"Connection: content-length\r\nContent-Length: 0\r\n"), BAD),
    ("Connection names Transfer-Encoding", post(b"Connection: transfer-encoding\r\n"), BAD),
    # --- framing: RFC 9112 6, facts; "request smuggling": CL.TE, TE.CL, TE.TE (Linhart 2005, Kettle 2019)
    ("CL.TE", post(b"Content-Length: 6\r\n" + CHUNKED, b"0\r\n\r\nG"), BAD),
    ("TE.CL", post(CHUNKED + b"Content-Length: 3\r\n", b"8\r\nSMUGGLED\r\n0\r\n\r\n"), BAD),
    ("TE.TE: two", post(CHUNKED + CHUNKED, b"0\r\n\r\n"), BAD),
    ("TE.TE: chunked, then another", post(CHUNKED + b"Transfer-encoding: cow\r\n", b"0\r\n\r\n"), BAD),
    ("TE.TE: xchunked", post(b"Transfer-Encoding: xchunked\r\n"), BAD),
    ("TE.TE: space before the colon", post(b"Transfer-Encoding : chunked\r\n"), BAD),
    ("TE.TE: leading vertical tab", post(b"Transfer-Encoding: \x0bchunked\r\n"), BAD),
    ("TE.TE: folded", post(b"Transfer-Encoding:\r\n chunked\r\n"), BAD),
    ("TE with a CR for the hyphen", post(b"Transfer\rEncoding: chunked\r\n"), BAD),
    ("CL with a CR for the hyphen", post(b"Content\rLength: 5\r\n", b"hello"), BAD),
    ("TE quoted", post(b'Transfer-Encoding: "chunked"\r\n'), BAD),
    ("TE gzip, chunked", post(b"Transfer-Encoding: gzip, chunked\r\n"), Reason.CODING_NOT_SUPPORTED),
    ("TE two others, chunked", post(b"Transfer-Encoding: Br ,gzip , Chunked\r\n"), Reason.CODING_NOT_SUPPORTED),
    ("TE gzip, chunked and CL", post(b"Transfer-Encoding: gzip, chunked\r\nContent-Length: 5\r\n"), BAD),
    ("TE gzip, chunked in HTTP/1.0", get(H + b"Transfer-Encoding: gzip, chunked\r\n", b"POST / HTTP/1.0"), BAD),
    ("TE chunked, chunked", post(b"Transfer-Encoding: chunked, chunked\r\n"), BAD),
    ("TE quoted, chunked", post(b'Transfer-Encoding: "x", chunked\r\n'), BAD),
    ("TE gzip, and TE chunked", post(b"Transfer-Encoding: gzip\r\n" + CHUNKED, b"0\r\n\r\n"), BAD),
    ("TE gzip", post(b"Transfer-Encoding: gzip\r\n"), BAD),
    ("TE identity", post(b"Transfer-Encoding: identity\r\n"), BAD),
    ("TE ,chunked", post(b"Transfer-Encoding: ,chunked\r\n"), BAD),
    ("TE chunked, identity", post(b"Transfer-Encoding: chunked, identity\r\n"), BAD),
    ("TE chunked;q=1", post(b"Transfer-Encoding: chunked;q=1\r\n"), BAD),
    ("TE empty", post(b"Transfer-Encoding:\r\n"), BAD),
    ("TE in HTTP/1.0", b"POST / HTTP/1.0\r\n" + H + CHUNKED + b"\r\n0\r\n\r\n", BAD),
    ("TE on GET", get(H + CHUNKED), BAD),
    ("TE on HEAD", get(H + CHUNKED, b"HEAD / HTTP/1.1"), BAD),
    ("TE on TRACE", get(H + CHUNKED, b"TRACE / HTTP/1.1"), BAD),
    ("a body on TRACE (RFC 9110 9.3.8)", get(H + b"Content-Length: 1\r\n", b"TRACE / HTTP/1.1"), BAD),
    ("CL twice", post(b"Content-Length: 1\r\nContent-Length: 2\r\n"), BAD),
    ("CL twice the same", post(b"Content-Length: 1\r\nContent-Length: 1\r\n"), BAD),
    ("CL list", post(b"Content-Length: 1, 1\r\n"), BAD),
    ("CL empty", post(b"Content-Length:\r\n"), BAD),
    ("CL +1", post(b"Content-Length: +1\r\n"), BAD),
    ("CL -1", post(b"Content-Length: -1\r\n"), BAD),
    ("CL 1 2", post(b"Content-Length:  1 2\r\n"), BAD),
    ("CL 0x1", post(b"Content-Length: 0x1\r\n"), BAD),
    ("CL 1_0", post(b"Content-Length: 1_0\r\n"), BAD),
    ("CL 1.0", post(b"Content-Length: 1.0\r\n"), BAD),
    ("CL 2**63", post(b"Content-Length: 9223372036854775808\r\n"), BAD),
    ("CL 2**64 - 1", post(b"Content-Length: 18446744073709551615\r\n"), BAD),
    ("CL 2**64", post(b"Content-Length: 18446744073709551616\r\n"), BAD),
    ("CL of 20 digits", post(b"Content-Length: 00000000000000000001\r\n"), BAD),
    # --- chunks: RFC 9112 7.1
    ("chunk size empty", post(CHUNKED, b"\r\n"), BAD),
    ("chunk size not hex", post(CHUNKED, b"x\r\n"), BAD),
    ("chunk size 0x1", post(CHUNKED, b"0x1\r\n"), BAD),
    ("chunk size +1", post(CHUNKED, b"+1\r\n"), BAD),
    ("chunk size -1", post(CHUNKED, b"-1\r\n"), BAD),
    ("chunk size with a space", post(CHUNKED, b"1 \r\nx\r\n0\r\n\r\n"), BAD),
    ("chunk size before a space", post(CHUNKED, b" 1\r\nx\r\n0\r\n\r\n"), BAD),
    ("chunk size 2**64", post(CHUNKED, b"10000000000000000\r\n"), BAD),
    ("chunk size 2**63", post(CHUNKED, b"8000000000000000\r\n"), BAD),
    ("chunk size 2**64 + 5, wrapping", post(CHUNKED, b"10000000000000005\r\nhello\r\n0\r\n\r\n"), BAD),
    ("bare LF after the size", post(CHUNKED, b"1\nx\r\n0\r\n\r\n"), BAD),
    ("bare CR after the size", post(CHUNKED, b"1\rx\r\n0\r\n\r\n"), BAD),
    ("bare LF in an extension", post(CHUNKED, b"1;a\nx\r\n0\r\n\r\n"), BAD),
    ("data longer than the chunk", post(CHUNKED, b"1\r\nxy\r\n0\r\n\r\n"), BAD),
    ("bare LF after the data", post(CHUNKED, b"1\r\nx\n0\r\n\r\n"), BAD),
    ("1 MB chunk extension (facts)", post(CHUNKED, b"1;" + b"x" * 1_000_000 + b"\r\nx\r\n0\r\n\r\n"), BAD),
    ("Host in the trailers (facts)", post(CHUNKED, b"0\r\nHost: b\r\n\r\n"), BAD),
    ("CL in the trailers", post(CHUNKED, b"0\r\nContent-Length: 1\r\n\r\n"), BAD),
    ("TE in the trailers", post(CHUNKED, b"0\r\ntransfer-encoding: chunked\r\n\r\n"), BAD),
    ("Transfer_Encoding in the trailers", post(CHUNKED, b"0\r\ntransfer_encoding: chunked\r\n\r\n"), BAD),
    ("a trailer folded", post(CHUNKED, b"0\r\nX-T: 1\r\n 2\r\n\r\n"), BAD),
    ("a trailer without a colon", post(CHUNKED, b"0\r\nX-T\r\n\r\n"), BAD),
    ("a bare CR in a trailer", post(CHUNKED, b"0\r\nX-T: 1\rx\r\n\r\n"), BAD),
    ("trailers too large", post(CHUNKED, b"0\r\n" + b"X: 1234567\r\n" * 800), Reason.HEADERS_TOO_LARGE),
    ("a trailer too large", post(CHUNKED, b"0\r\nX: " + b"x" * 9_000), Reason.HEADERS_TOO_LARGE),
    # --- sizes
    ("too many fields", get(H + b"X: 1\r\n" * 100), Reason.HEADERS_TOO_LARGE),
    ("too many fields, and no end", post(b"X: 1\r\n" * 101)[:-2], Reason.HEADERS_TOO_LARGE),
    ("fields too large", get(H + b"X-A: 123456789012345678\r\n" * 1_400), Reason.HEADERS_TOO_LARGE),
    ("a field too large", get(H + b"X: " + b"x" * 33_000), Reason.HEADERS_TOO_LARGE),
    ("a name too large", get(H + b"x" * 33_000), Reason.HEADERS_TOO_LARGE),
    ("empty lines without end", b"\r\n" * 20_000, Reason.HEADERS_TOO_LARGE),
    # --- upgrades: RFC 9110 7.8; llhttp skips their bodies (facts)
    ("WebSocket with a body", post(UPGRADE + b"Upgrade: websocket\r\nContent-Length: 2\r\n", b"hi"), BAD),
    ("h2c with a body", post(UPGRADE + b"Upgrade: h2c\r\nContent-Length: 22\r\n", get(b"Host: b\r\n")), BAD),
    ("h2c with chunks", post(UPGRADE + b"Upgrade: h2c\r\n" + CHUNKED, b"0\r\n\r\n"), BAD),
    ("h2c with a body in HTTP/1.0", get(UPGRADE + b"Upgrade: h2c\r\nContent-Length: 1\r\n", b"POST / HTTP/1.0"), BAD),
]  # fmt: skip
