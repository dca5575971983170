"""A name server on a port of this machine, over UDP and TCP, that answers as a test says; in a thread of its own."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from typing import Self

import dns.flags
import dns.message
import dns.rcode
import dns.rrset


def _sockets_on_one_port() -> tuple[socket.socket, socket.socket]:
    """A port that the kernel chose for UDP may be in use for TCP (of any connection on this machine): then another."""
    refused: list[socket.socket] = []  # kept open until the end, so that the kernel chooses another port each time
    try:
        while True:
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            udp.bind(("127.0.0.1", 0))
            tcp = socket.socket()
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tcp.bind(udp.getsockname())
            except OSError:
                refused += [udp, tcp]
                if len(refused) > 200:
                    raise
                continue
            tcp.listen()
            return udp, tcp
    finally:
        for sock in refused:
            sock.close()


class NameServer:
    """`records`: by (name, kind) the texts of the records. `mode` is how it behaves: by name, else `fine`."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.modes: dict[str, str] = {}
        self.ttl_s = 1
        self.asked: Counter[tuple[str, str]] = Counter()
        self.over_tcp = 0
        self._udp, self._tcp = _sockets_on_one_port()
        self.address = f"127.0.0.1:{self._udp.getsockname()[1]}"
        self._closing = False
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._serve_udp, self._serve_tcp)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        host, port = self._udp.getsockname()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"", (host, port))
        socket.create_connection((host, port)).close()
        for thread in self._threads:
            thread.join(10.0)
        self._udp.close()
        self._tcp.close()

    def _serve_udp(self) -> None:
        while True:
            data, peer = self._udp.recvfrom(4096)
            if self._closing:
                return
            for answer in self._answers(data, False):
                self._udp.sendto(answer, peer)

    def _serve_tcp(self) -> None:
        while True:
            sock, _ = self._tcp.accept()
            with sock:
                if self._closing:
                    return
                self.over_tcp += 1
                try:
                    (length,) = struct.unpack("!H", sock.recv(2, socket.MSG_WAITALL))
                    for answer in self._answers(sock.recv(length, socket.MSG_WAITALL), True):
                        sock.sendall(struct.pack("!H", len(answer)) + answer)
                except OSError:
                    continue

    def _answers(self, data: bytes, tcp: bool) -> list[bytes]:
        query = dns.message.from_wire(data)
        (question,) = query.question
        name, kind = question.name.to_text(omit_final_dot=True).lower(), question.rdtype.name
        if not tcp:
            self.asked[(name, kind)] += 1
        mode = self.modes.get(name, "fine")
        answer = dns.message.make_response(query)
        if mode == "silent":
            return []
        if mode == "garbage":
            return [b"\xff" * 40]
        if mode == "another id":
            answer.id ^= 1
        if mode in {"servfail", "refused"}:
            answer.set_rcode(dns.rcode.from_text(mode.upper()))
            return [answer.to_wire()]
        if mode == "truncated, and TCP is closed":
            answer.flags |= dns.flags.TC
            return [] if tcp else [answer.to_wire()]
        known = [texts for (at, _), texts in self.records.items() if at == name and texts]
        if not known:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        texts = self.records.get((name, kind), [])
        if texts:
            answer.answer.append(dns.rrset.from_text_list(question.name, self.ttl_s, "IN", kind, texts))
        if self.records.get((name, "CNAME")):
            answer.answer.append(
                dns.rrset.from_text_list(question.name, self.ttl_s, "IN", "CNAME", self.records[(name, "CNAME")])
            )
        wire = answer.to_wire(max_size=65535)
        if not tcp and len(wire) > 512:
            short = dns.message.make_response(query)
            short.flags |= dns.flags.TC
            return [short.to_wire()]
        return [wire]
