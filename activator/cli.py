"""The command line: the commands, their exit codes, and one line for every mistake.

Exit codes: 0 success, 1 an invalid configuration, a failed check or a name that the running activator does not have,
2 wrong usage, 3 could not start, 4 the state worker kept failing.
"""

from __future__ import annotations

import argparse
import getpass
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import activator
from activator.admin_commands import ADMIN_TOKEN, add_admin_commands
from activator.command_line import REFUSED, USAGE, Parser, actions_of
from activator.config.model.file import Config
from activator.config.model.programs import Process, Readiness
from activator.config.model.revision import Revision
from activator.config.model.telemetry import LOG_LEVELS
from activator.config.specs import RevisionSpec
from activator.file_commands import add_file_commands
from activator.runtime.errors import CommandError, ConfigError, StartError, one_line
from activator.telemetry.logs.app_log import AppLog

if TYPE_CHECKING:
    from activator.config.manifest import Checked

NOT_STARTED = 3

# The default host to listen on, instead of 127.0.0.1. The image sets it, because 127.0.0.1 of a container cannot be
# reached from outside. `listen` in a file, a variable or an option takes precedence.
BIND_HOST = "ACTIVATOR_BIND_HOST"
LOOPBACK = "127.0.0.1"
UNITS = "/etc/systemd/system"
SHELLS = ("bash", "zsh", "fish")
NO_COMMAND = "add the program to start, as in `activator run -- python3 -m http.server {port}`"

Loaded = tuple[Config, list[RevisionSpec]]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    command: list[str] | None = None
    if "--" in words:
        dashes = words.index("--")
        words, command = words[:dashes], words[dashes + 1 :]
    parser = _parser()
    options, unknown = parser.parse_known_args(words)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        handler: Callable[[argparse.Namespace, list[str] | None], int] = options.handler
        return handler(options, command)
    except ConfigError as error:
        for problem in error.problems:
            print(f"activator: {problem}", file=sys.stderr)
        return REFUSED
    except (CommandError, StartError) as error:
        print(f"activator: {error}", file=sys.stderr)
        return REFUSED if isinstance(error, CommandError) else NOT_STARTED
    except BrokenPipeError:
        return NOT_STARTED
    except KeyboardInterrupt:
        return 130


def _parser() -> Parser:
    parser = Parser(
        prog="activator",
        description="A reverse proxy that starts a program on its first request and stops it when idle.",
        examples=(
            "activator run --listen 127.0.0.1:8080 -- python3 -m http.server {port}",
            "activator init program && activator run",
            "activator demo",
        ),
    )
    parser.add_argument("--version", action="version", version=_version_line())
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="serve the revisions of a file, or one command",
        examples=(
            "activator run -c activator.yaml",
            "activator run --listen 127.0.0.1:8080 -- uvicorn app:app --port {port}",
            "activator run --listen unix:/run/app.sock --admin '' -- ./server --socket {socket}",
        ),
        usage="activator run [-c FILE]\n       activator run [--listen ADDRESS] [--admin ADDRESS] -- CMD ...",
        description="Serve the revisions of a file, or one program that is started on the first request.\n"
        "`{port}` in CMD and $PORT are its port; with `{socket}` in CMD it listens on that\nUnix socket.",
    )
    run.add_argument("-c", "--config", metavar="FILE", help="configuration (default: activator.yaml)")
    run.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="the address to serve CMD on: a port, HOST:PORT or unix:/PATH (default: 127.0.0.1:8012)",
    )
    run.add_argument(
        "--admin", metavar="ADDRESS", help="the admin port, in the same form (default: 127.0.0.1:8008; empty: none)"
    )
    run.add_argument("--log-level", choices=LOG_LEVELS, help="overrides `log:` in the file (default: info)")
    run.set_defaults(handler=_run)
    demo = commands.add_parser(
        "demo",
        help="show a guided tour: a program scales from zero to several copies and back",
        examples=("activator demo",),
    )
    demo.set_defaults(handler=_demo)
    add_file_commands(commands)
    check = commands.add_parser(
        "check",
        help="validate a file and find its programs, or Activations in a manifest: exit 0, or 1 with every mistake",
        examples=("activator check activator.yaml", "activator check activation.yaml"),
    )
    check.add_argument("file", metavar="FILE", help="a configuration, or a manifest of a cluster")
    check.set_defaults(handler=_check)
    add_admin_commands(commands, _load)
    install = commands.add_parser(
        "install-service",
        help="write hardened systemd units that run a file",
        examples=(
            "activator install-service -c /srv/site/activator.yaml --print",
            "sudo activator install-service -c /srv/site/activator.yaml --run-as site",
        ),
    )
    install.add_argument("-c", "--config", metavar="FILE", default="activator.yaml", help="default: activator.yaml")
    install.add_argument(
        "--run-as", metavar="USER", default="", help="the user of the service (default: the calling user)"
    )
    install.add_argument(
        "--directory", metavar="DIR", default=UNITS, help=f"the directory for the units (default: {UNITS})"
    )
    install.add_argument("--print", action="store_true", help="print the units without writing them")
    install.set_defaults(handler=_install_service)
    version = commands.add_parser("version", help="print the version", examples=("activator version",))
    version.set_defaults(handler=_version)
    completion = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        examples=(
            "activator completion bash > ~/.local/share/bash-completion/completions/activator",
            "activator completion zsh > ~/.zfunc/_activator    # a folder of $fpath",
            "activator completion fish > ~/.config/fish/completions/activator.fish",
        ),
    )
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    completion.set_defaults(handler=_completion)
    helping = commands.add_parser(
        "help", help="show the help of a command", examples=("activator help", "activator help run")
    )
    topic = helping.add_argument("topic", metavar="COMMAND", nargs="?", help="the command (default: list all)")
    topic.choices = tuple(commands.choices)
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    helping.set_defaults(handler=_help, about={None: parser, **commands.choices})
    return parser


