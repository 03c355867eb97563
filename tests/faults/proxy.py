"""A TCP proxy between workers and PostgreSQL that does what networks do: it cuts, resets, delays, and goes silent.

It reads as much of the frontend/backend protocol as it needs to know what a connection is about to commit, so that it can
lose the answer to a COMMIT, or hold the COMMIT itself.

    with Proxy(server.port) as proxy:
        worker_url = server.url("shop", port=proxy.port)
        trap = proxy.set_trap(About.CLAIM, Trap.LOSE)
        trap.sprung.wait(30)
"""

from __future__ import annotations

import asyncio
import random
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeVar

import pytest
from sqlalchemy import make_url

T = TypeVar("T")

_HOST = "127.0.0.1"


class About(StrEnum):
    """What a transaction does, told by its statements."""

    CLAIM = "claim"
    APPLY = "apply"  # outcomes in a batch, or rescues
    SESSION = "session"  # what a handler wrote, together with its job's completion


_MARKS = {
    About.SESSION: re.compile(r"INSERT INTO audit\.effect"),
    About.CLAIM: re.compile(r"UPDATE.*\bSET\b.*\bclaimed_at\s*=", re.DOTALL),
    About.APPLY: re.compile(r"UPDATE.*\bSET\b.*\bfinished_at\s*=", re.DOTALL),
}
_LISTEN = re.compile(r"\s*LISTEN\b", re.IGNORECASE)


class Trap(StrEnum):
    """What happens to the next COMMIT of some kind."""

    LOSE = "lose"  # the server commits; its answer never arrives, and the connection is reset
    HOLD = "hold"  # the server hears of it only when the trap is opened


