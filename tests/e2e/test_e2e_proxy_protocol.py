"""The PROXY protocol with real peers: haproxy and nginx in front of the activator, and behind it."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from bench.processes import find_program
from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, CutShortError, request
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import Activator, eventually
from tests.e2e.test_e2e_members import free_ports

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def v2(command: int, kind: int, block: bytes, more: bytes = b"") -> bytes:
    return SIGNATURE + bytes([command, kind]) + struct.pack(">H", len(block) + len(more)) + block + more


TCP4 = bytes([203, 0, 113, 7, 198, 51, 100, 1]) + struct.pack(">HH", 4000, 443)
TCP6 = bytes.fromhex("20010db8000000000000000000000007") * 2 + struct.pack(">HH", 4000, 443)

HEADERS = {
    "v1": b"PROXY TCP4 203.0.113.7 198.51.100.1 4000 443\r\n",
    "v1, IPv6": b"PROXY TCP6 2001:db8::7 2001:db8::1 4000 443\r\n",
    "v1, unknown": b"PROXY UNKNOWN\r\n",
    "v1, unknown with words": b"PROXY UNKNOWN ffff:f ffff:f 65535 65535\r\n",
    "v2": v2(0x21, 0x11, TCP4),
    "v2 with TLVs": v2(0x21, 0x11, TCP4, b"\x04\0\x03abc"),
    "v2, IPv6": v2(0x21, 0x21, TCP6),
    "v2, local": v2(0x20, 0x00, b""),
    "v2, local with addresses": v2(0x20, 0x11, TCP4),
    "v2, Unix": v2(0x21, 0x31, b"/a".ljust(216, b"\0")),
    "v2, datagrams": v2(0x21, 0x12, TCP4),
    "nothing": b"",
    "v1, a port too many": b"PROXY TCP4 203.0.113.7 198.51.100.1 4000 65536\r\n",
    "v1, another word": b"PROXY TCP5 203.0.113.7 198.51.100.1 4000 443\r\n",
    "v1, no address": b"PROXY TCP4 203.0.113 198.51.100.1 4000 443\r\n",
    "v1, too long": b"PROXY UNKNOWN " + b"f" * 120 + b"\r\n",
    "v2, version 3": v2(0x31, 0x11, TCP4),
    "v2, too short": v2(0x21, 0x11, TCP4[:8]),
}


def echo(side: PodSide) -> None:
    """Answers with where the request came from, as the activator says."""
    while True:
        told = side.request()
        side.answer(",".join(told.all("x-forwarded-for")).encode())


class Proxies:
    """haproxy with a front for each version, and as a pod; nginx as a pod."""

    def __init__(self, folder: Path, haproxy: str, nginx: str) -> None:
        (self.front, self.v1, self.v2, self.accepting, self.nginx) = free_ports(5)
        answer = 'http-request return status 200 content-type text/plain lf-string "%[src]:%[src_port] %[dst]"'
        (folder / "haproxy.cfg").write_text(
            textwrap.dedent(f"""
            defaults
              mode http
              timeout connect 5s
              timeout client 5s
              timeout server 5s
            frontend one
              bind 127.0.0.1:{self.v1}
              default_backend one
            backend one
              server activator 127.0.0.1:{self.front} send-proxy
            frontend two
              bind 127.0.0.1:{self.v2}
              default_backend two
            backend two
              server activator 127.0.0.1:{self.front} send-proxy-v2
            frontend accepting
              bind 127.0.0.1:{self.accepting} accept-proxy
              {answer}
            """)
        )
        (folder / "nginx.conf").write_text(
            textwrap.dedent(f"""
            daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
            events {{ worker_connections 64; }}
            http {{
              access_log off;
              client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
              uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
              server {{
                listen 127.0.0.1:{self.nginx} proxy_protocol;
                location / {{ return 200 "$proxy_protocol_addr:$proxy_protocol_port $proxy_protocol_server_addr"; }}
              }}
            }}
            """)
        )
        self._running = [
            subprocess.Popen([haproxy, "-db", "-f", str(folder / "haproxy.cfg")], stderr=subprocess.DEVNULL),
            subprocess.Popen([nginx, "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL),
        ]
        for port in (self.v1, self.accepting, self.nginx):
            eventually(lambda port=port: listens(port), f"a proxy listens on {port}")  # type: ignore[misc]

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait(20.0)


class Door(NamedTuple):
    activator: Activator
    proxies: Proxies
    tls: str
    authority: ssl.SSLContext


@pytest.fixture(scope="module")
def door(
    tmp_path_factory: pytest.TempPathFactory,
    run_shared_activator: RunActivator,
    find_programs: Callable[[str], str],
) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("proxies")
    proxies = Proxies(folder, find_programs("haproxy"), find_programs("nginx"))
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    pair = {"certificate": str(folder / "cert.pem"), "key": str(folder / "key.pem")}
    with ScriptedPod(echo) as pod:
        activator = run_shared_activator(
            {
                "listen": [
                    {"address": f"127.0.0.1:{proxies.front}", "proxy_protocol": ["127.0.0.1"]},
                    {"address": "127.0.0.1:0", "proxy_protocol": ["127.0.0.0/8"], **pair},
                    {"address": "127.0.0.1:0", "proxy_protocol": ["10.0.0.0/8"]},
                    {"address": "127.0.0.1:0", "proxy_protocol": {"trusted": ["10.0.0.0/8"], "required": True}},
                ],
                "admin": "127.0.0.1:0",
                "revisions": [
                    {"name": "app", "hosts": ["*"], "pods": [pod.address]},
                    *(
                        {"name": name, "hosts": [name], "pods": [f"127.0.0.1:{port}"], "proxy_protocol": version}
                        for name, port, version in (
                            ("haproxy1", proxies.accepting, "v1"),
                            ("haproxy2", proxies.accepting, "v2"),
                            ("nginx1", proxies.nginx, "v1"),
                            ("nginx2", proxies.nginx, "v2"),
                        )
                    ),
                ],
            }
        )
        addresses = activator.wait_log(r" serving on (.+?)(?: \(|$)").split(", ")
        try:
            yield Door(activator, proxies, addresses[1], context)
        finally:
            proxies.close()


@pytest.fixture(scope="module")
def find_programs(need: Callable[[bool, str], None]) -> Callable[[str], str]:
    def find(name: str) -> str:
        path = find_program(name)
        need(path is not None, name)
        assert path is not None
        return path

    return find


def tried(address: str, header: bytes, secure: ssl.SSLContext | None = None) -> str:
    """Who the client is taken for; empty: the connection was closed without an answer."""
    with Client(address) as client:
        client.send(header)
        if secure is not None:
            client.secure(secure, "localhost")
        try:
            client.send(request())
            answer = client.answer()
        except (CutShortError, ConnectionError):
            return ""
        return answer.body.decode().partition(" ")[0] if answer.status == 200 else f"refused with {answer.status}"


def ip_of(told: str) -> str:
    """haproxy adds the port."""
    return told.rpartition(":")[0] if told.count(":") in {1, 8} or told.startswith("2001:db8::7:") else told


# Where haproxy 2.6 does otherwise: what is unknown has to be served as a connection of its own (sections 2.1 and 2.2 of
# the specification), and what is no address or no port is none.
OTHERWISE = {
    "v1, unknown with words": "127.0.0.1",
    "v2, Unix": "127.0.0.1",
    "v2, datagrams": "127.0.0.1",
    "v1, a port too many": "",
    "v1, no address": "",
}


@pytest.mark.parametrize("name", HEADERS)
def test_it_takes_what_haproxy_takes_and_refuses_what_haproxy_refuses(door: Door, name: str) -> None:
    """`127.0.0.1`: the header says nothing, so the client is who has connected."""
    ours = tried(f"127.0.0.1:{door.proxies.front}", HEADERS[name])
    theirs = ip_of(tried(f"127.0.0.1:{door.proxies.accepting}", HEADERS[name]))
    assert ours == OTHERWISE.get(name, theirs)
    assert (ours != theirs) is (name in OTHERWISE)


@pytest.mark.parametrize("name", ["v1", "v2 with TLVs", "nothing", "v1, too long"])
def test_over_tls_the_header_comes_first(door: Door, name: str) -> None:
    if name in {"v1", "v2 with TLVs"}:
        assert tried(door.tls, HEADERS[name], door.authority) == "203.0.113.7"
    else:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            tried(door.tls, HEADERS[name], door.authority)


def test_a_header_and_a_handshake_in_one_packet(door: Door) -> None:
    """What is read behind the header belongs to TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    secure = door.authority.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        secure.do_handshake()
    host, _, port = door.tls.rpartition(":")
    with socket.create_connection((host, int(port)), 20.0) as sock:
        sock.sendall(HEADERS["v2"] + outgoing.read())
        answered = b""
        while b"203.0.113.7" not in answered:
            data = sock.recv(65_536)
            assert data
            incoming.write(data)
            try:
                if not secure.version() or not answered:
                    secure.do_handshake()
                    secure.write(request())
                    answered = b" "
                answered += secure.read(65_536)
            except ssl.SSLWantReadError:
                pass
            sock.sendall(outgoing.read())