# --- commands -------------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace, command: list[str] | None) -> int:
    """Serve a file, or the command after `--`. Return the exit code."""
    from activator.config.tree import HANDOVER

    try:
        return _read_and_serve(options, command)
    except ConfigError as error:
        if HANDOVER in os.environ:  # an upgrade has started this process; `App` has not reported the error
            from activator.app.handover.taking import refuse

            refuse(os.environ, str(error))
        raise


def _read_and_serve(options: argparse.Namespace, command: list[str] | None) -> int:
    """Serve a file, or the command after `--`. Return the exit code. Raises ConfigError."""
    if command is not None:
        if options.config:
            print("activator: give either -c FILE or -- CMD, not both", file=sys.stderr)
            return USAGE
        if not command:
            print(f"activator: no command after `--`: {NO_COMMAND}", file=sys.stderr)
            return USAGE
        problem = _complete_addresses(options)
        if problem:
            print(f"activator: {problem}", file=sys.stderr)
            return USAGE
        loaded = _from_command(options, command)
        reload: Callable[[], Loaded] | None = None
    else:
        for name in ("listen", "admin"):
            if getattr(options, name) is not None:
                print(f"activator: --{name} goes with -- CMD; with a file, set `{name}:` there", file=sys.stderr)
                return USAGE
        path = options.config or "activator.yaml"

        def read() -> Loaded:
            return _load(path)

        from_environment = None if options.config or Path(path).is_file() else _from_knative()
        loaded = from_environment or read()
        reload = None if from_environment else read
    app_log = AppLog(sys.stderr, time.monotonic, options.log_level)
    app_log.install(loaded[0].log)
    return _serve(loaded, reload, app_log)


