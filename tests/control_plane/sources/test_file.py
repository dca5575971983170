"""The fixed pods of the file: one for each address, however it is written."""

from __future__ import annotations

import pytest

from activator.config.model import Pod, Revision
from activator.control_plane.sources.file import canonical, listed
from activator.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:080", "127.0.0.1:80"),
        ("[0:0::1]:80", "[::1]:80"),
        ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
    ],
)
def test_an_address_is_written_in_one_way(text: str, address: str) -> None:
    assert canonical(text) == address


def test_a_name_without_an_address_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"pod no\.such\.invalid:80: cannot be resolved"):
        canonical("no.such.invalid:80")


def test_names_of_one_address_are_one_pod_with_the_weight_of_the_first(caplog: pytest.LogCaptureFixture) -> None:
    name = "localhost:9001"
    address = canonical(name)
    revision = Revision("a", pods=[Pod(name, 5), "127.0.0.2:9001", Pod(address, 7), name])
    pods = [(pod.identity, pod.address, pod.weight) for pod in listed(revision).pods]
    assert pods == [(address, address, 5), ("127.0.0.2:9001", "127.0.0.2:9001", 1)]
    assert f"default/a: {name} and {address} are one pod" in caplog.text
