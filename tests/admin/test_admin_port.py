"""The admin port before its first client, while its server is being imported, and if that fails.

Each test runs a program of its own, in which nothing of the server has been imported.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sources import ROOT

PROGRAM = """
import asyncio, sys
from tests.admin.inside import Inside, port
from activator.runtime.tasks import TaskGroupOwner

assert "aiohttp" not in sys.modules and "activator.admin.server" not in sys.modules

async def ask(address):
    host, _, number = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    writer.write(b"GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    try:
        return await reader.read()
    except ConnectionError as error:
        return repr(error).encode()
    finally:
        writer.close()

async def main():
{scenario}

asyncio.run(asyncio.wait_for(main(), 60))
print("as expected")
"""

SCENARIOS = {
    "the first clients are answered": """
    made = port(Inside())
    address = made.start()
    await asyncio.sleep(0)
    assert "aiohttp" not in sys.modules
    answers = await asyncio.gather(*[ask(address) for _ in range(20)])
    assert {answer[:15] for answer in answers} == {b"HTTP/1.1 200 OK"}, answers
    assert "aiohttp" in sys.modules
    assert (await ask(address)).startswith(b"HTTP/1.1 200 OK")
    await made.close()
    """,
    "it is closed before the first client": """
    made = port(Inside())
    address = made.start()
    await made.close()
    try:
        await ask(address)
    except ConnectionRefusedError:
        return
    raise AssertionError("it still listens")
    """,
    "it is closed while its server is imported": """
    made = port(Inside())
    address = made.start()
    asked = asyncio.ensure_future(ask(address))
    while made._serving is None:
        await asyncio.sleep(0)
    await made.close()
    assert await asked in (b"", b"ConnectionResetError(104, 'Connection reset by peer')")
    assert made.socket.fileno() == -1
    """,
    "the owner of its tasks ends first": """
    made = port(Inside())
    address = made.start()
    asked = asyncio.ensure_future(ask(address))
    while made._serving is None:
        await asyncio.sleep(0)
    await made._tasks.close()
    await made.close()
    assert not (await asked).startswith(b"HTTP")
    """,
    "the first client has left": """
    made = port(Inside())
    address = made.start()
    host, _, number = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(number))
    writer.transport.abort()
    while made._serving is None or not made._serving.done():
        await asyncio.sleep(0.001)
    assert (await ask(address)).startswith(b"HTTP/1.1 200 OK")
    await made.close()
    """,
    "the import fails": """
    sys.modules["aiohttp.web"] = None
    errors = []
    made = port(Inside())
    made._tasks = TaskGroupOwner(lambda name, error: errors.append((name, type(error))))
    assert not (await ask(made.start())).startswith(b"HTTP")
    assert errors == [("admin port", ModuleNotFoundError)], errors
    await made.close()
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_port_imports_its_server_for_the_first_client(name: str) -> None:
    program = PROGRAM.replace("{scenario}", SCENARIOS[name])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("as expected\n", "", 0)
