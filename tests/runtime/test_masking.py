"""Masks: secrets with telling names, in heads, targets and bodies, whole or cut off."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.config.filter_checks import CAPTURE_BYTES_MAX
from activator.runtime.masking import is_telling, masked_body, masked_head, masked_target

SECRET = "s3cr3t-value"
JSON = b"application/json"

TELLING = (
    "password user_password passwd client_secret token access_token X-Auth-Token apiKey api_key X-Api-Key "
    "Authorization Proxy-Authorization Cookie Set-Cookie sessionid credential sig key X-Amz-Signature private_key jwt "
    "PIN encryption_key openaiKey AccountKey x_sig user_pin passkey csrf SAS accesstoken api_keys refreshTokens "
    "Sec-WebSocket-Protocol WWW-Authenticate apitoken hftoken csrftoken masterkey client_assertion SAMLResponse "
    "code_verifier connection_string mnemonic subscriptionKey"
)
OTHERS = (
    "max_tokens prompt_tokens model monkey content design keyboard author tokenizer passenger opinion asset token_count"
)


@pytest.mark.parametrize("name", TELLING.split())
def test_telling_names(name: str) -> None:
    assert is_telling(name)


@pytest.mark.parametrize("name", [*OTHERS.split(), "key" * 50, ""])
def test_other_names(name: str) -> None:
    assert not is_telling(name)


@given(st.text("aekytokenpsKEY_-. ~\u212a%", max_size=12) | st.sampled_from(TELLING.split()), st.booleans())
def test_a_target_is_masked_by_the_names_that_are_telling(name: str, is_encoded: bool) -> None:
    """Whatever is tested first because it is faster."""
    field = "".join(f"%{byte:02x}" for byte in name.encode()) if is_encoded else quote(name)
    masked = masked_target(f"/v1?a=b&{field}={SECRET}&c=d")
    assert (SECRET in masked) is not is_telling(name)


def test_a_head() -> None:
    head = (
        f"GET /v1/x?a=1&token={SECRET}&b=2\r\nHost: h\r\nAuthorization: Bearer {SECRET}\r\nCookie: sid={SECRET}\r\n"
        f"X-Api-Key:{SECRET}\r\nAccept: */*\r\nReferer: http://me:{SECRET}@h/?a=b&api_key={SECRET}#x\r\n"
        f"Sec-WebSocket-Protocol: realtime, api-key.{SECRET}"
    )
    assert masked_head(head.encode()).decode() == (
        "GET /v1/x?a=1&token=***&b=2\r\nHost: h\r\nAuthorization: Bearer ***\r\nCookie: ***\r\n"
        "X-Api-Key: ***\r\nAccept: */*\r\nReferer: http://***@h/?a=b&api_key=***#x\r\nSec-WebSocket-Protocol: ***"
    )
    location = f"200\r\nLocation: https://{'h' * 150}/cb#state=1#access_token={SECRET}&x=1"
    assert masked_head(location.encode()).endswith(b"#access_token=***&x=1")
    assert (
        masked_head(f'200\r\nX-Config: {{"password": "{SECRET}"}}'.encode()) == b'200\r\nX-Config: {"password": "***"}'
    )
    assert masked_head(b"200\r\nSet-Cookie: a=b; HttpOnly") == b"200\r\nSet-Cookie: ***"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (f"/a?%61pi_key={SECRET}&q=key", "/a?%61pi_key=***&q=key"),
        (f"/a?x=1;token={SECRET}", "/a?x=1;token=***"),
        (f"/a?sig=a,{SECRET}&b=1", "/a?sig=***&b=1"),
        (f"/a?b=1#access_token={SECRET}", "/a?b=1#access_token=***"),
        (f'/a?key="{SECRET}"', "/a?key=***"),
        ("/token/x?", "/token/x?"),
        ("/a?token=&b", "/a?token=&b"),
    ],
)
def test_a_target(target: str, expected: str) -> None:
    assert masked_target(target) == expected


def part(field: str, value: str) -> str:
    return f"--b\r\nContent-Disposition: form-data; {field}\r\nX: {'y' * 300}\r\n\r\n{value}\r\n"


FORM = b"application/x-www-form-urlencoded"
PARTS = b"multipart/form-data; boundary=b"
LF = '--b\nContent-Disposition: form-data; name="pin"\n\n'
TYPED = f'--b\r\nContent-Type: {FORM.decode()}; name="q"\r\nContent-Disposition: form-data; name="a"\r\n\n'
PEM = "-----BEGIN EC PRIVATE KEY-----\r\nLEAK\r\n-----END EC PRIVATE KEY-----"
ARGUMENTS = {"arguments": json.dumps({"password": SECRET, "inner": json.dumps({"n": 1, "token": [SECRET]})}), "z": 1}
MASKED = {"arguments": json.dumps({"password": "***", "inner": json.dumps({"n": 1, "token": "***"})}), "z": 1}


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (JSON, f'{{"password": "{SECRET}", "n": 1}}', '{"password": "***", "n": 1}'),
        (JSON, f'{{"a": {{"api_key" : "{SECRET}\\""}}}}', '{"a": {"api_key" : "***"}}'),
        (JSON, f'{{"password": "{SECRET}', '{"password": "***"'),
        (JSON, f'{{"password": "{SECRET}\\', '{"password": "***"'),
        (JSON, '{"pin": 1234, "max_tokens": 7}', '{"pin": "***", "max_tokens": 7}'),
        (JSON, f'{{"api_keys": ["{SECRET}", {{"a": "]"}}], "n": 1}}', '{"api_keys": "***", "n": 1}'),
        (JSON, f'{{"password": {{"value": "{SECRET}"', '{"password": "***"'),
        (JSON, f'{{"t\\u006fken":{" " * 50}"{SECRET}"}}', f'{{"t\\u006fken":{" " * 50}"***"}}'),
        (JSON, json.dumps(ARGUMENTS), json.dumps(MASKED)),
        (JSON, '{"a": "he said \\"hi\\"", "b": 1}', '{"a": "he said \\"hi\\"", "b": 1}'),
        (b"text/event-stream", f'data: {{"token": "{SECRET}"}}\n\n', 'data: {"token": "***"}\n\n'),
        (b"text/event-stream", f'{{"x": "cut\n{{"token": "{SECRET}"}}', '{"x": "cut\n{"token": "***"}'),
        (FORM, f"password={SECRET}&user=a&x", "password=***&user=a&x"),
        (FORM, f'user=a b&password=a,{SECRET} "x;y', "user=a b&password=***"),
        (JSON, f'{{"a":"{{\\u0022password\\u0022:\\u0022{SECRET}\\u0022}}"}}', '{"a":"{\\"password\\":\\"***\\"}"}'),
        (JSON, '{"token": {"id": 5, "text": "Hi", "key": "x"}}', '{"token": {"id": 5, "text": "Hi", "key": "***"}}'),
        (PARTS, part('name = "password"', SECRET), part('name = "password"', "***")),
        (PARTS, part("name*=utf-8''password", SECRET), part("name*=utf-8''password", "***")),
        (PARTS, LF + SECRET + "\n", LF + "***"),
        (PARTS, TYPED + f"key={SECRET}", TYPED + "key=***"),
        (b'multipart/form-data; boundary="b"', part("name=pin", SECRET), part("name=pin", "***")),
        (PARTS, part('name="private_key"', PEM) + "--b--", part('name="private_key"', "***") + "--b--"),
        (PARTS, part('name="a"', f'{{"key": "{SECRET}"}}'), part('name="a"', '{"key": "***"}')),
        (b"text/plain", "password is not a member", "password is not a member"),
    ],
)  # fmt: skip
def test_a_body(kind: bytes, body: str, expected: str) -> None:
    assert masked_body(body.encode(), kind).decode() == expected


@given(st.text(alphabet='abc"\\{}[]:, \u00e9', min_size=1), st.integers(0, 200), st.booleans())
def test_no_part_of_a_secret_is_left_however_the_body_is_cut(secret: str, cut: int, is_nested: bool) -> None:
    value = {"x": [f"<<{secret}>>"]} if is_nested else f"<<{secret}>>"
    whole = {"model": "m", "password": value, "n": [1, {"x": "y"}]}
    body = json.dumps(whole).encode()
    found = masked_body(body[:cut], JSON)
    shown = {"model": "m", "password": "***", "n": [1, {"x": "y"}]}
    assert json.dumps(shown).encode().startswith(found) or found == b'{"model": "m", "password": "***"'
    assert json.loads(masked_body(body, JSON)) == shown
    within = json.dumps({"arguments": json.dumps(whole)}).encode()
    assert json.loads(json.loads(masked_body(within, JSON))["arguments"]) == shown


@given(st.binary(max_size=2000))
def test_any_bytes(data: bytes) -> None:
    for kind in (JSON, b"multipart/x; boundary=a", b"application/x-www-form-urlencoded", b""):
        masked_body(data, kind)
    masked_head(data)
    masked_target(data.decode("latin-1"))


PIECES = (
    b'"', b'"a":', b'name="', b"\\", b'"\\', b'\\"', b'"\n', b"=", b'"key":"', b'"key":1,', b'a" : "b', b"\r\n",
    b"a=b&", b'name="a"' * 32 + b"\r\n", b"--b\r\n", b'--b\r\nA; name="key"\r\n\r\n', b"[", b'{"key":',
    b'\\"key\\":\\"', b"&key=1", b"://a", b'"\\""', b'"\\u002',
)  # fmt: skip
KINDS = (JSON, b"multipart/x; boundary=b", b"application/x-www-form-urlencoded")


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("start", [b"", b'"', b'{"key":"', b'{"a":"'])
def test_hostile_bodies_take_linear_time(piece: bytes, start: bytes) -> None:
    """Four times the size takes some four times the time; quadratic time would be sixteen times."""

    def took_s(size: int) -> float:
        body = start + piece * (size // len(piece))
        began_s = time.process_time()
        for kind in KINDS:
            masked_body(body, kind)
        masked_head(body)
        return time.process_time() - began_s

    few = min(took_s(CAPTURE_BYTES_MAX // 16) for _ in range(3))
    assert took_s(CAPTURE_BYTES_MAX // 4) < 10.0 * few + 0.05
