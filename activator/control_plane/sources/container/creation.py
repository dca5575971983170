"""The request that creates a container of a revision: its body, with the labels that mark the container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from activator.config.model.containers import HOST_NETWORK, OWN, Container
from activator.config.programs import container_variables, volumes_of
from activator.runtime.local_listeners import LOOPBACK_4
from activator.runtime.sockets import join_address

INSTANCE_LABEL: Final = "activator.instance"  # the run of the activator that made it
OWNER_LABEL: Final = "activator.owner"  # the reaper of that run, to find out whether the run has ended (`owner.py`)
MAKER_LABEL: Final = "activator.maker"  # the process of that run that made the container
IDENTITY_LABEL: Final = "activator.identity"  # the identity of the pod
REVISION_LABEL: Final = "activator.revision"

_NANO: Final = 1_000_000_000


def creation_of(
    container: Container,
    port: int | None,
    labels: Mapping[str, str],
    gpus: tuple[str, ...],
    is_own_address: bool,
    is_podman: bool,
    environ: Mapping[str, str],
) -> dict[str, Any]:
    """Return the body of the request. `port`: in the container; None: no port is published. Raises ConfigError."""
    variables = container_variables(container, environ)
    if port is not None:
        variables = {"PORT": str(port), **variables}
    host: dict[str, Any] = {"Binds": volumes_of(container, environ)}
    made: dict[str, Any] = {
        "Image": container.image,
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Labels": {**container.labels, **labels},
        "HostConfig": host,
    }
    for key, words in (("Cmd", container.command), ("Entrypoint", container.entrypoint)):
        if words:
            made[key] = [word.replace("{port}", str(port or "")) for word in words]
    texts = {"WorkingDir": container.directory, "User": container.user, "StopSignal": container.stop.signal}
    made.update({key: text for key, text in texts.items() if text})
    if container.memory:
        host["Memory"] = int(container.memory)
    if container.cpus:
        host["NanoCpus"] = round(container.cpus * _NANO)
    if container.network:
        host["NetworkMode"] = container.network
    if container.init:
        host["Init"] = True
    devices = [{"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in container.devices]
    if gpus and is_podman:
        devices += [{"PathOnHost": f"nvidia.com/gpu={gpu}"} for gpu in gpus]
    elif gpus:
        host["DeviceRequests"] = [{"Driver": "nvidia", "DeviceIDs": list(gpus), "Capabilities": [["gpu"]]}]
    if devices:
        host["Devices"] = devices
    if port is not None and not is_own_address and container.network != HOST_NETWORK:
        name = f"{port}/tcp"
        made["ExposedPorts"] = {name: {}}
        host["PortBindings"] = {name: [{"HostIp": LOOPBACK_4, "HostPort": ""}]}  # port chosen by the engine
    return made


def port_of(container: Container, shown: Mapping[str, Any]) -> int | None:
    """Return the port on which the program listens. `shown`: the inspected image or container."""
    if container.port is not None:
        return container.port
    exposed = _mapping(_mapping(shown.get("Config")).get("ExposedPorts"))
    published = _mapping(_mapping(shown.get("HostConfig")).get("PortBindings"))
    names = {*exposed, *published}
    found = [int(name[:-4]) for name in names if name.endswith("/tcp") and name[:-4].isdecimal()]
    return found[0] if len(found) == 1 else None


def way_of(container: Container, address: str) -> bool:
    """Return True if the container is reached at its own IP address. `address`: the setting for all containers."""
    return (container.address or address) == OWN


def address_of(container: Container, shown: Mapping[str, Any], port: int, way: str) -> str:
    """Return the address of a running container; empty if it has none."""
    settings = _mapping(shown.get("NetworkSettings"))
    if _mapping(shown.get("HostConfig")).get("NetworkMode") == HOST_NETWORK:
        return join_address(LOOPBACK_4, port)
    published = "" if way == OWN else _published(_mapping(settings.get("Ports")).get(f"{port}/tcp"))
    return published or _own(settings, container.network, port)


def _published(bindings: Any) -> str:
    found = []
    for one in bindings if isinstance(bindings, list) else []:
        host, port = str(_mapping(one).get("HostIp") or ""), str(_mapping(one).get("HostPort") or "")
        if port.isdecimal() and int(port):
            found.append(join_address({"": LOOPBACK_4, "0.0.0.0": LOOPBACK_4, "::": "::1"}.get(host, host), int(port)))
    return min(found, key=lambda address: address.startswith("["), default="")


def _own(settings: Mapping[str, Any], network: str, port: int) -> str:
    networks = _mapping(settings.get("Networks"))
    first = [networks[network]] if network in networks else []
    for one in [*first, *networks.values(), settings]:
        address = str(_mapping(one).get("IPAddress") or "")
        if address:
            return join_address(address, port)
    return ""


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return a value that is a mapping; an engine may leave it out or send null, which count as empty."""
    return value if isinstance(value, dict) else {}
