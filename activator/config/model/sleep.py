"""How a program is put to sleep and woken, in the place of a stop and a start."""

from __future__ import annotations

from typing import Annotated

import msgspec

from activator.config.model.kinds import Duration, Size, doc


class Sleep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state between running and stopped: it sleeps where it would be stopped, and is woken instead of started."""

    http_post: Annotated[
        str,
        doc("A path of the program: a POST to it puts the program to sleep, if it is answered with 2xx.", "/sleep"),
    ] = ""
    command: Annotated[
        list[str],
        doc(
            "A command that puts it to sleep, by the exit code 0. It is run as the program is, with `{port}` replaced.",
            ["modelctl", "unload", "{port}"],
        ),
    ] = []
    signal: Annotated[
        str,
        doc(
            "`SIGSTOP`: the whole process group stands still, and keeps its memory. It is woken by SIGCONT.",
            "SIGSTOP",
        ),
    ] = ""
    wake: Annotated[
        str | list[str],
        doc(
            "What wakes it: a path that gets a POST, or a command. Required, except with `signal`.",
            "/wake_up",
            ["modelctl", "load", "{port}"],
        ),
    ] = ""
    timeout: Annotated[
        Duration,
        doc(
            "The time that either may take. A program that does not sleep then is stopped, one that does not wake is "
            "started anew.",
            "2m",
        ),
    ] = Duration(60.0)
    for_: Annotated[
        Duration, doc("The time that it sleeps at the most; then it is stopped. 0: for as long as it is left.", "1h")
    ] = msgspec.field(name="for", default=Duration(0.0))
    needs: Annotated[
        dict[str, Size],
        doc(
            "What it keeps of the budget of its group while it sleeps. Not named: nothing; with `signal`: all that it "
            "needs when it runs. GPUs of `process.gpus` are kept.",
            {"memory": "16GiB"},
        ),
    ] = {}
