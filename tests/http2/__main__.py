"""Runs the tables of this folder against a server at an address, and says what it does otherwise.

python -m tests.http2 h2spec 127.0.0.1:8080 --only http2/6.9
python -m tests.http2 hostile 127.0.0.1:8080 --pid 4711 --large /large
python -m tests.http2 messages 127.0.0.1:8443 --ca ca.pem
python -m tests.http2 clients 127.0.0.1:8080
python -m tests.http2 grpc 127.0.0.1:8080
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.http2.clients import CLIENTS, Address
from tests.http2.grpc_processes import ask
from tests.http2.grpc_program import LIBRARIES
from tests.http2.h2spec_cases import CASES, run_case
from tests.http2.hostile import STIMULI, Target, attack, problems
from tests.http2.messages import MESSAGES, send_message
from tests.http2.raw_client import trusting

Line = tuple[str, str, str]  # what was run; what is wrong with it; what happened


def h2spec(target: Target, only: str) -> Iterator[Line]:
    for case in CASES:
        if case.number.startswith(only):
            verdict = run_case(case, target.host, target.port, path=target.path, tls=target.tls)
            name = f"{case.number} {case.title} (RFC 7540, {case.rfc7540}; RFC 9113, {case.rfc9113})"
            wrong = "" if verdict.passed or verdict.skipped else str(verdict)
            yield name, f"{wrong} {case.changed}" if wrong else "", "" if verdict.exact else str(verdict)


def hostile(target: Target, only: str) -> Iterator[Line]:
    for stimulus in STIMULI:
        if only in stimulus.name:
            report = attack(stimulus, target)
            found = problems(stimulus, report)
            yield stimulus.name, f"{'; '.join(found)}: {report}" if found else "", str(report)


def messages(target: Target, only: str) -> Iterator[Line]:
    for message in MESSAGES:
        if only in message.name:
            answer = send_message(message, target)
            good = answer.outcome in message.allowed and answer.after
            yield message.name, "" if good else f"{answer}; {message.tells}", str(answer)


def clients(address: Address, only: str) -> Iterator[Line]:
    for name, client in CLIENTS.items():
        if only in name:
            for what, wrong in client(address).items():
                yield f"{name}: {what}", wrong, ""


def grpc(address: Address, only: str) -> Iterator[Line]:
    for library in LIBRARIES:
        for case, wrong in ask(library, f"{address.host}:{address.port}", ca=address.ca).items():
            if only in case:
                yield f"{library}: {case}", wrong, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["h2spec", "hostile", "messages", "clients", "grpc"])
    parser.add_argument("address", help="host:port")
    parser.add_argument("--only", default="", help="a part of the name (of h2spec's cases: the begin)")
    parser.add_argument("--path", default="/", help="what is answered with a small body of at least five bytes")
    parser.add_argument("--large", default="/large", help="what is answered with more than 1 MB")
    parser.add_argument("--ca", type=Path, help="talk TLS, and trust this")
    parser.add_argument("--pid", type=int, default=0, help="of the server, to see what it holds")
    parser.add_argument("-v", action="store_true", help="also what went well")
    told = parser.parse_args()
    host, _, port = told.address.rpartition(":")
    tls = trusting(told.ca) if told.ca else None
    target = Target(host, int(port), told.path, told.large, tls=tls, pid=told.pid)
    address = Address(host, int(port), told.ca)
    if told.table in ("clients", "grpc"):
        lines = (clients if told.table == "clients" else grpc)(address, told.only)
    else:
        lines = {"h2spec": h2spec, "hostile": hostile, "messages": messages}[told.table](target, told.only)
    failed = count = 0
    for name, wrong, seen in lines:
        count += 1
        failed += bool(wrong)
        if wrong:
            print(f"FAILED {name}: {wrong}", flush=True)
        elif told.v:
            print(f"ok     {name} {seen}", flush=True)
    print(f"{count - failed} of {count} as they must be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