def test_through_real_proxies_of_either_version(door: Door) -> None:
    for port in (door.proxies.v1, door.proxies.v2):
        with socket.socket() as sock:
            sock.bind(("127.0.0.77", 0))
            sock.connect(("127.0.0.1", port))
            sock.sendall(request(headers="Connection: close\r\n"))
            answer = b""
            while data := sock.recv(4096):
                answer += data
        assert answer.endswith(b"127.0.0.77")


@pytest.mark.parametrize("name", ["haproxy1", "haproxy2", "nginx1", "nginx2"])
def test_pods_are_told_of_each_client_its_own_address(door: Door, name: str) -> None:
    """Connections to pods are not shared: a pod goes by the header for all of a connection."""
    address = f"127.0.0.1:{door.proxies.front}"
    headers = [v2(0x21, 0x11, bytes([203, 0, 113, 10 + n]) + TCP4[4:]) for n in range(4)]
    for _ in range(2):
        found: list[str] = []
        for header in headers:
            with Client(address) as client:
                client.send(header)
                answers = [client.ask(request(host=name)) for _ in range(2)]
                assert [one.status for one in answers] == [200, 200], answers
                found.extend(one.body.decode() for one in answers)
        assert found == [f"203.0.113.{10 + n}:4000 198.51.100.1" for n in range(4) for _ in range(2)]
    assert tried_as(door, HEADERS["v2, IPv6"], name) == "2001:db8::7:4000 2001:db8::7"


def tried_as(door: Door, header: bytes, host: str) -> str:
    with Client(f"127.0.0.1:{door.proxies.front}") as client:
        client.send(header)
        return client.ask(request(host=host)).body.decode()


def test_who_is_not_trusted_is_nobody_else(door: Door) -> None:
    addresses = door.activator.wait_log(r" serving on (.+?)(?: \(|$)").split(", ")
    assert tried(addresses[2], b"") == "127.0.0.1"
    for name in ("v1", "v2"):
        assert tried(addresses[2], HEADERS[name]) == "refused with 400"
    assert tried(addresses[3], b"") == tried(addresses[3], HEADERS["v1"]) == ""
