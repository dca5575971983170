"""Clients of every temper, each of which knows what must not happen to it.

Rules
  1. Everything is drawn from one seeded generator; a nonce names a request and all that belongs to it.
  2. An answer that is complete is the pod's, byte for byte, or the activator's own with a reason. One that is cut short
     is allowed where the pod was asked to cut it, and nowhere else.
  3. Nobody waits for ever: what takes longer than HUNG_S is a failure.
"""

from __future__ import annotations

import asyncio
import random
import ssl

from tests.e2e.chaos_pods import material, reset

HUNG_S = 60.0
GOOD = ["length", "chunked", "slow", "storm", "until-close", "poison", "then-close", "then-half-close"]
EARLY = ["early-close", "early-kept", "early-deaf"]
BAD = ["reset", "close", "garbage", "endless-storm", "cut-head", "cut-head-reset", "cut-length", "cut-length-reset"]
BAD += ["cut-chunks", "cut-chunks-reset", "then-reset"]
ONCE = ["once-reset", "once-close"]
TUNNELS = ["tunnel", "tunnel-silent", "tunnel-reset", "tunnel-says-and-ends", "length"]
METHODS = ["GET", "GET", "HEAD", "PUT", "POST", "POST", "PATCH", "DELETE"]
SIZES = [0, 1, 100, 5_000, 70_000, 400_000]


class Plan:
    """One request and what is to become of it."""

    def __init__(self, chance: random.Random, number: int, deeds: list[str]) -> None:
        self.nonce = f"n{number}x{chance.randrange(1 << 30):x}"
        self.method = chance.choice(METHODS)
        self.deed = chance.choice(deeds)
        self.size = chance.choice(SIZES)
        if self.deed == "poison":  # in one read with what it follows: later on nobody could tell it from an answer
            self.size = min(self.size, 5_000)
        has_body = self.method in {"PUT", "POST", "PATCH"}
        self.body = chance.choice([*SIZES, 3_000_000]) if has_body else -1
        self.chunked = has_body and chance.random() < 0.4
        self.host = chance.choice(["a.test", "b.test"])
        self.fields = ""
        if has_body and self.body > 0 and chance.random() < 0.2 and not self.deed.startswith("early"):
            self.fields += "Expect: 100-continue\r\n"

    @property
    def may_be_cut(self) -> bool:
        return self.deed in BAD

    def head(self, version: str = "1.1") -> bytes:
        framing = ""
        if self.body >= 0:
            framing = "Transfer-Encoding: chunked\r\n" if self.chunked else f"Content-Length: {self.body}\r\n"
        target = f"/{self.nonce}?do={self.deed}&size={self.size}&body={max(self.body, 0)}"
        lines = f"Host: {self.host}\r\nX-Target: {target}\r\n{framing}{self.fields}"
        return f"{self.method} {target} HTTP/{version}\r\n{lines}\r\n".encode()

    def pieces(self, chance: random.Random) -> list[bytes]:
        """The body as it goes out."""
        if self.body < 0:
            return []
        data = material(self.nonce, self.body)
        pieces = []
        while data:
            size = chance.choice((10_000, 100_000, 1_000_000))
            piece, data = data[:size], data[size:]
            pieces.append(b"%x\r\n%b\r\n" % (len(piece), piece) if self.chunked else piece)
        if self.chunked:
            pieces.append(f"0\r\nX-Trailer: {self.nonce}\r\n\r\n".encode())
        return pieces

    def whole(self, chance: random.Random) -> bytes:
        return self.head() + b"".join(self.pieces(chance))