def _serve(loaded: Loaded, reload: Callable[[], Loaded] | None, app_log: AppLog) -> int:
    """Run the activator until it ends. Return its exit code."""
    import uvloop

    from activator.app import App, Settings, load, worker_count
    from activator.app.handover.taking import inheritance
    from activator.control_plane.sources.process.reaping import Reaping
    from activator.runtime import lean_import
    from activator.runtime.service_manager import ServiceManager
    from activator.runtime.sockets import pass_on
    from activator.runtime.unix_sockets import remove_all_files

    lean_import.prepare("aiohttp")
    _raise_descriptor_limit()  # before the workers are forked, which inherit it
    manager = ServiceManager(os.environ, os.getpid())
    pass_on(manager.sockets)
    inherited = inheritance(os.environ)
    reaping = Reaping.start() if inherited is None else inherited.reaping  # before the zygote, which closes the pipe
    zygote = None
    if worker_count(loaded[0]) > 1 or inherited is not None:
        from activator.workers.fork_server import fork_zygote

        load()
        zygote = fork_zygote()  # after the modules are loaded, before there is an event loop or a thread
    if zygote is not None:
        reaping.add_group(zygote.process)
        zygote.ended = reaping.remove_group

    async def serve() -> int:
        settings = Settings(*loaded, reload=reload)
        app = App(settings, reaping, app_log=app_log, manager=manager, zygote=zygote, inheritance=inherited)
        app.upgrades.is_possible = True
        try:
            code = await app.run()
        except Exception:
            if app.upgrades.own_front() is None:
                raise
            code = NOT_STARTED
            logging.getLogger("activator").exception("the former process of the activator has failed")
        if (front := app.upgrades.own_front()) is not None:
            remove_all_files()
            reaping.close()
            return await front.become_front()
        return code

    try:
        return uvloop.run(serve())
    finally:
        remove_all_files()
        reaping.close()


def _raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors as far as the system allows: a proxied request holds two."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _load(path: str) -> Loaded:
    """Return the configuration in the file at `path`. Raises ConfigError."""
    from activator.config.file import read_text

    _need_file(path, "name one with -c, start a program with -- CMD, or write one with `activator init`")
    return _loaded(read_text(path), path)


def _need_file(path: str, advice: str) -> None:
    """Raise ConfigError, with advice, if there is no file at `path`."""
    if Path(path).is_dir():
        raise ConfigError([f"{path} is a directory: name a file in it"])
    if not Path(path).is_file():
        raise ConfigError([f"{path}: there is no such file; {advice}"])


def _loaded(text: str, path: str) -> Loaded:
    """Return the configuration in the text of the file at `path`, which is not read again. Raises ConfigError."""
    from activator.config.file import parse, resolve
    from activator.config.policy_names import PolicyNames
    from activator.config.tree import read_tree
    from lb.registry import default_name

    config = parse(text, path, os.environ, PolicyNames())
    root = read_tree(text, path, os.environ, [])
    if root is not None and "listen" not in (root.entries or {}):
        config = bound(config, os.environ)
    return config, resolve(config, default_name)


def bound(config: Config, environ: Mapping[str, str]) -> Config:
    """Return the configuration; a default `listen` gets the host in the variable BIND_HOST of `environ`, if set."""
    host = environ.get(BIND_HOST, "")
    default = Config().listen
    if not host or config.listen != default:
        return config
    return msgspec.structs.replace(config, listen=f"{host}:{str(default).rpartition(':')[2]}")


def _complete_addresses(options: argparse.Namespace) -> str:
    """Complete the addresses in the options: a port alone gets a host of this machine. Return the mistake, if any."""
    from activator.config.checks import split_address
    from activator.runtime.unix_address import is_unix, problem_with

    for name, host in (("listen", os.environ.get(BIND_HOST) or LOOPBACK), ("admin", LOOPBACK)):
        typed = getattr(options, name)
        if not typed and (typed is None or name == "admin"):
            continue
        address = f"{host}:{typed}" if typed.isdecimal() else typed
        if is_unix(address):
            problem = problem_with(address)
            if problem:
                return f'--{name}: "{one_line(typed)}": {problem}'
        elif split_address(address, lowest_port=0) is None:
            return (
                f'--{name}: found "{one_line(typed)}", expected a port, host:port such as 127.0.0.1:8080, or unix:/path'
            )
        setattr(options, name, address)
    return ""


