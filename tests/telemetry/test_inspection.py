"""What /debug/config shows, and what it hides."""

from __future__ import annotations

import msgspec

from activator.admin.inspection import configuration
from activator.config.file import parse
from activator.config.model.file import Config
from activator.config.model.kinds import Duration, Secret
from activator.config.model.programs import Process
from activator.config.model.revision import Revision


def test_values_of_environment_variables_are_hidden() -> None:
    process = Process(command=["x"], environment={"TOKEN": Secret("very secret")}, idle=Duration(5.0))
    shown = configuration(Config(revisions=[Revision(name="a", process=process), Revision(name="b", pods=["h:1"])]))
    text = msgspec.json.encode(shown).decode()
    assert "very secret" not in text
    assert shown["revisions"][0]["process"]["environment"] == {"TOKEN": "…"}
    assert shown["revisions"][0]["process"]["idle"] == 5.0
    assert shown["revisions"][1]["process"] is None
    assert process.environment == {"TOKEN": "very secret"}


def test_parameters_are_shown_as_values() -> None:
    text = "revisions: [{name: a, hosts: [a], pods: ['127.0.0.1:1'], set_params: {t: 0.5, u: ['http://me:secret@x/']}}]"
    shown = configuration(parse(text, "f", {}))
    assert shown["revisions"][0]["set_params"] == {"t": 0.5, "u": ["http://…@x/"]}
