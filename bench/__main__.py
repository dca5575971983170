"""`python -m bench`: one subcommand per kind of measurement.

Exit codes: 0 fine, 1 a measurement that failed or in which a request failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from types import FrameType

from bench.processes import BenchError, UsageError
from bench.upstream import BODY_BYTES

FAILED = 1
USAGE = 2
INTERRUPTED = 130
PLOTS = "docs/figures"
MICRO_FIGURES = "docs/figures/micro.json"  # the figures that the documentation quotes
SCALE_FIGURES = "docs/figures/scale.json"


def main(arguments: list[str] | None = None) -> int:
    """Run the subcommand, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        handler: Callable[[argparse.Namespace], int] = options.handler
        return handler(options)
    except UsageError as error:
        print(f"bench: {error}", file=sys.stderr)
        return USAGE
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return INTERRUPTED


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures the activator.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    micro = commands.add_parser("micro", help="single operations, by pytest-benchmark")
    micro.add_argument("-k", "--select", metavar="EXPRESSION", help="an expression for pytest's -k")
    micro.add_argument(
        "--group",
        action="append",
        choices=[
            "policies",
            "table",
            "memory",
            "fragmentation",
            "state",
            "telemetry",
            "throttle",
            "routing",
            "http2",
            "quotas",
            "growth",
            "scaling",
        ],
        help="only this group; may be repeated (default: all)",
    )
    micro.add_argument("--world", choices=["both", "compiled", "plain"], default="both", help="(default: both)")
    micro.set_defaults(handler=_micro)

    _add_load(commands)

    _add_grants(commands)
    stale = commands.add_parser("stale-loads", help="simulation of workers that learn each other's loads late")
    stale.add_argument("--requests", type=_positive, default=100_000, help="requests of each row (default: 100,000)")
    stale.set_defaults(handler=_stale_loads)
    _add_cold(commands)
    _add_upgrades(commands)
    trace = commands.add_parser("trace", help="a long random history of one throttler, checked after every step")
    trace.add_argument("--events", type=_positive, default=200_000, help="number of events (default: 200,000)")
    trace.add_argument("--seed", type=int, default=1, help="the same seed gives the same trace (default: 1)")
    trace.set_defaults(handler=_trace)

    crowd = commands.add_parser("crowd", help="thousands of waiting clients that are answered at the same time")
    crowd.add_argument("--clients", type=_positive, default=5_000, help="number of clients (default: 5,000)")
    crowd.add_argument("--h2", action="store_true", help="use HTTP/2, with many requests on each connection")
    crowd.set_defaults(handler=_crowd)

    groups = commands.add_parser("groups", help="swaps and waits if one program is loaded at a time, by policy")
    groups.set_defaults(handler=_groups)

    slow = commands.add_parser(
        "slow", help="pods that answer slowly, with and without keep-alive, compared with haproxy"
    )
    slow.set_defaults(handler=_slow)

    commands.add_parser(
        "slow-clients",
        help="how long others wait for a slow upload or download, compared with haproxy and nginx",
    ).set_defaults(handler=_slow_clients)

    _add_overloads(commands)

    flood = commands.add_parser("flood", help="a flood of pod updates during requests, and a revision that panics")
    flood.add_argument("--seconds", type=_positive, default=10, help="length of the flood (default: 10)")
    flood.add_argument("--updates", type=_positive, default=10_000, help="updates per second (default: 10,000)")
    flood.add_argument("--pods", type=_positive, default=1_000, help="number of updated pods (default: 1,000)")
    flood.set_defaults(handler=_flood)

    pod_flood = commands.add_parser("pod-flood", help="comparison of ways to keep up with pods that come and go")
    pod_flood.add_argument(
        "--seconds", type=_positive, default=20, help="length of the flood for each way (default: 20)"
    )
    pod_flood.add_argument("--pods", type=_positive, default=12, help="number of pods at a time (default: 12)")
    pod_flood.add_argument("--seed", type=_positive, default=1, help="seed of the random events (default: 1)")
    pod_flood.set_defaults(handler=_pod_flood)

    kube = commands.add_parser("kube", help="reading Kubernetes objects: our structs and kubernetes-asyncio's models")
    kube.add_argument(
        "--rounds", type=_positive, default=50, help="number of rounds; the best one counts (default: 50)"
    )
    kube.set_defaults(handler=_kube)

    _add_membership(commands)
    _add_scale(commands)

    report = commands.add_parser("report", help="show files of --json as one Markdown table, or as pictures")
    report.add_argument("files", nargs="*", metavar="FILE", default=[MICRO_FIGURES], help=f"(default: {MICRO_FIGURES})")
    report.add_argument(
        "--plots",
        metavar="FOLDER",
        help=f"draw the figures of `micro` or `scale` into this folder instead (for the docs: {PLOTS})",
    )
    report.set_defaults(handler=_report)

    for command in commands.choices.values():
        command.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _positives(text: str) -> list[int]:
    return [_positive(one) for one in text.split(",")]


