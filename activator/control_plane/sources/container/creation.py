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
    host_config: dict[str, Any] = {"Binds": volumes_of(container, environ)}
    body: dict[str, Any] = {
        "Image": container.image,
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Labels": {**container.labels, **labels},
        "HostConfig": host_config,
    }
    for key, words in (("Cmd", container.command), ("Entrypoint", container.entrypoint)):
        if words:
            body[key] = [word.replace("{port}", str(port or "")) for word in words]
    texts = {"WorkingDir": container.directory, "User": container.user, "StopSignal": container.stop.signal}
    body.update({key: text for key, text in texts.items() if text})
    if container.memory:
        host_config["Memory"] = int(container.memory)
    if container.cpus:
        host_config["NanoCpus"] = round(container.cpus * _NANO)
    if container.network:
        host_config["NetworkMode"] = container.network
    if container.init:
        host_config["Init"] = True
    devices = [{"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in container.devices]
    if gpus and is_podman:
        devices += [{"PathOnHost": f"nvidia.com/gpu={gpu}"} for gpu in gpus]
    elif gpus:
        host_config["DeviceRequests"] = [{"Driver": "nvidia", "DeviceIDs": list(gpus), "Capabilities": [["gpu"]]}]
    if devices:
        host_config["Devices"] = devices
    if port is not None and not is_own_address and container.network != HOST_NETWORK:
        name = f"{port}/tcp"
        body["ExposedPorts"] = {name: {}}
        host_config["PortBindings"] = {name: [{"HostIp": LOOPBACK_4, "HostPort": ""}]}  # port chosen by the engine
    return body


def port_of(container: Container, inspected: Mapping[str, Any]) -> int | None:
    """Return the program's port; None if `inspected`, the image or the container, exposes none or several."""
    if container.port is not None:
        return container.port
    exposed = _mapping(_mapping(inspected.get("Config")).get("ExposedPorts"))
    published = _mapping(_mapping(inspected.get("HostConfig")).get("PortBindings"))
    names = {*exposed, *published}
    ports = [int(name[:-4]) for name in names if name.endswith("/tcp") and name[:-4].isdecimal()]
    return ports[0] if len(ports) == 1 else None


def has_own_address(container: Container, address: str) -> bool:
    """Return True if the container is reached at its own IP address. `address`: the setting for all containers."""
    return (container.address or address) == OWN


def address_of(container: Container, inspected: Mapping[str, Any], port: int, kind: str) -> str:
    """Return the address of a running container; empty if it has none. `kind`: `published` or `own`."""
    settings = _mapping(inspected.get("NetworkSettings"))
    if _mapping(inspected.get("HostConfig")).get("NetworkMode") == HOST_NETWORK:
        return join_address(LOOPBACK_4, port)
    published = "" if kind == OWN else _published(_mapping(settings.get("Ports")).get(f"{port}/tcp"))
    return published or _own(settings, container.network, port)


def _published(bindings: Any) -> str:
    """Return the address of a published port, IPv4 first; empty if it is not published."""
    addresses = []
    for binding in bindings if isinstance(bindings, list) else []:
        host, port = str(_mapping(binding).get("HostIp") or ""), str(_mapping(binding).get("HostPort") or "")
        if port.isdecimal() and int(port):
            host = {"": LOOPBACK_4, "0.0.0.0": LOOPBACK_4, "::": "::1"}.get(host, host)
            addresses.append(join_address(host, int(port)))
    return min(addresses, key=lambda address: address.startswith("["), default="")


def _own(settings: Mapping[str, Any], network: str, port: int) -> str:
    """Return the container's address in its configured network, or else in any; empty if it has none."""
    networks = _mapping(settings.get("Networks"))
    first = [networks[network]] if network in networks else []
    for entry in [*first, *networks.values(), settings]:
        address = str(_mapping(entry).get("IPAddress") or "")
        if address:
            return join_address(address, port)
    return ""


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return a value that is a mapping; an engine may leave it out or send null, which count as empty."""
    return value if isinstance(value, dict) else {}
