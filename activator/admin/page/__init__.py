"""The live page, `GET /` for browsers: one document without anything from elsewhere.

Rules
  1. What is shown gets in as text (`textContent`), never as markup, and the policy that the page is sent with allows
     only its own script and style: neither a name nor the output of a program can become part of the page.
  2. It asks for `/debug/overview` while it is visible, for the details of the revision that is open, and for the curves
     of the rows that are in view; it says so when there is no answer.
  3. What has not changed is not written, so that selected text and the focus survive a refresh.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent
_STYLE: Final = (_FOLDER / "page.css").read_text("utf-8")
_SCRIPT: Final = (_FOLDER / "page.js").read_text("utf-8")
_BODY: Final = (_FOLDER / "page.html").read_text("utf-8")

PAGE: Final = _BODY.replace("/*STYLE*/", _STYLE).replace("/*SCRIPT*/", _SCRIPT)


def _hash_of(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_hash_of(_SCRIPT)}; style-src {_hash_of(_STYLE)}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
