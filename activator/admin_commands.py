"""The commands that talk to a running activator through its admin port: status, logs, load, restart, drain and more."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

import activator
from activator.command_line import REFUSED, Parser
from activator.config.model.file import Config
from activator.config.specs import RevisionSpec, key_of
from activator.runtime.errors import ConfigError, StartError

REQUESTS_SHOWN_MAX: Final = 1_000  # as the admin port has it
UPGRADE_TIMEOUT_S: Final = 150.0  # the sum of the steps' limits (app/handover/giving.py), and some more
ADMIN: Final = "http://127.0.0.1:8008"  # the default admin port
ADMIN_TOKEN: Final = "ACTIVATOR_ADMIN__TOKEN"

_LOOPBACKS: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def add_admin_commands(
    commands: argparse._SubParsersAction[Parser],
    load: Callable[[str], tuple[Config, list[RevisionSpec]]],
) -> None:
    """Add the commands; `load` reads the configuration file that `-c` names."""
    earlier = set(commands.choices)
    drain = commands.add_parser(
        "drain", help="let a running activator finish its work and exit", examples=("activator drain",)
    )
    _add_admin(drain)
    drain.set_defaults(handler=_drain)
    upgrade = commands.add_parser(
        "upgrade",
        help="replace a running activator by the installed version; programs and requests continue",
        examples=("activator upgrade", "activator upgrade --or-reload"),
    )
    upgrade.add_argument(
        "--or-reload", action="store_true", help="if it is the installed version already, only read its file again"
    )
    _add_admin(upgrade)
    upgrade.set_defaults(handler=_upgrade)
    ended = commands.add_parser(
        "member-ended",
        help="confirm that an unreachable member has ended, so that its slots can be granted again (unsafe if it still "
        "runs)",
        examples=("activator member-ended 2",),
    )
    ended.add_argument(
        "seat", type=_seat, metavar="SEAT", help="its seat, as `/debug/members` of the admin port shows it"
    )
    _add_admin(ended)
    ended.set_defaults(handler=_end_member)
    status = commands.add_parser(
        "status",
        help="show what a running activator is doing",
        examples=(
            "activator status",
            "activator status app",
            "activator status --why app",
            "activator status --json --admin 127.0.0.1:9008",
        ),
    )
    _add_admin(status)
    status.add_argument("name", metavar="NAME", nargs="?", default="", help="only this revision")
    status.add_argument("--json", action="store_true", help="as JSON")
    status.add_argument(
        "--why", metavar="NAME", nargs="?", const="", help="explain the number of pods of each revision, or of this one"
    )
    status.add_argument("--watch", action="store_true", help="repeat every second, until interrupted")
    status.set_defaults(handler=_status)
    logs = commands.add_parser(
        "logs",
        help="show the output of a revision's local programs",
        examples=("activator logs app", "activator logs -f -n 20 app"),
    )
    logs.add_argument("name", metavar="NAME", help="the revision")
    logs.add_argument("-f", "--follow", action="store_true", help="follow the log: print new lines until interrupted")
    logs.add_argument(
        "-n", "--lines", type=_count, default=100, metavar="N", help="number of last lines (default: 100)"
    )
    _add_admin(logs)
    logs.set_defaults(handler=_logs)
    requests = commands.add_parser(
        "requests",
        help="show the last requests of revisions that record them",
        examples=("activator requests", "activator requests -f llama", "activator requests --capture 0-17"),
    )
    requests.add_argument("name", metavar="NAME", nargs="?", default="", help="only those of this revision")
    requests.add_argument("-f", "--follow", action="store_true", help="continue with new ones, until interrupted")
    requests.add_argument(
        "-n", "--lines", type=_count, default=20, metavar="N", help="number of last requests (default: 20)"
    )
    requests.add_argument("--json", action="store_true", help="as JSON, one line for each request")
    requests.add_argument(
        "--capture", metavar="ID", help="show the captured request with this ID (marked * in the table)"
    )
    _add_admin(requests)
    requests.set_defaults(handler=_requests)
    _add_program_commands(commands)
    for name in commands.choices.keys() - earlier:
        commands.choices[name].set_defaults(load=load)


def _add_program_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands about the programs and pods of one revision."""
    load_revision = commands.add_parser(
        "load",
        help="start the programs of a revision before a request arrives",
        examples=("activator load app", "activator load --for 1h app"),
    )
    load_revision.add_argument("name", metavar="NAME", help="the revision")
    load_revision.add_argument(
        "--for",
        dest="seconds",
        metavar="TIME",
        help="keep one program running for TIME, for example 10m, after it is ready",
    )
    _add_admin(load_revision)
    load_revision.set_defaults(handler=_load_revision)
    unload = commands.add_parser(
        "unload",
        help="stop the programs of a revision when they have finished their requests",
        examples=("activator unload app",),
    )
    unload.add_argument("name", metavar="NAME", help="the revision")
    _add_admin(unload)
    unload.set_defaults(handler=_unload_revision)
    restart = commands.add_parser(
        "restart",
        help="replace the programs of a revision; the old ones finish their requests",
        examples=("activator restart app",),
    )
    restart.add_argument("name", metavar="NAME", help="the revision")
    _add_admin(restart)
    restart.set_defaults(handler=_restart_revision)
    drain_pod = commands.add_parser(
        "drain-pod",
        help="take a pod out of service: it finishes its requests and gets no new ones",
        examples=("activator drain-pod app 10.0.0.7:8080",),
    )
    enable_pod = commands.add_parser(
        "enable-pod",
        help="put a drained pod back into service",
        examples=("activator enable-pod app 10.0.0.7:8080",),
    )
    for pod_command, handler in ((drain_pod, _drain_pod), (enable_pod, _enable_pod)):
        pod_command.add_argument("name", metavar="NAME", help="the revision")
        pod_command.add_argument("pod", metavar="ADDRESS", help="as `activator status` shows it")
        _add_admin(pod_command)
        pod_command.set_defaults(handler=handler)