def _from_command(options: argparse.Namespace, command: list[str]) -> Loaded:
    """Return the configuration that serves one command with the options of `run`. Raises ConfigError."""
    from activator.config.checks import exposed_admin, is_same_listener
    from activator.config.file import overlay, resolve
    from activator.config.model.listeners import AdminListener
    from activator.control_plane.sources.process.child import missing_program
    from lb.registry import default_name

    missing = missing_program(command)
    if missing is not None:
        raise ConfigError([f"{missing}: there is no such program to run; check its spelling and the PATH"])
    revision = Revision(name="app", hosts=["*"], process=Process(command=command, readiness=Readiness()))
    config = overlay(Config(revisions=[revision]), os.environ)
    if "ACTIVATOR_LISTEN" not in os.environ:
        config = bound(config, os.environ)
    typed = {name: getattr(options, name) for name in ("listen", "admin") if getattr(options, name) is not None}
    if "admin" in typed and isinstance(config.admin, AdminListener):  # the environment gives it a token
        typed["admin"] = msgspec.structs.replace(config.admin, listen=options.admin, address="")
    config = msgspec.structs.replace(config, **typed)  # options override the environment
    exposed = exposed_admin(config.admin)
    if exposed:
        raise ConfigError([f"--admin: {exposed}; with -- CMD, set {ADMIN_TOKEN}"])
    if isinstance(config.listen, str) and is_same_listener(config.listen, config.admin_address):
        raise ConfigError(
            [f"{config.admin_address}: is the address of clients and the admin port: use another port for one"]
        )
    return config, resolve(config, default_name)


def _from_knative() -> Loaded | None:
    """Return the configuration for the environment of Knative's activator; None in another environment."""
    from activator.control_plane.sources.knative.environment import is_knative

    if not is_knative(os.environ):
        return None
    from activator.config.file import overlay, resolve
    from activator.config.policy_names import PolicyNames
    from activator.control_plane.sources.knative.config_maps import default_config
    from activator.control_plane.sources.knative.environment import read_environment
    from lb.registry import default_name

    config = overlay(default_config(read_environment(os.environ)), os.environ, PolicyNames())
    return config, resolve(config, default_name)


def _check(options: argparse.Namespace, command: list[str] | None) -> int:
    from activator.config.file import read_text
    from activator.config.machine_checks import machine_problems
    from activator.config.tree import read_tree

    manifest = _manifest(options.file)
    if manifest is not None:
        if manifest.problems:
            raise ConfigError(manifest.problems)
        activations = f"{manifest.activations} Activation{'' if manifest.activations == 1 else 's'}"
        others = f"{manifest.others} other object{'' if manifest.others == 1 else 's'}"
        print(f"{options.file}: fine, {activations}, {others}")
        return 0
    _need_file(options.file, "`activator init` writes one")
    text = read_text(options.file)
    config, _ = _loaded(text, options.file)
    root = read_tree(text, options.file, os.environ, [])
    problems = [] if root is None else machine_problems(config, root, os.environ)
    if problems:
        raise ConfigError(problems)
    count = len(config.revisions)
    print(f"{options.file}: fine, {count} revision{'' if count == 1 else 's'}")
    return 0


def _manifest(path: str) -> Checked | None:
    """Check a file of Kubernetes objects; None if it is not one, or cannot be read."""
    from activator.config.manifest import check_manifest
    from activator.config.policy_names import PolicyNames

    try:
        text = Path(path).read_text("utf-8")
    except (OSError, ValueError):
        return None  # `_load` reports it
    return check_manifest(text, path, PolicyNames())


def _demo(options: argparse.Namespace, command: list[str] | None) -> int:
    from activator.demo import run

    return run()


def _install_service(options: argparse.Namespace, command: list[str] | None) -> int:
    from activator.systemd_units import install, units

    config, _ = _load(options.config)
    user = options.run_as or os.environ.get("SUDO_USER") or getpass.getuser()
    texts = units(Path(options.config).resolve(), config, user, [sys.executable, "-m", "activator.cli"])
    if options.print:
        print("\n".join(f"# {name}\n{text}" for name, text in texts.items()), end="")
        return 0
    for line in install(texts, Path(options.directory)):
        print(line)
    return 0


def _completion(options: argparse.Namespace, command: list[str] | None) -> int:
    import shtab

    parser = _parser()
    for action in actions_of(parser):
        if action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


def _help(options: argparse.Namespace, command: list[str] | None) -> int:
    options.about[options.topic].print_help()
    return 0


def _version(options: argparse.Namespace, command: list[str] | None) -> int:
    print(_version_line())
    return 0


def _version_line() -> str:
    return f"activator {activator.__version__} ({'compiled' if activator.COMPILED else 'plain Python'})"


if __name__ == "__main__":
    sys.exit(main())
