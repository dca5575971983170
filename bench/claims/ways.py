"""The five ways of claiming, by name: the product uses one (Leases), the others are measured for comparison."""

from __future__ import annotations

from typing import Final

from activator.members.claims.leases import LeaseStarter
from activator.members.claims.starter import Starter
from bench.claims.apply_by_index import ApplyByIndexStarter
from bench.claims.apply_by_member import ApplyByMemberStarter
from bench.claims.json_patch import JsonPatchStarter
from bench.claims.update import UpdateStarter

DEFAULT_WAY: Final = "leases"
WAYS: Final[dict[str, type[Starter]]] = {
    DEFAULT_WAY: LeaseStarter,
    "update": UpdateStarter,
    "apply-by-member": ApplyByMemberStarter,
    "apply-by-index": ApplyByIndexStarter,
    "json-patch": JsonPatchStarter,
}
