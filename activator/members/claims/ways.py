"""The five ways of claiming, by name: one is used (Leases), the others are there to be measured beside it."""

from __future__ import annotations

from typing import Final

from activator.members.claims.apply_by_index import ApplyByIndexStarter
from activator.members.claims.apply_by_member import ApplyByMemberStarter
from activator.members.claims.json_patch import JsonPatchStarter
from activator.members.claims.leases import LeaseStarter
from activator.members.claims.starter import Starter
from activator.members.claims.update import UpdateStarter

DEFAULT_WAY: Final = "leases"
WAYS: Final[dict[str, type[Starter]]] = {
    DEFAULT_WAY: LeaseStarter,
    "update": UpdateStarter,
    "apply-by-member": ApplyByMemberStarter,
    "apply-by-index": ApplyByIndexStarter,
    "json-patch": JsonPatchStarter,
}
