"""Masks for secrets in captured messages: the values of fields, parameters and members with telling names.

Not recognized: a secret without such a name, in free text, in XML, in invalid JSON, or in a content coding. Masked
needlessly: the `token` of each entry of `logprobs`, which is a text of the model.
"""

from __future__ import annotations

import json
import re
from typing import Final
from urllib.parse import unquote_plus, unquote_to_bytes

MASK: Final = "***"
NAME_CHARACTERS_MAX: Final = 128  # a longer name is not read
STRING_DEPTH_MAX: Final = 3  # JSON in a string of JSON in a string

_MASK: Final = MASK.encode()
# Words of a name, and parts of a name without its separators.
_WORDS: Final = frozenset(
    ("auth", "csrf", "jwt", "key", "keys", "otp", "pass", "passkey", "passkeys", "pin", "pw", "pwd", "sas", "session")
) | {"sid", "sig", "token", "xsrf"}
_NOT_A_KEY: Final = frozenset(("monkey", "donkey", "turkey", "whiskey", "hockey"))
# Names of model servers' parameters.
_HARMLESS: Final = frozenset(
    ("prompt_cache_key", "stop_token_ids", "token_count", "token_ids", "token_id", "eos_token")
)
_PARTS: Final = re.compile(
    "assertion|verifier|samlresponse|connectionstring|mnemonic|password|passwd|passphrase|passcode|secret|apikey|accesskey|privatekey|accesstoken|refreshtoken|idtoken|authtoken|"
    "sessionid|credential|signature|cookie|authorization|authenticat|bearer|websocketprotocol"
)
# A text whose letters have none of these has no telling name.
_IN_TELLING: Final = _WORDS | {*_PARTS.pattern.split("|"), "token", "key"}
_SHORTEST: Final = sorted(one for one in _IN_TELLING if not any(other in one for other in _IN_TELLING - {one}))
_ANY_TELLING: Final = re.compile("|".join(_SHORTEST).encode())
_LOWER_CASE: Final = bytes(range(256)).lower()
_NO_LETTERS: Final = bytes(one for one in range(256) if not chr(one).isascii() or not chr(one).isalpha())
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NO_LETTER: Final = re.compile(r"[^A-Za-z]+")
_SCHEME: Final = re.compile(rb"(?:Basic|Bearer|Digest|Negotiate|Token) ", re.IGNORECASE)
# A parameter of a target; of a URL or a list in a header field; of a form.
_TARGET_SEGMENT: Final = re.compile(rb"[^?&#\s]+")
_NAME: Final = re.compile(rb"(?:\A|;)([^=;]{1,128})=(?!\Z)")
_FIELD_PARAMETER: Final = re.compile(rb"([?&;,#\s]|\A)([^=&;?,#\s\"]{1,128})=(\"[^\"]*\"?|[^&;,#\s]+)")
_FORM_PARAMETER: Final = re.compile(rb"(&|\A)([^=&]{1,128})=([^&]+)")
_USER: Final = re.compile(rb"://[^/@\s]{1,512}@")
_JSON_TOKEN: Final = re.compile(rb'"(?:[^"\\\n]++|\\[^\n])*+(?:"|\\?(?=\n|\Z))|[{}\[\]:,]|[^"{}\[\]:,\s]++')
_WHOLE_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_CUT_ESCAPE: Final = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_PART_HEAD: Final = re.compile(rb"(?:[^\n]{0,1024}\n){1,16}?\r?\n")
_PART_NAME: Final = re.compile(
    rb'^content-disposition\s{0,4}:[^\r\n]{0,256}?[;\s]name\*?\s{0,4}=\s{0,4}(?:"([^"\r\n]{0,128})|([^;\s"]{1,128}))',
    re.IGNORECASE | re.MULTILINE,
)
_PART_TYPE: Final = re.compile(rb"^content-type\s{0,4}:([^\r\n]{0,256})", re.IGNORECASE | re.MULTILINE)
_BOUNDARY: Final = re.compile(rb'boundary="?([^";,\s]{1,128})', re.IGNORECASE)
_FORM: Final = b"application/x-www-form-urlencoded"
_BRACKETS: Final = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


def is_telling(name: str) -> bool:
    """Return True if a value of this name may be a secret."""
    if len(name) > NAME_CHARACTERS_MAX or name in _HARMLESS:
        return False
    if _PARTS.search(_NO_LETTER.sub("", name).lower()) is not None:
        return True
    words = [word.lower() for word in _WORD.findall(name)]
    return any(word in _WORDS or (word.endswith(("token", "key")) and word not in _NOT_A_KEY) for word in words)


def masked_target(target: str) -> str:
    """Return path and query with the values of telling parameters masked."""
    text = target.encode("utf-8", "surrogateescape")
    if b"@" in text:
        text = _USER.sub(b"://" + _MASK + b"@", text)
    elif not _may_be_telling(text):
        return target
    return _TARGET_SEGMENT.sub(_masked_segment, text).decode("utf-8", "surrogateescape")


def _may_be_telling(text: bytes) -> bool:
    """Return False if nothing in a target can be a telling name; this takes 1 us."""
    plain = unquote_to_bytes(text) if b"%" in text else text
    return _ANY_TELLING.search(plain.translate(_LOWER_CASE, _NO_LETTERS)) is not None


