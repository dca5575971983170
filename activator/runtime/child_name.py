"""The names of the objects that Knative creates for a revision: its Services and its Deployment.

Knative shortens a long name with a digest, so code that addresses such an object must do the same.

Sources: knative.dev/pkg kmeta/names.go, ChildName; knative.dev/serving
pkg/reconciler/serverlessservice/resources/names/names.go and pkg/reconciler/revision/resources/names/names.go (v1.23).
"""

from __future__ import annotations

import hashlib
from typing import Final

_NAME_MAX: Final = 63  # characters of a Kubernetes name (RFC 1123 label)
_KEPT_MAX: Final = _NAME_MAX - 32  # characters besides the hexadecimal digits of an MD5


def child_name(parent: str, suffix: str) -> str:
    """Return `parent` + `suffix`, shortened to 63 characters with an MD5 of the long name.

    A suffix of 31 characters or more is shortened as well, and may not be at the end.
    """
    if len(parent) <= _NAME_MAX - len(suffix):
        return parent + suffix
    if len(suffix) < _KEPT_MAX:
        return parent[: _KEPT_MAX - len(suffix)] + _digest(parent) + suffix
    name = parent[:_KEPT_MAX] + _digest(parent + suffix)
    name += suffix[: _NAME_MAX - len(name)]
    while not (name[-1].isascii() and name[-1].isalnum()):  # a name ends in a letter or a digit
        name = name[:-1]
    return name


def private_service(revision: str) -> str:
    """Return the name of the Service whose endpoints are the pods of the revision."""
    return child_name(revision, "-private")


def deployment(revision: str) -> str:
    """Return the name of the Deployment that creates the pods of the revision."""
    return child_name(revision, "-deployment")


def _digest(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
