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


def test_secrets_in_header_rules_parameters_and_urls_are_hidden() -> None:
    text = """
revisions:
- name: a
  hosts: [a]
  pods: ["127.0.0.1:1"]
  headers: {request: {set: {Authorization: Bearer inner-secret}, append: {X-Key: other-secret}}}
  set_params: {api_key: third-secret, temperature: 0.5, extra: {password: fourth-secret, n: 1}}
  forward_auth: {url: "http://127.0.0.1:9/verify?token=fifth-secret&app=a"}
"""
    shown = configuration(parse(text, "f", {}))
    assert "-secret" not in msgspec.json.encode(shown).decode()
    (revision,) = shown["revisions"]
    assert revision["headers"]["request"]["set"] == {"Authorization": "…"}
    assert revision["set_params"]["temperature"] == 0.5 and revision["set_params"]["extra"]["n"] == 1
    assert revision["forward_auth"]["url"].endswith("&app=a")


def test_any_parameter_is_shown() -> None:
    text = "revisions: [{name: a, hosts: [a], pods: ['127.0.0.1:1'], set_params: {u: ['http://x', {b: 'y@z'}, 1]}}]"
    assert configuration(parse(text, "f", {}))["revisions"][0]["set_params"] == {"u": ["http://x", {"b": "y@z"}, 1]}