def _add_admin(command: argparse.ArgumentParser) -> None:
    """Add the options for reaching the running activator."""
    command.add_argument(
        "--admin",
        metavar="URL",
        default=ADMIN,
        help=f"the URL of its admin port (default: that of -c or ACTIVATOR_ADMIN, else {ADMIN})",
    )
    command.add_argument(
        "--token",
        metavar="TOKEN",
        help=f"the token of the admin port, file:/PATH or env:NAME (default: that of -c or {ADMIN_TOKEN})",
    )
    command.add_argument("-c", "--config", metavar="FILE", help="the configuration of the running program")


def _seat(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text}: expected the number of a seat")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text}: expected a number of lines")
    return int(text)


def _admin_of(options: argparse.Namespace, timeout_s: float | None = None) -> Callable[[str, str], bytes]:
    """Return the client of the admin port, called with method and path. Raises ConfigError and StartError."""
    from activator.admin.client import ANSWER_S, ask
    from activator.runtime.secret_text import read_secret

    admin, token = "" if options.admin == ADMIN else options.admin, options.token
    if options.config:
        config = options.load(options.config)[0]
        address = config.admin_address
        if token is None and not isinstance(config.admin, str):
            token = config.admin.token
        if not admin and not address:
            raise StartError(f"{options.config}: `admin` is empty: the program has no admin port")
    else:
        address, token_set = _admin_of_environment()
        token = token_set if token is None else token
    url = admin or _reachable(address) or ADMIN
    secret = read_secret(token or "", "--token")
    return lambda method, path: ask(url, method, path, secret, timeout_s or ANSWER_S)


def _admin_of_environment() -> tuple[str, str]:
    """Return the address and the token that the variables of the key `admin` set; each may be empty."""
    from activator.config.tree import Item, lay_environment_over

    root = Item("", entries={})
    settings = {name: value for name, value in os.environ.items() if name.split("__")[0] == "ACTIVATOR_ADMIN"}
    problems: list[str] = []
    lay_environment_over(root, settings, problems)
    if problems:
        raise ConfigError(problems)
    item = (root.entries or {}).get("admin")
    if item is None or item.entries is None:
        return ("" if item is None else item.text or ""), ""
    texts = {key: child.text or "" for key, child in item.entries.items()}
    return texts.get("address") or texts.get("listen", ""), texts.get("token", "")


def _reachable(address: str) -> str:
    """Return an address to connect to for a listening address."""
    host, colon, port = address.rpartition(":")
    return f"{_LOOPBACKS[host]}{colon}{port}" if host in _LOOPBACKS else address


def _drain(options: argparse.Namespace, command: list[str] | None) -> int:
    return _post(options, "/drain", "draining")


def _status(options: argparse.Namespace, command: list[str] | None) -> int:
    from activator.admin.revision_names import require
    from activator.admin.status import console_of, table, watch, why

    ask_admin = _admin_of(options)
    path = "/debug/revisions"
    if options.name:
        path += f"?revision={quote(key_of(options.name), safe='')}"
    if options.watch and not options.json:
        from threading import Event

        if options.name:
            require(ask_admin, options.name)
        watch(lambda: ask_admin("GET", path), lambda: not Event().wait(1.0), console_of())
        return 0
    answer = ask_admin("GET", path)
    if options.name and not json.loads(answer)["revisions"]:
        require(ask_admin, options.name)
    if options.why is not None and not options.json:
        explained = why(answer, options.why)
        if explained is None:
            require(ask_admin, options.why)
        print(explained or "")
        return 0
    print(answer.decode() if options.json else table(answer))
    return 0


