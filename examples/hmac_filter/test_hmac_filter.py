"""The contract that every filter keeps, and what this one promises beside it."""

from __future__ import annotations

import hashlib
import hmac
from typing import ClassVar

import pytest

from activator.testing import FilterContract

BODY = b'{"action": "opened"}'
SIGNATURE = "sha256=" + hmac.new(b"secret", BODY, hashlib.sha256).hexdigest()


class TestHmacFilter(FilterContract):
    filter_path = "hmac_filter:HmacFilter"
    options: ClassVar = {"secret": "secret"}
    request_fields: ClassVar = {"X-Hub-Signature-256": SIGNATURE}
    body = BODY

    @pytest.mark.parametrize(
        ("fields", "body", "status"),
        [
            (SIGNATURE, BODY + b" ", 403),
            (SIGNATURE.upper(), BODY, 403),
            ("", BODY, 403),
        ],
    )
    def test_what_is_signed_wrongly_is_refused(self, fields: str, body: bytes, status: int) -> None:
        request = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n%b\r\n%b" % (
            len(body),
            f"X-Hub-Signature-256: {fields}\r\n".encode(),
            body,
        )
        with self.running() as running:
            assert running.send(request)[0] == status
