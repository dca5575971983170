"""The Secret and the trust bundles of system-internal TLS, as they are written, half-written and taken away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from activator.control_plane.sources.knative.internal_tls import InternalTls
from activator.runtime.certificates import NO_AUTHORITIES


class World:
    def __init__(self) -> None:
        self.changes = 0
        self.tls = InternalTls("127.0.0.1:8112", self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def believed(self) -> str:
        return self.tls.of("default").ca

    def has_certificate(self) -> bool:
        return self.tls.has_certificate

    def had_authority(self) -> bool:
        return self.tls.had_authority

    def served(self) -> bytes:
        return Path(self.tls.listener.certificate).read_bytes()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.tls.close()


def secret(authority: trustme.CA, with_authority: bool = True) -> dict[str, bytes]:
    issued = authority.issue_cert("kn-routing")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    data = {"tls.crt": chain, "tls.key": issued.private_key_pem.bytes()}
    return {**data, "ca.crt": authority.cert_pem.bytes()} if with_authority else data


def test_a_secret_that_is_being_written_changes_nothing(world: World) -> None:
    first, second = secret(trustme.CA()), secret(trustme.CA())
    world.tls.set_secret({})
    assert (world.changes, world.has_certificate(), world.believed()) == (0, False, NO_AUTHORITIES)
    world.tls.set_secret(first)
    believed = world.believed()
    assert (world.changes, world.has_certificate()) == (1, True)
    assert first["ca.crt"].decode().strip() in believed
    half = [
        {},
        {"ca.crt": second["ca.crt"]},
        {**first, "tls.crt": second["tls.crt"], "ca.crt": b""},
        {**second, "tls.key": first["tls.key"]},
        {**second, "tls.crt": second["tls.crt"][: len(second["tls.crt"]) // 2]},
        {**second, "tls.key": b""},
    ]
    for data in half:
        world.tls.set_secret(data)
        assert (world.believed(), world.served(), world.changes) == (believed, first["tls.crt"], 1)
    world.tls.set_secret(second)
    assert world.changes == 2 and world.served() == second["tls.crt"]
    assert second["ca.crt"].decode().strip() in world.believed() and first["ca.crt"].decode() not in world.believed()


def test_that_nobody_is_believed_any_more_is_told_once_there_was_somebody(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.tls.set_secret(secret(trustme.CA(), with_authority=False))
    assert not world.had_authority() and caplog.messages == []
    world.tls.set_bundle("bundle", {"a": trustme.CA().cert_pem.bytes().decode()})
    assert world.had_authority() and caplog.messages == []
    world.tls.set_bundle("bundle", {})
    assert world.had_authority(), "what has begun goes on: never back to plain"
    (told,) = caplog.messages
    assert "no authority is left" in told and "routing-serving-certs" in told


def test_authorities_of_bundles_stay_whatever_the_secret_says(world: World) -> None:
    bundled = trustme.CA().cert_pem.bytes().decode()
    world.tls.set_bundle("bundle", {"a": bundled, "b": "nonsense"})
    world.tls.set_secret(secret(trustme.CA(), with_authority=False))
    assert bundled.strip() in world.believed() and "nonsense" not in world.believed()
    world.tls.set_bundle("bundle", {})
    assert world.believed() == NO_AUTHORITIES
