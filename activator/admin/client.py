"""Asking a running activator over its admin port, for `activator status` and `activator drain`."""

from __future__ import annotations

import urllib.error
import urllib.request

from activator.runtime.errors import StartError

_TIMEOUT_S = 5.0


def ask(admin: str, method: str, path: str) -> bytes:
    """The body of the answer. Raises StartError when there is no answer or the answer is a refusal."""
    url = (admin if "://" in admin else f"http://{admin}").rstrip("/") + path
    request = urllib.request.Request(url, method=method, headers={"Activator-Admin": "1"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        raise StartError(f"{url}: {error.read().decode('utf-8', 'replace').strip()}") from error
    except (OSError, ValueError) as error:
        raise StartError(f"{url}: no activator answers there ({error}); name its admin port with --admin") from error
