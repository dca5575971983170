"""Checks of `depends_on`: the named revisions exist and have programs, and no program waits for itself.

Part of `checks.py`, with its rules.
"""

from __future__ import annotations

from typing import Final

from activator.config.edge_checks import program_key
from activator.config.key_path import KeyPath
from activator.config.model.file import Config
from activator.config.specs import key_of

DEPENDENCIES_MAX: Final = 16  # for one revision


def check_dependencies(root: KeyPath, config: Config) -> None:
    """Check the dependencies of all revisions of the file."""
    known = {f"{one.namespace}/{one.name}": (at, one) for at, one in root["revisions"].each(config.revisions)}
    programs = {key: program_key(at, one) for key, (at, one) in known.items()}
    needs: dict[str, list[str]] = {}
    for key, (at, revision) in known.items():
        names = revision.depends_on
        if names and not programs[key]:
            at["depends_on"].advise("only a revision with `process` or `container` waits for others")
            continue
        if len(names) > DEPENDENCIES_MAX:
            at["depends_on"].found(f"at most {DEPENDENCIES_MAX} names", str(len(names)))
        for entry_at, name in at["depends_on"].each(names):
            target = key_of(name)
            if target not in known:
                entry_at.advise(f'there is no revision "{name}" in this file', beside=(root["revisions"],))
            elif not programs[target]:
                entry_at.advise(f'"{name}" has no `process` or `container` that could be started')
            else:
                needs.setdefault(key, []).append(target)
                loop = _loop(key, target, needs)
                if loop:
                    needs[key].pop()
                    entry_at.advise(f"dependency loop: {' -> '.join(one.removeprefix('default/') for one in loop)}")
    _check_groups(root, config, needs)


def _loop(key: str, target: str, needs: dict[str, list[str]]) -> list[str]:
    """Return the path from `key` over `target` back to `key`; empty if there is none."""
    paths, seen = [[key, target]], {target}
    for path in paths:  # grows during the iteration
        if path[-1] == key:
            return path
        for need in needs.get(path[-1], []):
            if need not in seen:
                seen.add(need)
                paths.append([*path, need])
    return []


def _check_groups(root: KeyPath, config: Config, needs: dict[str, list[str]]) -> None:
    """Report members of groups: their turns decide when they are started and stopped."""
    # Each named revision, and one of those that depend on it.
    users = {target: key.removeprefix("default/") for key, targets in needs.items() for target in targets}
    for at, group in root["groups"].each(config.groups):
        for entry_at, name in at["members"].each(group.members):
            key = key_of(name)
            if key in needs:
                entry_at.advise(
                    f'"{name}" has `depends_on`, and a member of a group is started at its turn: use one of the two'
                )
            elif key in users:
                entry_at.advise(
                    f'"{users[key]}" depends on "{name}", and a member of a group may be stopped: use one of the two'
                )
