"""Random schedules: machines, groups, requests, failures and reloads from one seed, and what must hold in each."""

from __future__ import annotations

from random import Random

from activator.control_plane.groups.rule import GroupRule, MemberRule
from bench.group_world import Machine, Request, World, WorldError

ENDS_S = 4000.0  # by then everything has ended: each request takes seconds, each start some
TICK_S = 0.5  # how often it is looked at what time alone changes
RESOURCES = ("gpu_memory", "memory")


def run(seed: int) -> World:
    """One schedule; raises WorldError with the seed."""
    try:
        return _run(Random(seed))
    except WorldError as error:
        raise WorldError(f"seed {seed}: {error}") from error


def _run(rng: Random) -> World:
    world = World(rng, report_s=rng.choice((0.0, 0.0, 0.1)))
    keys = [f"default/{name}" for name in "abcde"[: rng.randint(2, 5)]]
    calm = rng.random() < 0.4  # nothing fails and nothing is reloaded
    rules = _configure(world, keys, rng, calm)
    if calm and rng.random() < 0.7 and world.report_s == 0.0:
        _judge_order(world, rules[0])
    requests = rng.randint(1, 20)
    spread_s = rng.choice((0.0, 1.0, 10.0, 60.0))
    for _ in range(requests):
        key, at_s = rng.choice(keys), world.now_s + rng.random() * spread_s
        world.at(at_s, lambda key=key: _request(world, key, rng))  # type: ignore[misc]
    if not calm:
        for _ in range(rng.randint(0, 3)):
            world.at(
                world.now_s + rng.random() * spread_s, lambda: world.kill(rng.choice(sorted(world.revisions) or [""]))
            )
        for _ in range(rng.randint(0, 2)):
            world.at(world.now_s + rng.random() * spread_s, lambda: _reload(world, keys, rng))
    world.tick_every(TICK_S, world.now_s + spread_s + 400.0)
    world.run(ENDS_S)
    _judge_end(world)
    return world


def _request(world: World, key: str, rng: Random) -> None:
    if key not in world.revisions:
        return
    request = world.arrive(key, rng.choice((0.0, 0.1, 1.0, 5.0)))
    if rng.random() < 0.1:
        world.at(world.now_s + rng.random() * 5.0, lambda: world.cancel(request))


def _reload(world: World, keys: list[str], rng: Random) -> None:
    _configure(world, keys, rng, False)


def _configure(world: World, keys: list[str], rng: Random, calm: bool) -> list[GroupRule]:
    names = ["one", "two"][: rng.randint(1, 2)]
    exclusive = {name: rng.random() < 0.3 for name in names}
    budget = {name: (rng.randint(8, 24), rng.randint(16, 64)) for name in names}
    machines: dict[str, tuple[Machine, str]] = {}
    members: dict[str, dict[str, MemberRule]] = {name: {} for name in names}
    for key in keys:
        name = rng.choice([*names, ""] if not calm else names)
        most = budget[name] if name else (8, 16)
        alone = bool(name) and exclusive[name]
        gpu, memory = rng.randint(1, most[0]), rng.randint(0, most[1])
        asleep = None
        if rng.random() < 0.5:
            asleep = {} if alone else {"gpu_memory": rng.randint(0, gpu // 4), "memory": rng.randint(0, memory)}
        fails = 0.0 if calm else rng.choice((0.0, 0.3))
        machine = Machine(
            {} if alone else {"gpu_memory": gpu, "memory": memory},
            start_s=rng.choice((0.0, 0.5, 2.0, 8.0)),
            stop_s=rng.choice((0.0, 0.2, 3.0)),
            concurrency=rng.choice((0, 1, 2)),
            max_scale=rng.choice((1, 1, 3)),
            idle_s=rng.choice((1.0, 60.0)),
            asleep=asleep,
            sleep_s=rng.choice((0.0, 0.5)),
            wake_s=rng.choice((0.0, 0.2)),
            start_fails=fails,
            crashes=fails / 3,
            sleep_fails=fails,
            wake_fails=fails,
        )
        machines[key] = (machine, name)
        if name:
            rest = None if asleep is None else (() if alone else (asleep["gpu_memory"], asleep["memory"]))
            members[name][key] = MemberRule(() if alone else (gpu, memory), rest)
    rules = [
        GroupRule(
            name,
            () if exclusive[name] else RESOURCES,
            () if exclusive[name] else budget[name],
            members[name],
            exclusive[name],
            rng.choice(("affinity", "affinity", "fifo")),
            rng.choice((0.5, 5.0, 30.0)),
        )
        for name in names
        if members[name]
    ]
    if calm or rng.random() < 0.9:
        world.configure(machines, rules)
    else:
        left = keys[: rng.randint(0, len(keys) - 1)]  # the others are removed
        kept = [_without(rule, left) for rule in rules]
        world.configure({key: machines[key] for key in left}, [rule for rule in kept if rule.members])
    return rules


def _without(rule: GroupRule, left: list[str]) -> GroupRule:
    members = {key: one for key, one in rule.members.items() if key in left}
    return GroupRule(rule.name, rule.resources, rule.budget, members, rule.exclusive, rule.discipline)


def _judge_order(world: World, rule: GroupRule) -> None:
    """In an exclusive group nobody is overtaken by a request that came more than the patience after it; what came while
    a program was loaded, and finds room in it, goes along.
    """
    if not rule.exclusive:
        return
    patience_s = 0.0 if rule.discipline == "fifo" else rule.overtaken_at_most_s

    def judge(request: Request) -> None:
        if request.key not in rule.members or request.program is None:
            return
        if request.arrival_s <= request.program.ready_s:
            return
        for key in rule.members:
            line = world.revisions[key].line
            if key != request.key and line:
                late_s = request.arrival_s - line[0].arrival_s - patience_s
                if late_s > TICK_S:
                    raise WorldError(f"{request.key} overtakes {key} {late_s} s too late")

    world.judge = judge


def _judge_end(world: World) -> None:
    for request in world.requests:
        if not request.ended:
            revision = world.revisions[request.key]
            states = {key: [one.state for one in it.programs] for key, it in world.revisions.items()}
            waits = {
                name: {key: one.wait for key, one in group.members.items()}
                for name, group in world.groups.groups.items()
            }
            raise WorldError(
                f"a request of {request.key} is stuck: granted {revision.granted}, programs {states}, waits {waits}"
            )
