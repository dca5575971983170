"""The live page, `GET /` for browsers: one document without external resources.

Rules
  1. Data are inserted as text (`textContent`), never as markup, and the Content-Security-Policy allows only the page's
     own script and style: neither a name nor the output of a program can inject content into the page.
  2. The page requests `/debug/overview` while it is visible, the details of the open revision, and the history of the
     visible rows; it shows an error if there is no response.
  3. Elements that have not changed are not written, so that selected text and the focus survive a refresh.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent
_STYLE: Final = (_FOLDER / "page.css").read_text("utf-8")
_SCRIPT: Final = "".join((_FOLDER / name).read_text("utf-8") for name in ("charts.js", "page.js"))
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
