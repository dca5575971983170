"""Actions at the beginning and the end of a program's life."""

from typing import Annotated

import msgspec

from activator.config.model.kinds import Duration, Json, doc


class Hook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One action: a POST to the program, or a command."""

    http_post: Annotated[str, doc("A path: a POST that is answered with 2xx is success.", "/slots/0?action=save")] = ""
    body: Annotated[
        dict[str, Json], doc("The JSON object that the POST sends. Empty: no body.", {"filename": "llama.bin"})
    ] = {}
    command: Annotated[
        list[str],
        doc(
            "A command; exit code 0 is success. It is run as the program is, with `{port}` replaced.",
            ["modelctl", "save", "{port}"],
        ),
    ] = []
    timeout: Annotated[Duration, doc("Its time limit.", "2m")] = Duration(30.0)


class Hooks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Actions that run one after the other; a failure is logged, and has no other effect."""

    after_start: Annotated[list[Hook], doc("When a copy has become ready, before its first request.")] = []
    before_stop: Annotated[list[Hook], doc("When the last request of a copy has ended, before it is stopped.")] = []

    def all(self) -> list[Hook]:
        return [*self.after_start, *self.before_stop]

    def words(self) -> list[str]:
        """Return the words of all commands."""
        return [word for hook in self.all() for word in hook.command]
