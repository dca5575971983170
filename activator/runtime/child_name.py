"""The names that Knative gives to what it makes of an object: the Services and the Deployment of a revision.

Knative puts a digest into a name that would be too long, so whoever addresses such an object has to do the same.

Sources: knative.dev/pkg kmeta/names.go, ChildName; knative.dev/serving
pkg/reconciler/serverlessservice/resources/names/names.go and pkg/reconciler/revision/resources/names/names.go (v1.23).
"""

from __future__ import annotations

import hashlib
from typing import Final

_NAME_MAX: Final = 63  # of a Kubernetes object (RFC 1123 label)
_HEAD: Final = _NAME_MAX - 32  # beside the hexadecimal digits of an MD5


def child_name(parent: str, suffix: str) -> str:
    """`parent` + `suffix`, at most 63 characters: what is too long is cut, with the MD5 of the whole in its place.

    A suffix of 31 characters or more is cut as well, and does not stand at the end.
    """
    if len(parent) <= _NAME_MAX - len(suffix):
        return parent + suffix
    if len(suffix) < _HEAD:
        return parent[: _HEAD - len(suffix)] + _digest(parent) + suffix
    made = parent[:_HEAD] + _digest(parent + suffix)
    made += suffix[: _NAME_MAX - len(made)]
    while not (made[-1].isascii() and made[-1].isalnum()):  # a name ends in a letter or a digit
        made = made[:-1]
    return made


def private_service(revision: str) -> str:
    """The Service whose endpoints are the pods of the revision of this name."""
    return child_name(revision, "-private")


def deployment(revision: str) -> str:
    """The Deployment that makes the pods of the revision of this name."""
    return child_name(revision, "-deployment")


def _digest(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
