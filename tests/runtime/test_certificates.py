"""The certificate of a listener, looked at in the worst moments; what serves with it stands in the end-to-end tests."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import ssl
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given

from activator.config.model.listeners import CertificateFiles, Listener
from activator.runtime.certificates import ServerCertificate
from activator.runtime.client_hello import CertificatePair, listening_context, names_of, offered_protocols


def write(tls: Listener, key_type: trustme.KeyType = trustme.KeyType.ECDSA) -> None:
    issued = trustme.CA().issue_cert("localhost", key_type=key_type)
    issued.private_key_pem.write_to_path(tls.key)
    issued.cert_chain_pems[0].write_to_path(tls.certificate)


class Overtaken(ServerCertificate):
    """Its files are good whenever they are tried."""

    def problem(self) -> str:
        return ""


def test_files_that_change_while_they_are_looked_at(tmp_path: Path) -> None:
    """They were good when they were tried, and are not when they are loaded: nothing is raised; the next look helps."""
    tls = Listener("127.0.0.1:0", str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    write(tls)
    served = Overtaken(tls)
    whole = Path(tls.key).read_bytes()
    Path(tls.key).write_bytes(b"half of a key")
    served.check()
    assert (served.reloads_total, served.refused_total) == (0, 1)
    Path(tls.key).write_bytes(whole)
    served.check()
    assert (served.reloads_total, served.refused_total) == (1, 1)


def served_by(context: ssl.SSLContext, name: str | None = None) -> bytes:
    """The certificate that a client is shown, without a network between the two."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname, client_context.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
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
    tls = Listener("127.0.0.1:0", str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    write(tls, types[0])
    served = ServerCertificate(tls)
    for key_type in (*types, *types):
        write(tls, key_type)
        served.check()
        written = ssl.PEM_cert_to_DER_cert(Path(tls.certificate).read_text())
        assert served_by(served.context) == written
    assert (served.reloads_total, served.refused_total) == (4, 0)


# --- what a ClientHello decides ---


def hello_of(protocols: list[str]) -> bytes:
    """The ClientHello of a real client, without the header of its record."""
    context = ssl.create_default_context()
    if protocols:
        context.set_alpn_protocols(protocols)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(to_client, to_server, server_hostname="a.test").do_handshake()
    return to_server.read()[5:]


@pytest.mark.parametrize("protocols", [[], ["h2"], ["http/1.1"], ["h2", "http/1.1"], ["x" * 255] * 50])
def test_the_protocols_that_a_client_offers(protocols: list[str]) -> None:
    assert offered_protocols(hello_of(protocols)) == [one.encode() for one in protocols]


@given(st.data())
def test_a_malformed_hello_raises_nothing(data: st.DataObject) -> None:
    hello = bytearray(hello_of(["h2", "http/1.1"]))
    for _ in range(data.draw(st.integers(0, 5))):
        hello[data.draw(st.integers(0, len(hello) - 1))] = data.draw(st.integers(0, 255))
    offered_protocols(bytes(hello[: data.draw(st.integers(0, len(hello)))]))
    offered_protocols(data.draw(st.binary(max_size=200)))


def test_the_names_of_a_certificate(tmp_path: Path) -> None:
    """Also of one that has expired."""
    authority = trustme.CA()
    names = ["a.test", "*.b.test", "Mixed.test", "10.0.0.1"]
    for number, not_after in enumerate([None, dt.datetime(2001, 1, 1, tzinfo=dt.UTC)]):
        pair = CertificatePair(str(tmp_path / f"{number}.crt"), str(tmp_path / f"{number}.key"))
        issued = authority.issue_cert(*names, not_before=dt.datetime(2000, 1, 1, tzinfo=dt.UTC), not_after=not_after)
        issued.private_key_pem.write_to_path(pair.key)
        Path(pair.certificate).write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        assert names_of(pair) == {"a.test", "*.b.test", "mixed.test"}


def test_two_certificates_for_the_same_names_serve_both_types_of_keys(tmp_path: Path) -> None:
    authority = trustme.CA()
    pairs = []
    for key_type in trustme.KeyType:
        pair = CertificatePair(str(tmp_path / f"{key_type.name}.crt"), str(tmp_path / f"{key_type.name}.key"))
        issued = authority.issue_cert("a.test", key_type=key_type)
        issued.private_key_pem.write_to_path(pair.key)
        Path(pair.certificate).write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        pairs.append(pair)
    context = listening_context(pairs, "1.2", ["http/1.1"])
    for ciphers in ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"):
        client_context = ssl.create_default_context()
        authority.configure_trust(client_context)
        client_context.maximum_version = ssl.TLSVersion.TLSv1_2
        client_context.set_ciphers(ciphers)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = context.wrap_bio(to_server, to_client, server_side=True)
        client = client_context.wrap_bio(to_client, to_server, server_hostname="a.test")
        for _ in range(4):
            for side in (client, server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        assert client.cipher() is not None and client.getpeercert() is not None


def pair_of(folder: Path, name: str, odd: x509.ExtensionType | None = None, days: int = 1) -> CertificatePair:
    """Signed by itself; `odd`: one more critical extension."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + dt.timedelta(days=days))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    if odd is not None:
        builder = builder.add_extension(odd, critical=True)
    pair = CertificatePair(str(folder / f"{name}.crt"), str(folder / f"{name}.key"))
    Path(pair.certificate).write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    Path(pair.key).write_bytes(pem)
    return pair


def test_the_first_certificate_that_expires(tmp_path: Path) -> None:
    one, other = pair_of(tmp_path, "a.test", days=9), pair_of(tmp_path, "b.test", days=2)
    files = [CertificateFiles(pair.certificate, pair.key) for pair in (one, other)]
    served = ServerCertificate(Listener("127.0.0.1:0", certificates=files))
    assert served.expires_unix_s == pytest.approx(time.time() + 2 * 86_400, abs=10.0)
    assert isinstance(served.expires_unix_s, float), "a metric takes no other numbers"
    pair_of(tmp_path, "b.test", days=20)
    served.check()
    assert served.expires_unix_s == pytest.approx(time.time() + 9 * 86_400, abs=10.0)


@pytest.mark.parametrize(
    "odd",
    [
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),
        x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b""),
    ],
    ids=["for clients", "unknown extension"],
)
def test_a_certificate_that_is_not_accepted_of_a_server_has_names_too(tmp_path: Path, odd: x509.ExtensionType) -> None:
    """Clients that do not verify may use it; and one such certificate must not end the program."""
    pairs = [pair_of(tmp_path, "a.test"), pair_of(tmp_path, "b.test", odd)]
    assert names_of(pairs[1]) == {"b.test"}
    assert served_by(listening_context(pairs, "1.2", ["http/1.1"]), "b.test") == der_of(pairs[1])


@pytest.mark.parametrize("name", ["b.test.", "B.TEST"])
def test_a_name_may_end_with_a_dot_and_be_in_capitals(tmp_path: Path, name: str) -> None:
    pairs = [pair_of(tmp_path, "a.test"), pair_of(tmp_path, "b.test")]
    assert served_by(listening_context(pairs, "1.2", ["http/1.1"]), name) == der_of(pairs[1])


def test_a_name_that_is_not_ascii_ends_with_an_alert_and_fills_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    context = listening_context([pair_of(tmp_path, "a.test")], "1.2", ["http/1.1"])
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = hello_of([])
    record = b"\x16\x03\x01" + len(hello).to_bytes(2) + hello.replace(b"a.test", b"\xff.test")
    to_server.write(record)
    with pytest.raises(ssl.SSLError):
        context.wrap_bio(to_server, to_client, server_side=True).do_handshake()
    assert to_client.read()[:1] == b"\x15", "an alert"
    assert told == []
    other: Any = SimpleNamespace(exc_value=ValueError(), object=None)
    sys.unraisablehook(other)
    assert len(told) == 1, "anything else is said"


def test_names_and_protocols_are_judged_after_a_second_hello_too(tmp_path: Path) -> None:
    """The server asks for another group (HelloRetryRequest, RFC 8446 section 4.1.4)."""
    pairs = [pair_of(tmp_path, "a.test"), pair_of(tmp_path, "b.test")]
    context = listening_context(pairs, "1.3", ["http/1.1"])
    context.set_ecdh_curve("secp384r1")
    assert served_by(context, "b.test") == der_of(pairs[1])


def der_of(pair: CertificatePair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(pair.certificate).read_text("ascii"))
