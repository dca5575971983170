"""The start of a replica as a member: it reads the key, finds the others, and binds its port.

The client of a cluster is imported only where it is used, because it takes 50 MB.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from activator.config.model.members import Members
from activator.members.data_planes import GroupDataPlanes
from activator.members.directory import ForbiddenError, MemberDirectory, StaticDirectory
from activator.members.key import read_key, stretched
from activator.members.membership import Membership
from activator.runtime.clock import Now
from activator.runtime.errors import StartError
from activator.runtime.extras import need
from activator.runtime.tasks import TaskGroupOwner
from lb.rng import Rng

log = logging.getLogger("activator.members")


async def join(
    config: Members,
    planes: GroupDataPlanes,
    displaced: Callable[[], None],
    now: Now,
    rng: Rng,
    tasks: TaskGroupOwner,
    may_be_alone: bool = True,
) -> Membership | None:
    """Join the group, and return the membership; None if the program may not use Leases.

    Without a membership, the replica continues without coordination with the others. `may_be_alone` is false where
    replicas write into the cluster: each of them would write, so the missing right is a StartError.

    `displaced` is called if another replica gets this one's seat, or if the others declare this one ended. Raises
    StartError.
    """
    key = stretched(read_key(config.key_file), config.group)
    roster, address = _roster(config, displaced, now, rng, tasks)
    try:
        seat = await roster.join(address)
    except ForbiddenError as error:
        if not may_be_alone:
            raise StartError(f"{error}; without them several replicas would write for the same objects") from error
        log.warning("%s; this replica continues alone, and limits hold for each replica by itself", error)
        return None
    membership = Membership(config, key, roster, address, seat, planes, tasks, displaced, now, rng)
    try:
        membership.listen()
    except StartError:
        await roster.leave()
        raise
    planes.join(membership)
    return membership


def _roster(
    config: Members, displaced: Callable[[], None], now: Now, rng: Rng, tasks: TaskGroupOwner
) -> tuple[MemberDirectory, str]:
    """Return the roster, and the address of this replica for the others."""
    if config.peers:
        fixed = StaticDirectory(config.peers, config.listen, config.address)
        return fixed, fixed.own_address
    need("kubernetes", "kubernetes mode")
    from activator.members.kubernetes_directory import KubernetesDirectory, PodIdentity

    pod = PodIdentity(os.environ)
    roster = KubernetesDirectory(pod, config.group, os.environ, displaced, now, rng, tasks)
    return roster, config.address or pod.address(config.listen)