def _logs(options: argparse.Namespace, command: list[str] | None) -> int:
    from threading import Event

    from activator.admin.client import RefusedError
    from activator.admin.program_logs import FOLLOW_INTERVAL_S, output
    from activator.admin.revision_names import explain

    ask_admin = _admin_of(options)

    def goes_on() -> bool:
        return options.follow and not Event().wait(FOLLOW_INTERVAL_S)

    try:
        for line in output(lambda path: ask_admin("GET", path), options.name, options.lines, goes_on):
            print(line, flush=True)
    except RefusedError as error:
        explain(ask_admin, options.name, error)
    return 0


def _requests(options: argparse.Namespace, command: list[str] | None) -> int:
    """Print the last requests, new ones as they end with `--follow`, or one captured request."""
    from threading import Event

    from activator.admin.last_requests import FOLLOW_INTERVAL_S, RequestTable, follow, json_lines, report

    ask_admin = _admin_of(options)
    if options.capture is not None:
        answer = ask_admin("GET", f"/debug/requests/{quote(options.capture.rstrip('*'), safe='')}")
        for line in report(json.loads(answer)):
            print(line)
        return 0
    if not 1 <= options.lines <= REQUESTS_SHOWN_MAX:
        raise StartError(f"-n: a number from 1 to {REQUESTS_SHOWN_MAX}")
    of_revision = f"&revision={quote(key_of(options.name), safe='')}" if options.name else ""

    def goes_on() -> bool:
        return options.follow and not Event().wait(FOLLOW_INTERVAL_S)

    def ask(count: int) -> bytes:
        return ask_admin("GET", f"/debug/requests?n={count}{of_revision}")

    if options.name:
        _check_records(ask_admin, options.name, ask(1))

    def missed() -> None:
        print("some requests are not shown: there are more than can be asked for", file=sys.stderr)

    render = json_lines if options.json else RequestTable(options.follow).lines
    for line in follow(ask, options.lines, goes_on, render, missed):
        print(line, flush=True)
    return 0


def _check_records(ask_admin: Callable[[str, str], bytes], name: str, answer: bytes) -> None:
    """Report why `answer` has no request. Raises CommandError if the revision does not exist."""
    from activator.admin.revision_names import require

    decoded = json.loads(answer)
    if decoded["requests"]:
        return
    require(ask_admin, name)
    if decoded.get("recorded") == 0:
        print(
            f"{name} keeps no records of its requests; set `record: {{}}` for it, and reload the file", file=sys.stderr
        )


def _load_revision(options: argparse.Namespace, command: list[str] | None) -> int:
    query = "" if options.seconds is None else f"?for={quote(options.seconds)}"
    return _post_revision(options, f"/load/{quote(options.name)}{query}", f"loading {options.name}")


def _unload_revision(options: argparse.Namespace, command: list[str] | None) -> int:
    return _post_revision(options, f"/unload/{quote(options.name)}", f"unloading {options.name}")


def _drain_pod(options: argparse.Namespace, command: list[str] | None) -> int:
    path = f"/drain-pod/{quote(options.name)}?pod={quote(options.pod, safe='')}"
    return _post_revision(options, path, f"{options.pod} of {options.name} gets no more requests")


def _enable_pod(options: argparse.Namespace, command: list[str] | None) -> int:
    path = f"/enable-pod/{quote(options.name)}?pod={quote(options.pod, safe='')}"
    return _post_revision(options, path, f"{options.pod} of {options.name} is in service again")


def _end_member(options: argparse.Namespace, command: list[str] | None) -> int:
    return _post(options, f"/members/{options.seat}/ended", f"the silent member at seat {options.seat} counts as ended")


def _restart_revision(options: argparse.Namespace, command: list[str] | None) -> int:
    return _post_revision(options, f"/restart/{quote(options.name)}", f"restarting {options.name}")


def _upgrade(options: argparse.Namespace, command: list[str] | None) -> int:
    from activator.admin.client import RefusedError

    try:
        unless = f"?unless={activator.__version__}" if options.or_reload else ""
        outcome = json.loads(_admin_of(options, UPGRADE_TIMEOUT_S)("POST", f"/upgrade{unless}"))
    except RefusedError as error:
        for problem in error.problems:
            print(f"activator: {problem}", file=sys.stderr)
        return REFUSED
    if "process" not in outcome:
        print("reloaded" + "".join(f"; restart the activator to apply {key}" for key in outcome["needs_restart"]))
        return 0
    former = f"version {outcome['former_version']}, process {outcome['former_process']}"
    print(f"version {outcome['version']} serves in process {outcome['process']}; {former} finishes its requests")
    return 0


def _post_revision(options: argparse.Namespace, path: str, message: str) -> int:
    """Send the request about the revision `options.name`, and print `message`."""
    from activator.admin.client import RefusedError
    from activator.admin.revision_names import explain

    try:
        return _post(options, path, message)
    except RefusedError as error:
        explain(_admin_of(options), options.name, error)


def _post(options: argparse.Namespace, path: str, message: str) -> int:
    """Send the request, and print `message`."""
    _admin_of(options)("POST", path)
    print(message)
    return 0