def masked_head(head: bytes) -> bytes:
    """Return a head, whose lines end in CRLF, with the values of telling fields and parameters masked."""
    first, *lines = head.split(b"\r\n")
    return b"\r\n".join([_TARGET_SEGMENT.sub(_masked_segment, first), *[_masked_line(line) for line in lines]])


def masked_body(body: bytes, content_type: bytes) -> bytes:
    """Return the beginning of a body with the values of telling members or form fields masked."""
    kind = content_type.partition(b";")[0].strip().lower()
    if kind == _FORM:
        return _masked_parameters(_FORM_PARAMETER, body)
    if kind.startswith(b"multipart/"):
        boundary = _BOUNDARY.search(content_type)
        if boundary is not None:
            mark = b"--" + boundary[1]
            return mark.join([_masked_part(part) for part in body.split(mark)])
    return _masked_json(body, 0)


def _masked_part(part: bytes) -> bytes:
    """Return a part of a multipart body, with its head, in which secrets are masked."""
    found = _PART_HEAD.match(part)
    if found is None:
        return part
    head, value = found[0], part[found.end() :]
    name, kind = _PART_NAME.search(head), _PART_TYPE.search(head)
    if name is not None and _is_secret(unquote_to_bytes(name[1] or name[2])):
        return head + _MASK + (b"\r\n" if value.endswith(b"\r\n") else b"")
    inner = b"" if kind is None else kind[1].strip()
    return head + (value if inner.startswith(b"multipart/") else masked_body(value, inner))


def _masked_json(text: bytes, depth: int) -> bytes:
    """Return JSON, or a text with JSON in it, with the values of telling members masked, whole objects included."""
    pieces: list[bytes] = []
    copied = 0  # the text before this position has been copied or masked
    name = b""  # the last string
    is_value = False  # a colon has followed a telling name
    is_token = False  # the name is `token`
    hidden = 0  # depth in an object or array that is masked
    for found in _JSON_TOKEN.finditer(text):
        token = found[0]
        if hidden > 0:
            hidden += _BRACKETS.get(token, 0)
            if hidden == 0:
                copied = found.end()
        elif is_value:
            is_value = False
            if token == b"{" and is_token:  # an event of a model server: the token's text and number
                continue
            pieces += [text[copied : found.start()], b'"', _MASK, b'"']
            copied = found.end()
            hidden = max(_BRACKETS.get(token, 0), 0)
        elif token == b":":
            is_value = name != b"" and _is_secret(_name_in(name))
            is_token = name == b'"token"'
            name = b""
        elif token.startswith(b'"'):
            name = token
            if b'\\"' in token or b"\\u0022" in token:
                masked = _masked_string(token, depth + 1) if depth < STRING_DEPTH_MAX else b'"' + _MASK + b'"'
                pieces += [text[copied : found.start()], masked]
                copied = found.end()
        else:
            name = b""
    pieces.append(b"" if hidden > 0 else text[copied:])
    return b"".join(pieces)


def _masked_string(token: bytes, depth: int) -> bytes:
    """Return a string, with its quotation marks, in which JSON is masked; the end of the text may cut it off."""
    whole = _WHOLE_STRING.fullmatch(token) is not None
    try:
        plain = json.loads(token if whole else _CUT_ESCAPE.sub(b"", token) + b'"').encode("utf-8", "surrogatepass")
    except ValueError:
        return b'"' + _MASK + b'"'  # its content cannot be determined
    masked = _masked_json(plain, depth)
    if masked == plain:
        return token
    string = json.dumps(masked.decode("utf-8", "surrogatepass")).encode()
    return string if whole else string[:-1]


def _name_in(token: bytes) -> bytes:
    """Return the content of a JSON string, the name of a member."""
    if b"\\" in token:
        try:
            return str(json.loads(token)).encode("utf-8", "replace")
        except ValueError:
            pass
    return token.strip(b'"')


def _masked_line(line: bytes) -> bytes:
    """Return a header field line with its value masked if the name is telling, otherwise with its secrets masked."""
    name, colon, value = line.partition(b":")
    if not colon or not _is_secret(name):
        value = _USER.sub(b"://" + _MASK + b"@", _masked_parameters(_FIELD_PARAMETER, value))
        return name + colon + (_masked_json(value, 0) if b"{" in value else value)
    scheme = _SCHEME.match(value.strip())
    return b"%b: %b%b" % (name, b"" if scheme is None else scheme[0], _MASK)


def _masked_parameters(pattern: re.Pattern[bytes], text: bytes) -> bytes:
    """Return a text in which the values of telling parameters (`name=value`) are masked."""
    return pattern.sub(_masked_parameter, text)


def _masked_segment(found: re.Match[bytes]) -> bytes:
    """Return a part of a target in which secrets are masked; `;` may separate parameters, or be a part of a value."""
    text = found[0]
    for name in _NAME.finditer(text):
        if _may_be_telling(name[1]) and is_telling(unquote_plus(name[1].decode("latin-1"))):
            return text[: name.end()] + _MASK
    return text


def _masked_parameter(found: re.Match[bytes]) -> bytes:
    """Return a parameter with its separator, and its value masked if its name is telling."""
    name = unquote_plus(found[2].decode("latin-1"))
    return b"%b%b=%b" % (found[1], found[2], _MASK) if is_telling(name) else found[0]


def _is_secret(name: bytes) -> bool:
    return is_telling(name.decode("utf-8", "replace"))
