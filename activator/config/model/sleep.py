"""Sleep and wake of a program, instead of a stop and a start."""

from typing import Annotated

import msgspec

from activator.config.model.kinds import Duration, Size, doc


class Sleep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state between running and stopped: it is put to sleep instead of stopped, and woken instead of started."""

    http_post: Annotated[
        str,
        doc("A path: a POST that is answered with 2xx puts the program to sleep.", "/sleep"),
    ] = ""
    command: Annotated[
        list[str],
        doc(
            "A command that puts it to sleep; exit code 0 is success. It is run as the program is, with `{port}` "
            "replaced.",
            ["modelctl", "unload", "{port}"],
        ),
    ] = []
    signal: Annotated[
        str,
        doc(
            "`SIGSTOP`: the whole process group is stopped, and keeps its memory. SIGCONT wakes it.",
            "SIGSTOP",
        ),
    ] = ""
    wake: Annotated[
        str | list[str],
        doc(
            "How it is woken: a path that gets a POST, or a command. Required, except with `signal`.",
            "/wake_up",
            ["modelctl", "load", "{port}"],
        ),
    ] = ""
    timeout: Annotated[
        Duration,
        doc(
            "The time limit of each. A program that does not fall asleep in time is stopped; one that does not wake is "
            "restarted.",
            "2m",
        ),
    ] = Duration(60.0)
    for_: Annotated[Duration, doc("The longest sleep; then it is stopped. 0: no limit.", "1h")] = msgspec.field(
        name="for", default=Duration(0.0)
    )
    needs: Annotated[
        dict[str, Size],
        doc(
            "The amounts of its group's budget that it keeps while it sleeps. Default: nothing; with `signal`: all of "
            "`needs`. It keeps its GPUs.",
            {"memory": "16GiB"},
        ),
    ] = {}