class Wire:
    """One connection of a client. Reads raise IncompleteReadError or OSError where it ends too early."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def fields(self) -> tuple[str, dict[str, str]]:
        head = (await self.reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        return head[0], {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}

    async def answer(self, plan: Plan, pause_s: float = 0.0) -> tuple[int, bool]:
        """(status, whether the connection goes on) of one answer, which is as it must be."""
        line, fields = await self.fields()
        while line.startswith("HTTP/1.1 1"):
            assert fields.get("x-nonce", plan.nonce) == plan.nonce, (plan.nonce, line, fields)
            if line.startswith("HTTP/1.1 101"):
                return 101, True
            line, fields = await self.fields()
        status = int(line.split(" ")[1])
        body = b""
        if plan.method != "HEAD":
            body = await self._body(plan, fields, pause_s)
        if "activator-reason" in fields:
            assert status >= 400, (line, fields)
        else:
            assert status == 200 and fields.get("x-nonce") == plan.nonce, (plan.nonce, line, fields, body[:100])
            if plan.method != "HEAD":
                assert body == material(plan.nonce, plan.size), (plan.nonce, plan.deed, len(body), body[:80])
        return status, fields.get("connection", "").lower() != "close" and "HTTP/1.1" in line

    async def _body(self, plan: Plan, fields: dict[str, str], pause_s: float) -> bytes:
        if "content-length" in fields:
            left = int(fields["content-length"])
            pieces: list[bytes] = []
            while left:
                await asyncio.sleep(pause_s)
                piece = await self.reader.read(min(left, 65_536))
                if not piece:
                    raise asyncio.IncompleteReadError(b"".join(pieces), left)
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)
        assert fields.get("transfer-encoding") == "chunked", fields
        data = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            await asyncio.sleep(pause_s)
            data += (await self.reader.readexactly(size + 2))[:-2]
        while (line := await self.reader.readuntil(b"\r\n")) != b"\r\n":
            assert line == f"X-Trailer: {plan.nonce}\r\n".encode(), (plan.nonce, line)
        return data


class Crowd:
    """Many clients, one after the other and side by side; `problems` is what must not have happened."""

    def __init__(self, seed: int, addresses: list[str], trust: ssl.SSLContext) -> None:
        self.chance = random.Random(seed)
        self.problems: list[str] = []
        self.whole = 0  # answers of pods that were complete
        self.switched = 0
        self._addresses = addresses  # in the clear, over TLS
        self._trust = trust
        self._number = 0

    def plan(self, deeds: list[str]) -> Plan:
        self._number += 1
        return Plan(self.chance, self._number, deeds)

    async def visit(self) -> None:
        """One client, from its connection to its end."""
        kinds = [self._patient, self._patient, self._ahead, self._leaves, self._slow, self._tunnels, self._babbles]
        kind = self.chance.choice(kinds)
        secured = self.chance.random() < 0.4
        try:
            async with asyncio.timeout(HUNG_S):
                host, port = self._addresses[secured].rsplit(":", 1)
                tls = {"ssl": self._trust, "server_hostname": "localhost"} if secured else {}
                reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20, **tls)  # type: ignore[arg-type]
                try:
                    await kind(Wire(reader, writer), secured)
                finally:
                    # What has not gone out will never be read by anybody.
                    writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()
        except TimeoutError:
            self.problems.append(f"{kind.__name__} secured={secured}: hung")
        except AssertionError as error:
            self.problems.append(f"{kind.__name__} secured={secured}: {error}")

    async def _patient(self, wire: Wire, secured: bool) -> None:
        """Asks again and again, reads everything; bodies go out while the answer comes in."""
        for _ in range(self.chance.randrange(1, 5)):
            if not await self._exchange(wire, self.plan([*GOOD, *GOOD, *EARLY, *BAD, *ONCE]), 0.0, secured):
                return

    async def _slow(self, wire: Wire, secured: bool) -> None:
        await self._exchange(wire, self.plan([*GOOD, *EARLY]), 0.003, secured)

    async def _exchange(self, wire: Wire, plan: Plan, pause_s: float, secured: bool) -> bool:
        """One request and its answer; whether the connection goes on."""
        upload = asyncio.create_task(self._upload(wire, plan))
        try:
            status, goes_on = await wire.answer(plan, pause_s)
        except (asyncio.IncompleteReadError, OSError) as error:
            self._judge_cut(plan, error, secured)
            return False
        except (TimeoutError, asyncio.CancelledError):
            self.problems.append(f"hung: {plan.head()!r} secured={secured}")
            raise
        finally:
            done = upload.done()
            upload.cancel()
        self.whole += status == 200
        return goes_on and done

    async def _upload(self, wire: Wire, plan: Plan) -> None:
        try:
            wire.writer.write(plan.head())
            for piece in plan.pieces(self.chance):
                wire.writer.write(piece)
                await wire.writer.drain()
        except OSError:
            pass  # the answer says why

    def _judge_cut(self, plan: Plan, error: Exception, secured: bool) -> None:
        if not plan.may_be_cut:
            self.problems.append(f"cut short, secured={secured}: {plan.head()!r}: {error!r}"[:600])

    async def _ahead(self, wire: Wire, secured: bool) -> None:
        """Several requests in one write."""
        plans = [self.plan([*GOOD, *BAD]) for _ in range(self.chance.randrange(2, 6))]
        wire.writer.write(b"".join(plan.whole(self.chance) for plan in plans))
        for plan in plans:
            try:
                status, goes_on = await wire.answer(plan)
            except (asyncio.IncompleteReadError, OSError) as error:
                self._judge_cut(plan, error, secured)
                return
            self.whole += status == 200
            if not goes_on:
                return

    async def _leaves(self, wire: Wire, secured: bool) -> None:
        """In the middle of whatever it is."""
        plan = self.plan([*GOOD, *BAD, *EARLY, *TUNNELS, "stall", "stall"])
        data = plan.whole(self.chance)
        wire.writer.write(data[: self.chance.choice((len(data), self.chance.randrange(1, len(data) + 1)))])
        await asyncio.sleep(self.chance.choice((0.0, 0.001, 0.02, 0.1)))
        if self.chance.random() < 0.5:
            reset(wire.writer)
        elif self.chance.random() < 0.5 and not secured:
            wire.writer.write_eof()
            await asyncio.sleep(0.05)

    async def _tunnels(self, wire: Wire, secured: bool) -> None:
        plan = self.plan(TUNNELS)
        plan.method, plan.body = "GET", -1
        plan.fields = "Connection: Upgrade\r\nUpgrade: chaos\r\n"
        sent = material(plan.nonce, self.chance.choice(SIZES))
        ahead = self.chance.randrange(0, len(sent) + 1) if plan.deed != "length" else 0
        if plan.deed == "tunnel-says-and-ends" and plan.host == "b.test":
            ahead = 0  # a pod that speaks TLS closes at once: what comes then makes its kernel drop what it has said
        wire.writer.write(plan.head() + sent[:ahead])
        try:
            status, _ = await wire.answer(plan)
            if status == 101:
                self.switched += 1
                await self._speaks(wire, plan, sent, ahead, secured)
        except (asyncio.IncompleteReadError, OSError) as error:
            if plan.deed != "tunnel-reset":
                self.problems.append(f"tunnel cut short, secured={secured}: {plan.head()!r}: {error!r}"[:600])

    async def _speaks(self, wire: Wire, plan: Plan, sent: bytes, ahead: int, secured: bool) -> None:
        if plan.deed == "tunnel-says-and-ends":
            said = await wire.reader.read() if not secured else await wire.reader.readexactly(plan.size)
            assert said == material(plan.nonce, plan.size), (plan.nonce, len(said), said[:80])
            return
        wire.writer.write(sent[ahead:])
        if plan.deed == "tunnel":
            half_closes = not secured and self.chance.random() < 0.5
            if half_closes and plan.host == "a.test":
                wire.writer.write_eof()
                back = await wire.reader.read()
            else:
                back = await wire.reader.readexactly(len(sent))
            assert back == sent, (plan.nonce, len(back), len(sent), back[:80])

    async def _babbles(self, wire: Wire, secured: bool) -> None:
        """What is no HTTP, or stops being it."""
        plan = self.plan(GOOD)
        data = bytearray(plan.whole(self.chance))
        for _ in range(5):
            data[self.chance.randrange(len(plan.head()))] = self.chance.randrange(256)
        wire.writer.write(bytes(data))
        if not secured:
            wire.writer.write_eof()
        try:
            async with asyncio.timeout(0.2):
                await wire.reader.read()
        except (OSError, TimeoutError):
            pass