def _micro(options: argparse.Namespace) -> int:
    from bench import micro_run

    return micro_run.run(options.select, options.group or list(micro_run.GROUPS), options.world, options.json)


def _add_upgrades(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    upgrades = commands.add_parser(
        "upgrades", help="`activator upgrade` under traffic, compared with a reload of nginx"
    )
    upgrades.add_argument("--rounds", type=_positive, default=10, help="upgrades (default: 10)")
    upgrades.add_argument("--workers", type=_positive, default=1, help="workers of the activator (default: 1)")
    upgrades.set_defaults(handler=_upgrades)


def _add_cold(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    cold = commands.add_parser("cold", help="first requests of a program that is started from zero")
    cold.add_argument("--rounds", type=_positive, default=20, help="cold starts (default: 20)")
    cold.set_defaults(handler=_cold)
    idle = commands.add_parser("idle", help="idle revisions: memory, CPU, and the first request to one")
    idle.add_argument(
        "--revisions", type=_positives, default=[1, 10_000], help="numbers of revisions (default: 1,10000)"
    )
    idle.add_argument(
        "--seconds", type=_positive, default=20, help="length of the period without requests (default: 20)"
    )
    idle.add_argument("--requests", type=_positive, default=20, help="first requests (default: 20)")
    idle.set_defaults(handler=_idle)
    knative = commands.add_parser("knative", help="cold starts with the activator in place of Knative's")
    knative.add_argument("--rounds", type=_positive, default=20, help="cold starts (default: 20)")
    knative.add_argument(
        "--start", type=_positive, default=300, metavar="MS", help="start time of the program (default: 300)"
    )
    knative.set_defaults(handler=_knative)


def _add_grants(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    grants = commands.add_parser("grants", help="the cost of a slot that another worker grants")
    grants.add_argument("--replicas", action="store_true", help="between two replicas over TCP instead of two workers")
    grants.add_argument("--requests", type=_positive, default=1000, help="requests on each connection (default: 1,000)")
    grants.set_defaults(handler=_grants)
    costs = commands.add_parser("grant-costs", help="CPU time of such a slot, by number of slots granted in one turn")
    costs.add_argument("--pods", type=_positives, default=[1, 8, 32, 128, 512], help="default: 1,8,32,128,512")
    costs.add_argument("--rounds", type=_positive, default=10, help="rounds of each number (default: 10)")
    costs.set_defaults(handler=_grant_costs)


def _add_load(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    load = commands.add_parser("load", help="the activator, haproxy, nginx and caddy with the same upstream")
    load.add_argument(
        "--peers",
        metavar="A,B",
        help="only these instead of all that are installed: direct, haproxy, nginx, caddy, floor (two "
        "forwarders that parse nothing), activator, telemetry (the activator without histograms, as it is, with its "
        "access log, with traces)",
    )
    load.add_argument("--rounds", type=_positive, default=3, help="turns of each proxy (default: 3)")
    load.add_argument("--seconds", type=_positive, default=4, help="length of a turn (default: 4)")
    load.add_argument(
        "--connections", type=_positive, help="keep-alive connections of the client (default: 64; with --h2: 8)"
    )
    load.add_argument(
        "--h2", choices=["h1", "h2c"], help="use HTTP/2 from the client (h2load), to pods that speak this"
    )
    load.add_argument("--streams", type=_positive, default=8, help="with --h2: streams of a connection (default: 8)")
    load.add_argument("--grpc", action="store_true", help="with --h2 h2c: gRPC, one message in each direction")
    load.add_argument(
        "--headers", type=_positive, default=12, help="header fields of a request, including Host (default: 12)"
    )
    load.add_argument("--body", choices=list(BODY_BYTES), default="small", help="body of a response (default: small)")
    load.add_argument(
        "--send",
        dest="send_bytes",
        type=int,
        default=0,
        metavar="BYTES",
        help="POST this many bytes (default: 0, a GET)",
    )
    load.add_argument("--close", action="store_true", help="open a new connection for each request")
    load.add_argument("--workers", default="1", metavar="N,M", help="workers or threads of each proxy (default: 1)")
    load.add_argument(
        "--rate", default="", metavar="N|half", help="requests per second; half: half of what haproxy reaches"
    )
    load.add_argument(
        "--upstream", choices=["auto", "nginx", "own"], default="auto", help="auto: nginx if it is installed"
    )
    load.add_argument("--client", choices=["auto", "wrk", "own"], default="auto", help="auto: wrk if it is installed")
    load.set_defaults(handler=_load)


def _add_membership(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    membership = commands.add_parser("membership", help="replicas that start at once and claim an index, in five ways")
    membership.add_argument("--replicas", default="18,100", metavar="N,M", help="numbers of replicas (default: 18,100)")
    membership.add_argument(
        "--choice",
        choices=["lowest", "random"],
        default="random",
        help="the free index to try after a conflict (default: random)",
    )
    membership.add_argument("--rounds", type=_positive, default=5, help="groups of each way (default: 5)")
    membership.add_argument("--ways", default="", metavar="A,B", help="only these ways (default: all five)")
    membership.add_argument("--kubeconfig", default="", metavar="FILE", help="a real API server instead of a fake one")
    membership.add_argument("--namespace", default="default", help="there (default: default)")
    membership.add_argument(
        "--round-timeout", type=_positive, default=300, metavar="S", help="the limit for one way (default: 300)"
    )
    membership.set_defaults(handler=_membership)


def _add_scale(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    scale = commands.add_parser("scale", help="writing Kubernetes objects for many Activations, phase by phase")
    scale.add_argument("--activations", type=_positive, default=500, help="(default: 500)")
    scale.add_argument("--pods", type=_positive, default=1_000, help="total number of pods (default: 1,000)")
    scale.add_argument("--nodes", type=_positive, default=100, help="number of simulated nodes (default: 100)")
    scale.add_argument("--concurrency", type=_positive, default=20, help="concurrent passes (default: 20)")
    scale.add_argument("--seconds", type=_positive, default=30, help="length of the steady state (default: 30)")
    scale.add_argument(
        "--brief", action="store_true", help="run only with all techniques, not with each of them disabled"
    )
    scale.add_argument(
        "--profiles", default="", metavar="FOLDER", help="write the profile of each phase to this folder"
    )
    scale.add_argument("--kubeconfig", default="", metavar="FILE", help="a real API server instead of a fake one")
    scale.add_argument("--namespace", default="activator-bench", help="there (default: activator-bench)")
    scale.set_defaults(handler=_scale)


def _scale(options: argparse.Namespace) -> int:
    from bench import scale

    found = scale.Options(
        options.activations,
        options.pods,
        options.nodes,
        options.concurrency,
        float(options.seconds),
        options.kubeconfig,
        options.namespace,
        options.brief,
        options.profiles,
    )
    return scale.run(found, options.json)


def _load(options: argparse.Namespace) -> int:
    from bench import http2_load, load

    if options.h2 is not None:
        options.pods, options.connections = options.h2, options.connections or http2_load.Options().connections
        names = http2_load.Options.__struct_fields__
        return http2_load.run(http2_load.Options(**{name: getattr(options, name) for name in names}), options.json)
    options.connections = options.connections or load.Options().connections
    fields = load.Options.__struct_fields__
    return load.run(load.Options(**{name: getattr(options, name) for name in fields}), options.json)


def _knative(options: argparse.Namespace) -> int:
    from bench import knative

    return knative.run(options.rounds, options.start, options.json)


def _grant_costs(options: argparse.Namespace) -> int:
    from bench import grant_costs

    return grant_costs.run(options.pods, options.rounds, options.json)


def _grants(options: argparse.Namespace) -> int:
    from bench import grants

    return grants.run(options.requests, options.replicas, options.json)


def _add_overloads(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    overload = commands.add_parser(
        "overload", help="clients beyond the capacity, with priorities, compared with haproxy"
    )
    overload.add_argument("--seconds", type=_positive, default=10, help="length of each overload (default: 10)")
    overload.set_defaults(handler=_overload)

    commands.add_parser(
        "adaptive", help="simulation of the adaptive limit, compared with Envoy's and Netflix's"
    ).set_defaults(handler=_adaptive)


def _stale_loads(options: argparse.Namespace) -> int:
    from bench import stale_loads

    return stale_loads.run(options.requests, options.json)


def _membership(options: argparse.Namespace) -> int:
    from bench import membership

    words = (
        options.replicas,
        options.choice,
        options.rounds,
        options.ways,
        options.kubeconfig,
        options.namespace,
        options.round_timeout,
    )
    return membership.run(membership.options_of(*words), options.json)


def _upgrades(options: argparse.Namespace) -> int:
    from bench import upgrades

    return upgrades.run(options.rounds, options.workers, options.json)


def _cold(options: argparse.Namespace) -> int:
    from bench import cold

    return cold.run(options.rounds, options.json)


def _idle(options: argparse.Namespace) -> int:
    from bench import idle

    return idle.run(options.revisions, options.seconds, options.requests, options.json)


def _trace(options: argparse.Namespace) -> int:
    from bench import trace

    return trace.run(options.events, options.seed, options.json)


def _groups(options: argparse.Namespace) -> int:
    from bench import groups

    return groups.run(options.json)


def _adaptive(options: argparse.Namespace) -> int:
    from bench import adaptive

    return adaptive.report(options.json)


def _crowd(options: argparse.Namespace) -> int:
    from bench import crowd

    return crowd.run(options.clients, options.h2, options.json)


def _slow(options: argparse.Namespace) -> int:
    from bench import slow_pods

    return slow_pods.run(options.json)


def _slow_clients(options: argparse.Namespace) -> int:
    from bench import slow_clients

    return slow_clients.run(options.json)


def _overload(options: argparse.Namespace) -> int:
    from bench import overload

    return overload.run(options.seconds, options.json)


def _kube(options: argparse.Namespace) -> int:
    from bench import kube

    return kube.run(options.rounds, options.json)


def _flood(options: argparse.Namespace) -> int:
    from bench import flood

    return flood.run(options.seconds, options.updates, options.pods, options.json)


def _pod_flood(options: argparse.Namespace) -> int:
    from bench import pod_flood

    return pod_flood.run(pod_flood.Options(options.seconds, options.pods, options.seed), options.json)


def _report(options: argparse.Namespace) -> int:
    from bench import report

    return report.run(options.files, options.plots, options.json)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)  # so that child processes are stopped before the exit
    sys.exit(main())
