"""Programs in containers, and the engine that runs them: Docker's or Podman's."""

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Duration, Port, Secret, Size, doc
from activator.config.model.programs import Program

PULLS: Final = ("missing", "never", "always")
PUBLISHED: Final = "published"
OWN: Final = "own"
CONTAINER_ADDRESSES: Final = (PUBLISHED, OWN)
HOST_NETWORK: Final = "host"

Processors = Annotated[float, msgspec.Meta(ge=0.0, le=4096.0)]


class ContainerStop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a container that has no request any more."""

    signal: Annotated[
        str,
        doc("The name of the signal that it gets first. Empty: the one of its image, or SIGTERM.", "SIGINT"),
    ] = ""
    grace: Annotated[Duration, doc("The time that it has to end after that. Longer: SIGKILL.", "20s")] = Duration(10.0)


class Container(Program, frozen=True, forbid_unknown_fields=True):
    """A program in containers. Each one is a pod; the activator creates, starts, stops and removes them by load."""

    image: Annotated[
        str, doc("The image of the containers. Either this or `existing`.", "docker.io/library/nginx:alpine")
    ] = ""
    existing: Annotated[
        str,
        doc(
            "The name of an existing container, which is started by the first request, stopped when idle, and neither "
            "removed nor stopped when the activator exits.",
            "jellyfin",
        ),
    ] = ""
    port: Annotated[
        Port | None,
        doc(
            "The port of the program within the container, also in the variable `PORT`. Not set: the one port that "
            "the image exposes.",
            8080,
        ),
    ] = None
    name: Annotated[
        str,
        doc(
            "The name of the container; there is only one copy then. Empty: generated names.",
            "model-a",
        ),
    ] = ""
    command: Annotated[
        list[str],
        doc(
            "The command, or the arguments of the entry point, instead of the image's. `{port}` is replaced by the "
            "port within the container.",
            ["serve", "--port", "{port}"],
        ),
    ] = msgspec.field(default_factory=list)
    entrypoint: Annotated[list[str], doc("The entry point, instead of the image's.", ["sh", "-c"])] = msgspec.field(
        default_factory=list
    )
    pull: Annotated[
        str,
        doc(
            "When the image is pulled. `missing`: only if the engine does not have it. `never`: fail if it is missing. "
            "`always`: at every start.",
            "never",
            words=PULLS,
        ),
    ] = "missing"
    environment: Annotated[
        dict[str, Secret],
        doc("Variables, added to those of the image and of `env_file`.", {"MODEL": "small"}),
    ] = msgspec.field(default_factory=dict)
    env_file: Annotated[
        str,
        doc(
            "A file with more variables, one `KEY=VALUE` per line; read at each start. `~`, `$VAR` and `${VAR}` are "
            "expanded.",
            ".env",
        ),
    ] = ""
    volumes: Annotated[
        list[str],
        doc(
            "Mounts, each as `SOURCE:TARGET` or `SOURCE:TARGET:OPTIONS`. A source with a slash is a path of this "
            "machine, in which `~`, `$VAR` and `${VAR}` are expanded; it must exist. One without is a volume of the "
            "engine.",
            ["./models:/models:ro", "cache:/var/cache"],
        ),
    ] = msgspec.field(default_factory=list)
    devices: Annotated[
        list[str], doc("Devices of this machine that the program may use.", ["/dev/dri", "/dev/kfd"])
    ] = msgspec.field(default_factory=list)
    directory: Annotated[str, doc("The working directory within the container. Empty: that of the image.", "/app")] = ""
    user: Annotated[str, doc("The user within the container. Empty: that of the image.", "1000:1000")] = ""
    memory: Annotated[Size, doc("The memory of a container; beyond that it is killed. 0: no limit.", "2GiB")] = Size(0)
    cpus: Annotated[Processors, doc("The processors that a container may use. 0: no limit.", 1.5)] = 0.0
    network: Annotated[
        str,
        doc(
            "The network of the engine that containers join. `host`: that of this machine, with one copy. Empty: the "
            "engine's default.",
            "models",
        ),
    ] = ""
    labels: Annotated[
        dict[str, str], doc("Labels of the containers, beside those of the activator.", {"team": "ml"})
    ] = msgspec.field(default_factory=dict)
    init: Annotated[
        bool,
        doc("If true, an init process runs as PID 1, so that a program without signal handlers ends on SIGTERM.", True),
    ] = False
    stop: Annotated[ContainerStop, doc("How a container is ended.")] = ContainerStop()
    address: Annotated[
        str,
        doc(
            "How a container is reached. `published`: at a port of 127.0.0.1 that the engine publishes (an existing "
            "container without one: at its own address). `own`: at its own address, for an activator in a container. "
            "Empty: as `containers.address`.",
            OWN,
            words=("", *CONTAINER_ADDRESSES),
        ),
    ] = ""
    engine: Annotated[
        str,
        doc("The socket of the engine. Empty: as `containers.engine`.", "unix:/run/podman/podman.sock"),
    ] = ""

    @property
    def copies_max(self) -> int | None:
        """The largest possible number of copies, or None for any number."""
        return 1 if self.existing or self.name or self.network == HOST_NETWORK else None


class Containers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The container engine of this machine, for all revisions with `container`."""

    engine: Annotated[
        str,
        doc(
            "The Unix socket of Docker or Podman. Empty: the one of `DOCKER_HOST` or `CONTAINER_HOST`, else the first "
            "existing one of /var/run/docker.sock, /run/podman/podman.sock and the user's podman/podman.sock.",
            "unix:/run/podman/podman.sock",
        ),
    ] = ""
    discover: Annotated[
        bool,
        doc(
            "If true, containers with the label `activator.enable=true` become revisions, configured by their labels "
            "([containers](containers.md#labels)).",
            True,
        ),
    ] = False
    address: Annotated[
        str, doc("How containers are reached: see `container.address`.", OWN, words=CONTAINER_ADDRESSES)
    ] = PUBLISHED
    patience: Annotated[
        Duration,
        doc("How long a start waits for an engine that does not answer.", "30s"),
    ] = Duration(10.0)
    pull_timeout: Annotated[
        Duration, doc("The time limit of an image pull. A pull without progress fails after 60 s.", "1h")
    ] = Duration(900.0)