@dataclass
class Set:
    """A trap that was set."""

    about: About
    kind: Trap
    sprung: threading.Event = field(default_factory=threading.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    client_port: int = 0
    """The port of the client whose COMMIT it was."""


class _Messages:
    """A stream of bytes as messages of the protocol. A client's first ones have no type."""

    def __init__(self, *, client: bool) -> None:
        self._left = b""
        self._starting = client
        self.single = 0
        """Answers of one byte that are still to come, to questions about encryption."""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Each whole message: its type, its body, and all of it."""
        self._left += data
        while self._left:
            if self.single and not self._starting:
                self.single -= 1
                yield b"", b"", self._take(1)
                continue
            head = 0 if self._starting else 1
            if len(self._left) < head + 4:
                return
            (length,) = struct.unpack_from("!i", self._left, head)
            if len(self._left) < head + length:
                return
            whole = self._take(head + length)
            body = whole[head + 4 :]
            if self._starting:
                (code,) = struct.unpack_from("!i", body)
                self._starting = code in _ENCRYPTION
                yield b"encryption" if self._starting else b"startup", body, whole
            else:
                yield whole[:1], body, whole

    def _take(self, number: int) -> bytes:
        taken, self._left = self._left[:number], self._left[number:]
        return taken


_ENCRYPTION = (80877103, 80877104)  # SSLRequest, GSSENCRequest


class _Link:
    """One client's connection, and the one to the server that belongs to it."""

    def __init__(
        self, proxy: Proxy, client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:  # fmt: skip
        self.proxy, self.client, self.server = proxy, client, server
        self.port: int = client[1].get_extra_info("peername")[1]
        self.silent = self.listens = self.maintains = self.claims = False
        self.service = False
        """It has claimed, maintained or listened: it is no handler's."""
        self._names: dict[bytes, str] = {}
        self._about: set[About] = set()
        self._in_transaction = False
        self._losing: Set | None = None
        self._to_server, self._to_client = _Messages(client=True), _Messages(client=False)

    async def run(self) -> None:
        """Forward both ways until either side ends."""
        ways = [asyncio.ensure_future(way) for way in (self._upwards(), self._downwards())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self.close()

    def close(self, *, reset: bool = False) -> None:
        """Close both connections; `reset`: as if the other host had never heard of them."""
        for _, writer in (self.client, self.server):
            if reset:
                writer.transport.abort()
            writer.close()

    async def _upwards(self) -> None:
        while data := await self._read(self.client[0]):
            for kind, body, whole in self._to_server.feed(data):
                if kind == b"encryption":
                    self._to_client.single += 1
                trap = self._trap_for(self._committed(kind, body))
                if trap is not None:
                    trap.client_port = self.port
                    if trap.kind is Trap.LOSE:
                        self._losing = trap
                    else:
                        trap.sprung.set()
                        await trap.opened.wait()
                await self._forward(self.server[1], whole)

    async def _downwards(self) -> None:
        while data := await self._read(self.server[0]):
            for kind, body, whole in self._to_client.feed(data):
                if self._losing is None:
                    await self._forward(self.client[1], whole)
                elif kind == b"Z" and body == b"I":  # ready for a query, in no transaction: it has committed
                    self.close(reset=True)
                    self._losing.sprung.set()
                    return

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        data = await reader.read(65_536)
        if self.proxy.delay:
            await asyncio.sleep(self.proxy.delay)
        return data

    async def _forward(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        while self.silent:
            await asyncio.sleep(0.02)
        writer.write(data)
        await writer.drain()

    def _committed(self, kind: bytes, body: bytes) -> set[About]:
        """What the transaction was about that this message commits; nothing, if it commits none."""
        if kind == b"Q":
            text = body[:-1].decode(errors="replace")
        elif kind == b"P":
            name, query, _ = body.split(b"\0", 2)
            self._names[name] = query.decode(errors="replace")
            return set()
        elif kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            text = self._names.get(name, "")
        else:
            return set()
        first = text.split(None, 1)[0].upper() if text.strip() else ""
        about = {what for what, mark in _MARKS.items() if mark.search(text)}
        self.listens = self.listens or bool(_LISTEN.match(text))
        self.maintains = self.maintains or "INSERT INTO sa_jobqueue.worker" in text
        self.claims = self.claims or About.CLAIM in about
        self.service = self.claims or self.listens or self.maintains
        if first == "BEGIN":
            self._in_transaction, self._about = True, set()
        elif first in ("COMMIT", "ROLLBACK", "END"):
            about, self._about = self._about, set()
            self._in_transaction = False
            return about if first == "COMMIT" else set()
        elif not self._in_transaction:
            return about  # it commits by itself
        else:
            self._about |= about
        return set()

    def _trap_for(self, about: set[About]) -> Set | None:
        for trap in self.proxy.traps:
            if trap.about in about:
                self.proxy.traps.remove(trap)
                return trap
        return None


class Proxy:
    """Listens on `port`, and connects each client to `target`, a port of this host or a Unix socket.

    It has a thread of its own.
    """

    def __init__(self, target: int | Path) -> None:
        self.target = target
        self.delay = 0.0
        """Seconds by which each message is delayed, each way."""
        self.traps: list[Set] = []
        self.links: list[_Link] = []
        self._silent = self._refusing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._accept, _HOST, 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(30)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    # ---- what networks do

    def cut(self, share: float = 1.0, *, reset: bool = False, chance: random.Random | None = None) -> int:
        """Close this share of the connections, or reset them. Returns how many that were."""

        def close() -> int:
            chosen = [link for link in self.links if (chance or random).random() < share]
            for link in chosen:
                link.close(reset=reset)
            return len(chosen)

        return self._in_loop(close)

    def refuse(self, refusing: bool = True) -> None:
        """Refuse connections, as if there were no server."""
        self._refusing = refusing

    def go_silent(self, *, only: Callable[[_Link], bool] = lambda link: True, newcomers: bool = True) -> None:
        """Forward nothing any more on these connections, and close none: half-open. `newcomers`: nor on new ones."""

        def silence() -> None:
            self._silent = newcomers
            for link in self.links:
                link.silent = link.silent or only(link)

        self._in_loop(silence)

    def go_on(self, *, reset: bool = False, newcomers_only: bool = False) -> None:
        """Forward again, what was held back first; `reset`: reset what was silent; or leave it so for ever."""

        def speak() -> None:
            self._silent = False
            for link in self.links:
                if link.silent and not newcomers_only:
                    link.silent = False
                    if reset:
                        link.close(reset=True)

        self._in_loop(speak)

    def set_trap(self, about: About, kind: Trap) -> Set:
        """Wait for the next COMMIT of this kind."""
        trap = Set(about, kind)
        self._in_loop(lambda: self.traps.append(trap))
        return trap

    def open(self, trap: Set) -> None:
        """Let a COMMIT that was held go on; or take away a trap that was not sprung."""

        def let_go() -> None:
            if trap in self.traps:
                self.traps.remove(trap)
            trap.opened.set()

        self._in_loop(let_go)

    # ---- how

    def _in_loop(self, work: Callable[[], T]) -> T:
        async def do() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(30)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while self._silent:
                await asyncio.sleep(0.02)
            if self._refusing:
                writer.transport.abort()
                return
            if isinstance(self.target, int):
                upstream = await asyncio.open_connection(_HOST, self.target)
            else:
                upstream = await asyncio.open_unix_connection(self.target)
        except OSError:
            writer.transport.abort()  # there is no server
            return
        link = _Link(self, (reader, writer), upstream)
        self.links.append(link)
        with suppress(OSError, asyncio.CancelledError):
            await link.run()
        self.links.remove(link)


@contextmanager
def bad_network(url: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the test's server, and the database's URL through it."""
    direct = make_url(url)
    host = direct.query.get("host")
    target = direct.port or 5432 if host is None else Path(str(host)) / ".s.PGSQL.5432"
    if host is None and direct.host not in ("localhost", "127.0.0.1"):
        pytest.skip(f"the proxy reaches servers of this host only, not {direct.host}")
    with Proxy(target) as proxy:
        through = direct.set(host="127.0.0.1", port=proxy.port).difference_update_query(["host"])
        yield proxy, through.render_as_string(hide_password=False)
