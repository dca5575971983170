"""What types cannot say of groups, of what revisions need, of GPUs, and of sleep; and what is made of a file."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from activator.config.file import parse
from activator.control_plane.groups.resolve import resolve_groups
from activator.control_plane.groups.rule import GroupRule, MemberRule
from activator.control_plane.scaling.rule import process_rule
from activator.runtime.errors import ConfigError
from activator.runtime.units import GIB

NEEDS = "needs: {mem: 10GiB}"
SLEEP = "http_post: /s, wake: /w"


def revision(name: str, process: str = "", more: str = NEEDS) -> str:
    return f"{{name: {name}, hosts: [{name}], process: {{command: [x], {process}}}, {more}}}"


def file(*revisions: str, group: str = "members: [a], budget: {mem: 24GiB}", top: str = "") -> str:
    return f"revisions: [{', '.join(revisions)}]\ngroups: [{{name: g, {group}}}]\n{top}"


A, B = revision("a"), revision("b")
ALONE = "members: [a], budget: {mem: 24GiB}"
BOTH = "members: [a, b], budget: {mem: 24GiB}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (file(A, group="members: [c], budget: {mem: 1GiB}"), 'groups[0].members[0]: there is no revision "c": name'),
        (file(A, group="members: [], budget: {mem: 1GiB}"), "groups[0].members: found an empty list"),
        (file(A, group="members: [a, a], budget: {mem: 24GiB}"), '"a" is a member of groups[0] already'),
        (
            file(A, "{name: c, hosts: [c], pods: ['h:1']}", group="members: [a, c], budget: {mem: 24GiB}"),
            '"c" has no `process` or `container`: only programs of this machine can be loaded',
        ),
        (
            f"revisions: [{A}]\ngroups: [{{name: g, {ALONE}}}, {{name: h, members: [a], exclusive: true}}]",
            'a:2: groups[1].members[0]: "a" is a member of groups[0] already: name it in one group',
        ),
        (
            f"revisions: [{A}, {B}]\ngroups: [{{name: g, {ALONE}}}, {{name: g, members: [b], budget: {{mem: 24GiB}}}}]",
            'groups[1].name: "g" is the name of groups[0] already',
        ),
        (f"revisions: [{A}]\ngroups: [{{name: gpus, {BOTH}}}]", '"gpus" is the group of the revisions with'),
        (f"revisions: [{A}]\ngroups: [{{name: 'a b', {BOTH}}}]", 'groups[0].name: found "a b", expected letters'),
        (file(A, group="members: [a]"), "groups[0]: set `budget`, how much there is of what, or `exclusive: true`"),
        (file(A, group="members: [a], budget: {}"), "groups[0].budget: found none, expected at least one resource"),
        (file(A, group="members: [a], budget: {mem: 0}"), "groups[0].budget.mem: found"),
        (file(A, group="members: [a], budget: {Mem-x: 1}"), 'groups[0].budget: found "Mem-x", expected names'),
        (
            file(A, group="members: [a], budget: {mem: 5GiB}"),
            'groups[0].budget.mem: "a" needs 10GiB, more than the 5GiB that',
        ),
        (file(A, group="members: [a], budget: {other: 5GiB}"), "revisions[0].needs.mem: groups[0] has no budget of it"),
        (file(revision("a", more="")), "revisions[0]: set `needs`: what one of its programs takes of the budget"),
        (f"revisions: [{A}]", "revisions[0].needs: `needs` has no effect without a group"),
        (
            file(A, group="members: [a], budget: {mem: 24GiB}, exclusive: true"),
            "groups[0].budget: set `budget` or `exclusive`, not both",
        ),
        (file(A, group="members: [a], exclusive: true"), "`needs` has no effect in groups[0], which is exclusive"),
        (
            file(revision("a", "min_scale: 1", ""), revision("b", "", ""), group="members: [a, b], exclusive: true"),
            '"a" is always loaded (`min_scale`, `pinned`), so the other members never could be',
        ),
        (
            file(revision("a", "min_scale: 2, max_scale: 2"), B, group=BOTH),
            'groups[0].budget.mem: "b" could never be loaded: it needs 10GiB, and what is always loaded',
        ),
        (
            file(revision("a", "min_scale: 3, max_scale: 3"), group="members: [a], budget: {mem: 24GiB}"),
            "what is always loaded (`min_scale`, `pinned`) needs 30GiB, more than 24GiB",
        ),
        (
            file(revision("a", "pinned: true", "needs: {mem: 20GiB}"), B, group=BOTH),
            '"b" could never be loaded',
        ),
        (file(A, group=f"{BOTH[:12]}], budget: {{mem: 24GiB}}, discipline: lifo"), "groups[0].discipline: found"),
        (
            file(A, group="members: [a], budget: {mem: 24GiB}, discipline: fifo, overtaken_at_most: 1s"),
            "`overtaken_at_most` has no effect with `discipline: fifo`",
        ),
        # GPUs
        (file(revision("a", more="needs: {mem: 1GiB, gpus: 1}")), "GPUs are counted by `process.gpus`"),
        (file(revision("a", "gpus: 1"), top="gpus: [0]"), "process.gpus: groups[0] has no budget of GPUs"),
        (
            file(revision("a", ""), group="members: [a], budget: {mem: 24GiB}, measured: true"),
            "groups[0].measured: `measured` has no effect without a budget of `memory` or `gpu_memory`: name it so",
        ),
        (f"revisions: [{revision('a', 'gpus: 1', '')}]", "list the GPUs of this machine as `gpus: [0, 1]`"),
        (f"gpus: [0]\nrevisions: [{revision('a', 'gpus: 2', '')}]", "it needs 2 GPUs, and 1 are listed"),
        (f"gpus: [0, 0]\nrevisions: [{revision('a', 'gpus: 1', '')}]", 'gpus[1]: "0" is in the list already'),
        (
            file(revision("a", "gpus: 1"), group="members: [a], budget: {mem: 24GiB, gpus: 2}", top="gpus: [0]"),
            "groups[0].budget.gpus: the groups share 2 GPUs, and `gpus` of the file lists 1",
        ),
        (
            file(revision("a", "gpus: 1", ""), group="members: [a], exclusive: true", top="gpus: [0]"),
            "`exclusive` says nothing of GPUs: set `budget: {gpus: N}`",
        ),
        # sleep
        (file(revision("a", "sleep: {}")), "process.sleep: found none, expected one of `http_post`, `command` and"),
        (
            file(revision("a", "sleep: {http_post: /s, signal: SIGSTOP}")),
            "found `http_post` and `signal`, expected one",
        ),
        (file(revision("a", "sleep: {http_post: /s}")), "process.sleep: `wake` is required: the path that gets a POST"),
        (file(revision("a", "sleep: {http_post: s, wake: /w}")), 'http_post: found "s", expected a path'),
        (file(revision("a", "sleep: {http_post: /s, wake: w}")), 'sleep.wake: found "w", expected a path'),
        (file(revision("a", "sleep: {signal: SIGTERM}")), 'sleep.signal: found "SIGTERM", expected SIGSTOP'),
        (file(revision("a", "sleep: {signal: SIGSTOP, wake: /w}")), "`wake` has no effect with `signal`"),
        (file(revision("a", f"sleep: {{{SLEEP}, timeout: 0}}")), "sleep.timeout: found"),
        (file(revision("a", f"sleep: {{{SLEEP}, needs: {{disk: 1GiB}}}}")), "it needs none of `disk` when it runs"),
        (
            file(revision("a", f"sleep: {{{SLEEP}, needs: {{mem: 11GiB}}}}")),
            "sleep.needs.mem: it needs 10GiB when",
        ),
    ],
)
def test_a_mistake_is_one_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "a", {})
    assert any(problem in one for one in caught.value.problems), caught.value.problems
    assert all("\n" not in one for one in caught.value.problems)


def unbounded(rule: GroupRule) -> dict[str, MemberRule]:
    """Return the members without `most`, whose default depends on the processors of this machine."""
    return {key: msgspec.structs.replace(member, most=0) for key, member in rule.members.items()}


def test_a_group_is_resolved() -> None:
    text = file(
        revision("a", "gpus: 1, max_scale: 1, sleep: {http_post: /s, wake: /w, needs: {mem: 2GiB}}"),
        revision("b", "gpus: 1, min_scale: 1, max_scale: 3, sleep: {signal: SIGSTOP}", "needs: {mem: 4GiB}"),
        group="members: [a, default/b], budget: {mem: 24GiB, gpus: 2}, discipline: fifo, grace: 5s",
        top="gpus: [0, 1]",
    )
    (rule,) = resolve_groups(parse(text, "a", {}))
    assert (rule.name, rule.resources, rule.budget, rule.discipline) == ("g", ("mem", "gpus"), (24 * GIB, 2), "fifo")
    assert rule.members == {
        "default/a": MemberRule((10 * GIB, 1), (2 * GIB, 1), most=1),
        "default/b": MemberRule((4 * GIB, 1), (4 * GIB, 1), 1, most=3),
    }


def test_revisions_with_gpus_share_those_that_no_group_has() -> None:
    text = file(
        revision("a", "gpus: 1"),
        revision("b", "gpus: 2", ""),
        revision("c", "gpus: 1, pinned: true", ""),
        revision("d", "", ""),
        group="members: [a], budget: {mem: 24GiB, gpus: 1}",
        top="gpus: [0, 1, 2, 3]",
    )
    named, rest = resolve_groups(parse(text, "a", {}))
    assert named.members.keys() == {"default/a"}
    assert (rest.name, rest.budget) == ("gpus", (3,))
    assert unbounded(rest) == {"default/b": MemberRule((2,)), "default/c": MemberRule((1,), pinned=True)}


def test_preload_and_pinned_are_part_of_the_rule_of_scaling() -> None:
    config = parse(f"revisions: [{revision('a', 'preload: true, pinned: true', '')}]", "a", {})
    rule = process_rule(config.revisions[0])
    assert rule.initial_scale == 1
    assert rule.last_pod_retention_s > 1e9


def test_the_examples_of_the_page_are_files() -> None:
    page = (Path(__file__).parents[2] / "docs" / "groups.md").read_text("utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    rules = [resolve_groups(parse(block, "groups.md", {})) for block in blocks]
    assert [[rule.name for rule in found] for found in rules] == [["gpu0"], ["gpu0"], ["gpus"]]
    assert unbounded(rules[0][0]) == {"default/llama": MemberRule((10 * GIB,)), "default/qwen": MemberRule((20 * GIB,))}
    assert unbounded(rules[1][0]) == {"default/vllm": MemberRule((20 * GIB, 40 * GIB), (0, 40 * GIB))}
    assert unbounded(rules[2][0]) == {"default/small": MemberRule((1,)), "default/large": MemberRule((2,))}


def test_what_was_measured_counts_where_the_group_asks_for_it() -> None:
    def needs(measured: bool, peaks: dict[str, dict[str, int]], least: int = 0) -> dict[str, tuple[int, ...]]:
        text = file(
            revision("a", "", "needs: {memory: 1GiB}"),
            revision("b", f"min_scale: {least}, sleep: {{signal: SIGSTOP}}", "needs: {memory: 2GiB}"),
            group=f"members: [a, b], budget: {{gpu_memory: 1, memory: 8GiB}}, measured: {str(measured).lower()}",
        )
        (rule,) = resolve_groups(parse(text, "a", {}), peaks)
        return {key.removeprefix("default/"): one.needs for key, one in rule.members.items()}

    gib = 1 << 30
    peaks = {"default/a": {"memory": 3 * gib}}
    assert needs(False, peaks) == {"a": (0, gib), "b": (0, 2 * gib)}
    assert needs(True, {}) == {"a": (0, gib), "b": (0, 2 * gib)}
    assert needs(True, peaks) == {"a": (0, 3 * gib), "b": (0, 2 * gib)}
    assert needs(True, {"default/a": {"memory": gib // 2}})["a"] == (0, gib), "no less than it declares"
    assert needs(True, {"default/a": {"memory": 9 * gib}})["a"] == (0, 8 * gib), "it could not be loaded any more"
    assert needs(True, {"default/a": {"memory": 9 * gib}}, 1)["a"] == (0, 6 * gib), "beside the one that always runs"
    assert needs(True, {"default/b": {"memory": 9 * gib}}, 1)["b"] == (0, 2 * gib), "it always runs"
