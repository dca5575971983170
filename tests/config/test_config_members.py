"""The key `members`."""

from __future__ import annotations

import pytest

from activator.config.file import parse
from activator.runtime.errors import ConfigError

REST = "revisions: [{name: a, hosts: [a], pods: [127.0.0.1:1]}]\n"
PEERS = "peers: [10.0.0.1:8015, 10.0.0.2:8015]"


def problems(members: str, rest: str = REST) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(f"members: {members}\n{rest}", "f", {})
    return caught.value.problems


def test_what_is_fine() -> None:
    for members in (
        f"{{listen: '0.0.0.0:8015', {PEERS}, key_file: k}}",
        f"{{listen: '0.0.0.0:8016', address: '10.0.0.2:8015', {PEERS}, key_file: k, on_silence: prompt, release: 3s}}",
        "{listen: '127.0.0.1:8015', peers: [127.0.0.1:8015], key_file: k, on_partition: prompt, silence: 300ms}",
    ):
        parse(f"members: {members}\n{REST}", "f", {})
    assert parse(REST, "f", {}).members.listen == ""


@pytest.mark.parametrize(
    ("members", "part"),
    [
        (f"{{{PEERS}, key_file: k}}", "`members` requires `listen`, such as 0.0.0.0:8015"),
        (f"{{listen: '0.0.0.0:8015', {PEERS}}}", "members.key_file: members authenticate each other with a key"),
        ("{listen: '0.0.0.0:8015', key_file: k}", "members.peers: list all members, this one among them"),
        (f"{{listen: '0.0.0.0:9', {PEERS}, key_file: k}}", "none of the peers has the port of `listen` (9)"),
        (
            f"{{listen: '0.0.0.0:8015', address: '10.0.0.9:8015', {PEERS}, key_file: k}}",
            "members.address: 10.0.0.9:8015 is not in `peers`",
        ),
        (
            "{listen: '0.0.0.0:8015', peers: [10.0.0.1:8015, 10.0.0.1:8015], key_file: k}",
            "members.peers: an address is in the list twice",
        ),
        ("{listen: nowhere, key_file: k, peers: ['10.0.0.1:8015']}", "members.listen"),
        ("{listen: '0.0.0.0:8015', peers: [a], key_file: k}", "members.peers[0]"),
        (f"{{listen: '0.0.0.0:8015', {PEERS}, key_file: k, on_silence: maybe}}", "members.on_silence"),
        (f"{{listen: '0.0.0.0:8015', {PEERS}, key_file: k, on_partition: 1}}", "members.on_partition"),
        (f"{{listen: '0.0.0.0:8015', {PEERS}, key_file: k, silence: 0s}}", "members.silence"),
        (f"{{listen: '0.0.0.0:8015', {PEERS}, key_file: k, peer: x}}", "peer"),
    ],
)
def test_what_is_refused(members: str, part: str) -> None:
    (problem,) = problems(members)
    assert part in problem
    assert problem.startswith("f:1:")


def test_more_members_than_a_group_has() -> None:
    peers = ", ".join(f"10.0.{index // 250}.{index % 250}:8015" for index in range(257))
    (problem,) = problems(f"{{listen: '0.0.0.0:8015', peers: [{peers}], key_file: k}}")
    assert "members.peers: at most 256 members" in problem or "at most 256 members" in problem


def test_in_a_cluster() -> None:
    members = "{listen: '0.0.0.0:8015', key_file: k}"
    parse(f"members: {members}\nkubernetes: {{mode: knative, sharing: exact}}\n", "f", {})
    (problem,) = problems("{}", "kubernetes: {mode: knative, sharing: exact}\n")
    assert "`sharing: exact` requires `members`" in problem
    (problem,) = problems(members, "kubernetes: {mode: knative, sharing: knative}\n")
    assert "excludes `members`: use `sharing: exact`" in problem
