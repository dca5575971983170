"""`python -m bench membership`: replicas that start at once and claim an index, in each of the five ways.

Rules
  1. Each replica has its own client and so its own connections, which are opened before the measurement. All replicas
     run in one process, the API server in another: with two cores each process has its own.
  2. Each round uses a new group. It ends when the last replica has its index; cleaning up is not measured. The figure
     is the median of the rounds; the file of --json has every round.
  3. The fake API server (bench/membership_server.py) differs from a real one: its CPU time only compares the ways. With
     --kubeconfig a real one is used; its CPU time is read if it runs on this machine (bench/api_server.py).
  4. If the final indexes are not unique and dense, the measurement has failed. A round that does not end within
     --round-timeout is a result: the figures up to then are shown, and the way is skipped from then on at this number.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

import msgspec
import yaml

from activator.kubernetes.client import KubeClient
from activator.kubernetes.credentials import Credentials
from activator.kubernetes.errors import RefusedError
from activator.kubernetes.resources import CONFIG_MAPS
from activator.members.claims.errors import MembershipError
from activator.members.claims.seats import Holder
from activator.members.claims.starter import Starter
from activator.members.claims.table import Choice
from bench import header, results
from bench.api_server import ReadCpu, cpu_reader
from bench.claims.shared import SharedStarter
from bench.claims.ways import WAYS
from bench.processes import LOOPBACK, BenchError, UsageError, answers, free_port, running
from bench.results import Document, Result, Value, figure
from lb.rng import Rng

ROUND_TIMEOUT_S = 300.0
CLEAN_UP_TIMEOUT_S = 60.0
SEED_LINES = (
    'The seed (18 members, server-side apply of a row each, a random free index): "it is expected to take more than',
    '5 rounds to reach convergence"; an estimate, no measurement.',
)


class Options(msgspec.Struct, frozen=True):
    """The options of the command line."""

    replicas: tuple[int, ...] = (18, 100)
    choice: str = Choice.RANDOM.value
    rounds: int = 5
    ways: tuple[str, ...] = tuple(WAYS)
    kubeconfig: str = ""
    namespace: str = "default"
    round_timeout_s: float = ROUND_TIMEOUT_S


class Turn(msgspec.Struct, frozen=True):
    """One round of one group; `cpu_s` is None if it cannot be read."""

    converged_s: float
    rounds: tuple[int, ...]  # how many each replica needed
    conflicts: int
    duplicates: int
    calls: dict[str, int]
    cpu_s: float | None
    is_over: bool = True  # False: the round timed out before all had an index


def options_of(
    replicas: str,
    choice: str,
    rounds: int,
    ways: str,
    kubeconfig: str,
    namespace: str,
    round_timeout_s: float = ROUND_TIMEOUT_S,
) -> Options:
    """Return the options from the arguments of the command line. Raises UsageError."""
    counts = tuple(int(word) if word.isdigit() else 0 for word in replicas.split(","))
    if not all(1 <= count <= 500 for count in counts):
        raise UsageError(f"--replicas {replicas}: numbers from 1 to 500, separated by commas")
    chosen = tuple(ways.split(",")) if ways else tuple(WAYS)
    unknown = [way for way in chosen if way not in WAYS]
    if unknown:
        raise UsageError(f"--ways {','.join(unknown)}: known: {', '.join(WAYS)}")
    return Options(counts, choice, rounds, chosen, kubeconfig, namespace, round_timeout_s)


def run(options: Options, json_path: str | None) -> int:
    """Run `python -m bench membership`. Raises BenchError."""
    head = header.collect([])
    print(header.one_line(head), flush=True)
    warning = header.warning(head)
    if warning is not None:
        print(warning)
    turns = _against_real(options) if options.kubeconfig else _against_fake(options)
    for count in options.replicas:
        print(f"\n{count} replicas at once, choice {options.choice}, median of {options.rounds}:")
        print(results.table(*rows(turns, count)))
    print("\n" + "\n".join(SEED_LINES))
    if json_path is not None:
        results.write(json_path, Document(head, figures(options, turns)))
    return 0


Turns = dict[tuple[str, int], list[Turn]]


def _against_fake(options: Options) -> Turns:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder, port = Path(name), free_port()
        command = [sys.executable, "-m", "bench.membership_server", str(port)]
        with running(command, folder / "server.log") as server:
            server.wait_until(answers(port, "/api/v1/namespaces/default/configmaps"))
            return _measured(options, write_kubeconfig(folder, port), server.cpu_s)


def _against_real(options: Options) -> Turns:
    return _measured(options, options.kubeconfig, cpu_reader(options.kubeconfig))


def _measured(options: Options, kubeconfig: str, read_cpu: ReadCpu) -> Turns:
    import uvloop

    return uvloop.run(_turns(options, kubeconfig, read_cpu))


def write_kubeconfig(folder: Path, port: int) -> str:
    """Write a kubeconfig for the fake API server and return its path."""
    path = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fake", "cluster": {"server": f"http://{LOOPBACK}:{port}"}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "nobody"}}],
        "current-context": "fake",
    }
    path.write_text(yaml.safe_dump(document), "utf-8")
    return str(path)


# --- one group after the other --------------------------------------------------------------------------------------


async def _turns(options: Options, kubeconfig: str, read_cpu: ReadCpu) -> Turns:
    turns: Turns = {}
    clients = [_client(kubeconfig) for _ in range(max(options.replicas))]
    try:
        await asyncio.gather(*(_open(client, options.namespace) for client in clients))
        for count in options.replicas:
            for number in range(options.rounds):
                for way in options.ways:  # alternating, so that a disturbance affects all of them
                    if not all(turn.is_over for turn in turns.get((way, count), ())):
                        continue
                    turn = await _turn(options, way, clients[:count], number, read_cpu)
                    turns.setdefault((way, count), []).append(turn)
    finally:
        for client in clients:
            await client.close()
    return turns


def _client(kubeconfig: str) -> KubeClient:
    return KubeClient(Credentials({"KUBECONFIG": kubeconfig}, time.monotonic), "activator/bench")


async def _open(client: KubeClient, namespace: str) -> None:
    """Open one connection for reading and one for writing, by requests about an object that does not exist."""
    path = CONFIG_MAPS.one(namespace, "bench-nothing")
    for call in (client.get(path), client.delete(path, "nobody")):
        try:
            await call
        except RefusedError as error:
            if error.status != 404:
                raise BenchError(f"the API refuses: {error}") from error


async def _turn(options: Options, way: str, clients: list[KubeClient], number: int, read_cpu: ReadCpu) -> Turn:
    group = f"bench-{uuid.uuid4().hex[:8]}"
    starters = [
        WAYS[way](
            client, options.namespace, group, _holder(group, place), Rng(1000 * number + place), Choice(options.choice)
        )
        for place, client in enumerate(clients)
    ]
    cpu_before, began_s = read_cpu(), time.perf_counter()
    indexes: list[int] | None = None
    try:
        async with asyncio.timeout(options.round_timeout_s):
            indexes = list(await asyncio.gather(*(starter.claim() for starter in starters)))
    except MembershipError as error:
        raise BenchError(f"{way}: {error}") from error
    except TimeoutError:
        print(f"{way}: not all {len(starters)} had an index within {options.round_timeout_s:.0f} s", flush=True)
    converged_s, cpu_after = time.perf_counter() - began_s, read_cpu()
    if indexes is not None and sorted(indexes) != list(range(len(starters))):
        raise BenchError(f"{way}: the indexes are not unique and dense: {sorted(indexes)}")
    turn = Turn(
        converged_s,
        tuple(starter.rounds for starter in starters),
        sum(starter.conflicts for starter in starters),
        sum(starter.duplicates for starter in starters),
        dict(sum((starter.calls for starter in starters), Counter())),
        None if cpu_before is None or cpu_after is None else cpu_after - cpu_before,
        indexes is not None,
    )
    async with asyncio.timeout(CLEAN_UP_TIMEOUT_S):
        await _clean_up(starters, clients[0], options.namespace)
    return turn


def _holder(group: str, place: int) -> Holder:
    return Holder(f"{group}-{place}", str(uuid.UUID(int=place)), f"10.0.{place >> 8}.{place & 255}:8020")


async def _clean_up(starters: list[Starter], client: KubeClient, namespace: str) -> None:
    first = starters[0]
    if isinstance(first, SharedStarter):
        path = CONFIG_MAPS.one(namespace, first.object_name)
        thing = msgspec.json.decode(await client.get(path))
        await client.delete(path, thing["metadata"]["uid"])
    else:
        await asyncio.gather(*(starter.release() for starter in starters))


# --- the results ----------------------------------------------------------------------------------------------------


def rows(turns: Turns, count: int) -> tuple[list[str], list[list[str]]]:
    """Return the table of one number of replicas."""
    verbs = sorted({verb for (_, replicas), found in turns.items() if replicas == count for verb in found[0].calls})
    title = ["way", "ms", "rounds", "most", "conflicts", "duplicates", "calls", *verbs, "server CPU ms"]
    lines = []
    for (way, replicas), found in turns.items():
        if replicas == count:
            named = {name: value for name, value, *_ in medians(found)}
            cells = [
                figure(named[name], digits) for name, digits in (("converged", 0), ("rounds", 1), ("rounds_most", 0))
            ]
            cells += [figure(named[name], 0) for name in ("conflicts", "duplicates", "calls")]
            cells += [figure(statistics.median(turn.calls.get(verb, 0) for turn in found), 0) for verb in verbs]
            if not all(turn.is_over for turn in found):
                cells[0] = f"> {cells[0]}"
            lines.append([way, *cells, figure(named.get("server_cpu"), 0)])
    return title, lines


def medians(found: list[Turn]) -> list[tuple[str, float, str, list[float]]]:
    """Return, per figure, its name, the median of the rounds, its unit and the values."""
    values: dict[str, tuple[str, list[float]]] = {
        "converged": ("ms", [turn.converged_s * 1e3 for turn in found]),
        "rounds": ("rounds per replica", [statistics.mean(turn.rounds) for turn in found]),
        "rounds_most": ("rounds", [max(turn.rounds) for turn in found]),
        "conflicts": ("conflicts", [turn.conflicts for turn in found]),
        "duplicates": ("indexes", [turn.duplicates for turn in found]),
        "calls": ("calls", [sum(turn.calls.values()) for turn in found]),
    }
    cpu = [turn.cpu_s * 1e3 for turn in found if turn.cpu_s is not None]
    if cpu:
        values["server_cpu"] = ("ms of the API server", cpu)
    return [(name, statistics.median(each), unit, each) for name, (unit, each) in values.items()]


def figures(options: Options, turns: Turns) -> list[Result]:
    """Return the results for the JSON file."""
    found = []
    for (way, count), each in turns.items():
        calls: dict[str, Value] = {
            f"calls_{verb}": statistics.median(turn.calls.get(verb, 0) for turn in each) for verb in each[0].calls
        }
        for name, value, unit, raw in medians(each):
            params: dict[str, Value] = {
                "replicas": count,
                "choice": options.choice,
                "server": "real" if options.kubeconfig else "fake",
                "converged": all(turn.is_over for turn in each),
                "each": " ".join(f"{one:.4g}" for one in raw),
                **(calls if name == "calls" else {}),
            }
            found.append(Result(f"membership.{way}.{count}.{name}", value, unit, True, params))
    return found
