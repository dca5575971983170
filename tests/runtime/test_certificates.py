"""The certificate of a listener, looked at in the worst moments; what serves with it stands in the end-to-end tests."""

from __future__ import annotations

import contextlib
import itertools
import ssl
from pathlib import Path

import pytest
import trustme

from activator.config.model import Tls
from activator.runtime.certificates import ServerCertificate


def write(tls: Tls, key_type: trustme.KeyType = trustme.KeyType.ECDSA) -> None:
    issued = trustme.CA().issue_cert("localhost", key_type=key_type)
    issued.private_key_pem.write_to_path(tls.key)
    issued.cert_chain_pems[0].write_to_path(tls.certificate)


class Overtaken(ServerCertificate):
    """Its files are good whenever they are tried."""

    def problem(self) -> str:
        return ""


def test_files_that_change_while_they_are_looked_at(tmp_path: Path) -> None:
    """They were good when they were tried, and are not when they are loaded: nothing is raised; the next look helps."""
    tls = Tls("127.0.0.1:0", str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    write(tls)
    served = Overtaken(tls)
    whole = Path(tls.key).read_bytes()
    Path(tls.key).write_bytes(b"half of a key")
    served.look()
    assert (served.reloads_total, served.refused_total) == (0, 1)
    Path(tls.key).write_bytes(whole)
    served.look()
    assert (served.reloads_total, served.refused_total) == (1, 1)


def served_by(context: ssl.SSLContext) -> bytes:
    """The certificate that a client is shown, without a network between the two."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname, client_context.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    for _ in range(3):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    shown = client.getpeercert(binary_form=True)
    assert shown is not None
    return shown


@pytest.mark.parametrize("types", list(itertools.permutations(trustme.KeyType)))
def test_a_certificate_of_another_type_replaces_the_one_before(
    types: tuple[trustme.KeyType, ...], tmp_path: Path
) -> None:
    tls = Tls("127.0.0.1:0", str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    write(tls, types[0])
    served = ServerCertificate(tls)
    for key_type in (*types, *types):
        write(tls, key_type)
        served.look()
        written = ssl.PEM_cert_to_DER_cert(Path(tls.certificate).read_text())
        assert served_by(served.context) == written
    assert (served.reloads_total, served.refused_total) == (4, 0)
