"""What a worker is sent of the configuration: all of it, without secrets."""

from __future__ import annotations

from activator.config.file import parse
from activator.workers.messages import Reconfigure, encode, to_worker

TEXT = """
admin: {listen: 127.0.0.1:1, token: hidden-1}
push: {listen: 127.0.0.1:2, token: hidden-2}
limits: {held_bytes: 1MiB, idle: 5s}
revisions:
  - {name: a, hosts: [a], process: {command: [sh], environment: {KEY: hidden-3}}}
"""


def test_a_configuration_arrives_without_its_secrets() -> None:
    config = parse(TEXT, "a", {})
    data = encode([Reconfigure(config)])
    assert b"hidden" not in data
    (arrived,) = to_worker(data)
    assert isinstance(arrived, Reconfigure)
    assert arrived.config.limits == config.limits
    assert arrived.config.admin_address == config.admin_address
    assert arrived.config.push.token == ""
    assert arrived.config.revisions[0].process is not None
    assert arrived.config.revisions[0].process.environment == {"KEY": ""}
