"""Units of systemd for one configuration file: a service that reports readiness, and sockets that outlive it.

Rules
  1. systemd opens the sockets: connections during a restart are not refused but wait in the backlog
     (`runtime/service_manager.py`). That is possible only for numeric addresses and Unix sockets. The service binds all
     others itself, and all ports with several workers, each of which has a socket of its own.
  2. A unit has one mode, owner and group for all of its sockets: Unix sockets that differ have a unit each.
  3. The service is hardened as far as the programs that it starts, which are unknown, are likely to tolerate.
  4. A unit with the same name that was not written by this command is never replaced.
"""

from __future__ import annotations

import ipaddress
import shlex
from pathlib import Path
from typing import Final

from activator.config.model.file import Config
from activator.config.model.listeners import address_of_listener
from activator.runtime.errors import StartError
from activator.runtime.sockets import LISTEN_BACKLOG
from activator.runtime.unix_address import is_unix, path_of
from activator.runtime.unix_sockets import SocketAccess

NAME: Final = "activator"
MARK: Final = "# Written by `activator install-service`; it may be written again. Changes: systemctl edit activator"

_SERVICE: Final = """\
[Unit]
Description=Activator: starts programs on their first request
Wants=network-online.target
After=network-online.target{sockets}

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload={reload}
WorkingDirectory={directory}
User={user}
Restart=always
RestartSec=1
RestartPreventExitStatus=1 2
WatchdogSec=30
KillMode=mixed
LimitNOFILE=65536
RuntimeDirectory=activator
RuntimeDirectoryPreserve=yes
StateDirectory=activator
Delegate=yes
NoNewPrivileges=yes
ProtectSystem=full
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectClock=yes
ProtectHostname=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""

_SOCKET: Final = """\
[Unit]
Description=Sockets of the activator

[Socket]
{listens}
Backlog={backlog}
{settings}

[Install]
WantedBy=sockets.target
"""


def units(file: Path, config: Config, user: str, program: list[str]) -> dict[str, str]:
    """Return the units, name → text. `file`: absolute; `program`: the command line of the activator."""
    sockets = _sockets(config, user)
    names = " ".join(sockets)
    command = [*program, "run", "-c", str(file)]
    upgrade = [*program, "upgrade", "--or-reload", "-c", str(file)]
    service = _SERVICE.format(
        reload=_command(upgrade) if config.admin_address else "/bin/kill -HUP $MAINPID",
        sockets=f"\nRequires={names}\nAfter={names}" if sockets else "",
        command=_command(command),
        directory=_escaped(str(file.parent)),
        user=user,
    )
    texts = {f"{NAME}.service": service, **sockets}
    return {name: f"{MARK}\n{text}" for name, text in texts.items()}


def _command(words: list[str]) -> str:
    return " ".join(_escaped(shlex.quote(word)) for word in words)


def _sockets(config: Config, user: str) -> dict[str, str]:
    """Return the socket units: one for ports, one for each kind of access to Unix sockets."""
    listeners = config.listen if isinstance(config.listen, list) else [config.listen]
    addresses = [address_of_listener(listener) for listener in listeners]
    ports = [address for address in map(stream_of, addresses) if address] if config.workers == 1 else []
    sockets = {f"{NAME}.socket": _socket(ports, "NoDelay=yes")} if ports else {}
    paths: dict[SocketAccess, list[str]] = {}
    for listener, address in zip(listeners, addresses):
        if is_unix(address):
            access = SocketAccess() if isinstance(listener, str) else listener.access()
            paths.setdefault(access, []).append(_escaped(path_of(address)))
    for number, (access, listens) in enumerate(paths.items(), 1):
        group = f"\nSocketGroup={access.group}" if access.group else ""
        settings = f"SocketMode={access.mode:04o}\nSocketUser={access.owner or user}{group}\nService={NAME}.service"
        sockets[f"{NAME}-unix{'' if number == 1 else number}.socket"] = _socket(
            listens, f"{settings}\nRemoveOnStop=yes"
        )
    return sockets


def _socket(listens: list[str], settings: str) -> str:
    """Return the text of a socket unit; `settings` are more lines of its section `[Socket]`."""
    lines = "\n".join(f"ListenStream={address}" for address in listens)
    return _SOCKET.format(listens=lines, backlog=LISTEN_BACKLOG, settings=settings)


def stream_of(address: str) -> str:
    """Return the ListenStream of `host:port`; empty if systemd cannot open it as the activator would."""
    host, _, port = address.rpartition(":")
    try:
        parsed = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return ""
    if port == "0":
        return ""
    return f"[{parsed}]:{port}" if parsed.version == 6 else f"{parsed}:{port}"


def install(texts: dict[str, str], directory: Path) -> list[str]:
    """Write the units; return the next steps, as lines. Raises StartError."""
    for name in texts:
        path = directory / name
        if path.exists() and not path.read_text("utf-8", "replace").startswith(MARK[:40]):
            raise StartError(f"{path} is not ours: remove it, or give another --directory; nothing was written")
    for name, text in texts.items():
        path = directory / name
        try:
            temporary = path.with_suffix(path.suffix + ".new")
            temporary.write_text(text, "utf-8")
            temporary.chmod(0o644)
            temporary.replace(path)
        except OSError as error:
            reason = error.strerror or "not possible"
            raise StartError(f"{path} cannot be written: {reason}; be root, or give another --directory") from error
    names = " ".join(texts)
    return [
        *(f"wrote {directory / name}" for name in texts),
        "now: systemctl daemon-reload",
        f"     systemctl enable --now {names}",
    ]


def _escaped(text: str) -> str:
    """Escape systemd's special characters: `%` begins a specifier, `$` a variable."""
    return text.replace("%", "%%").replace("$", "$$")
