"""The short form of model servers."""

from typing import Annotated, Final

import msgspec

from activator.config.model.hooks import Hooks
from activator.config.model.kinds import Count, Duration, Json, Port, Secret, Size, doc
from activator.config.model.programs import Readiness, Stop
from activator.config.model.queueing import Queue
from activator.config.model.records import Record

MODELS_GROUP: Final = "models"  # the group of all models that no other group names
MODEL_HEALTH_PATH: Final = "/health"
MODEL_IDLE_S: Final = 600.0
MODEL_STARTUP_S: Final = 600.0
MODEL_TOTAL_S: Final = 3600.0  # a long answer takes more than the five minutes of other revisions


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model server: a revision whose requests name the model in their body. A text is its `command`."""

    command: Annotated[
        str | list[str],
        doc(
            "The program and its arguments, as in `process`: in one line, or as a list.",
            "llama-server -m llama.gguf --port {port}",
        ),
    ]
    aliases: Annotated[list[str], doc("Other names of the model.", ["gpt-4o-mini"])] = []
    rewrite_model: Annotated[
        str, doc("The name that the program receives in place of the model's, and of `aliases`.", "llama")
    ] = ""
    set_params: Annotated[dict[str, Json], doc("As in `revisions`.", {"temperature": 0.6})] = {}
    strip_params: Annotated[list[str], doc("As in `revisions`.", ["top_p"])] = []
    needs: Annotated[
        dict[str, Size],
        doc(
            "The amounts that it needs of the budget of the group `models`, which is declared in `groups` without "
            "`members`. Without that group, one model is loaded at a time.",
            {"gpu_memory": "10GiB"},
        ),
    ] = {}
    exclusive: Annotated[
        bool, doc("If true, it is loaded only while no other model is. Without effect if it has `needs`.", False)
    ] = True
    idle: Annotated[Duration, doc("The time without a request after which it is unloaded.", "30m")] = Duration(
        MODEL_IDLE_S
    )
    container_concurrency: Annotated[Count, doc("The number of requests in it at the same time. 0: no limit.", 4)] = 0
    queue: Annotated[Queue, doc("The queue of waiting requests, as in `revisions`.")] = Queue()
    startup: Annotated[Duration, doc("How long loading may take.", "20m")] = Duration(MODEL_STARTUP_S)
    readiness: Annotated[
        Readiness | None,
        doc(f"How it is probed before it gets requests. Not set: `http_get: {MODEL_HEALTH_PATH}`."),
    ] = None
    port: Annotated[Port | str | None, doc("The port of a program that has a fixed one, as in `process`.", 8000)] = None
    preload: Annotated[bool, doc("If true, it is loaded when the activator starts.", True)] = False
    record: Annotated[Record | None, doc("The records of its requests, as in `revisions`.")] = None
    stop: Annotated[Stop | None, doc("How it is stopped, as in `process`.")] = None
    hooks: Annotated[Hooks | None, doc("Actions after its load and before its unload, as in `process`.")] = None
    directory: Annotated[str, doc("The working directory, as in `process`.", "~/models")] = ""
    environment: Annotated[
        dict[str, Secret], doc("Environment variables, as in `process`.", {"CUDA_VISIBLE_DEVICES": "0"})
    ] = {}
