"""What goes over the wire, as libpq sees it: however a statement is sent, its round trips are counted.

wire = Wire(engine)                                   # before its first connection
service, = wire.connections("claimed_at")             # those that have sent this text
[one.round_trips for one in service.transactions]
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from typing import IO, Any

from sqlalchemy import Engine, event

#: libpq's PQTRACE_SUPPRESS_TIMESTAMPS.
_NO_TIMES = 1
#: A line of the trace; a statement's text has lines of its own.
_ANSWER = re.compile(r"^B\t\d+\t(CommandComplete|ParseComplete|ReadyForQuery)\b(?:\t(.*))?$", re.MULTILINE)


@dataclass(frozen=True)
class Transaction:
    """From BEGIN to COMMIT or ROLLBACK; or one statement that is its own transaction."""

    tags: tuple[str, ...]
    """What the server answered to each statement: "BEGIN", "UPDATE 100", "COMMIT"."""
    round_trips: int
    """How often the client waited for the server; preparing, once for each statement of a connection, is left out."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The tags without their counts."""
        return tuple(tag.split()[0] for tag in self.tags)

    def rows(self, kind: str) -> int:
        """How many rows the statements of this kind had."""
        return sum(int(tag.split()[-1]) for tag in self.tags if tag.split()[0] == kind and tag[-1].isdigit())


@dataclass(frozen=True)
class Talk:
    """All that one connection has said and heard."""

    text: str

    @property
    def transactions(self) -> list[Transaction]:
        found: list[Transaction] = []
        tags: list[str] = []
        waits, answered, prepared = 0, False, False
        for message, rest in _ANSWER.findall(self.text):
            if message == "CommandComplete":
                tags.append(rest.strip(' "'))
                answered = True
            elif message == "ParseComplete":
                prepared = True
            elif message == "ReadyForQuery":
                waits += answered or not prepared
                answered = prepared = False
                if rest.strip() == "I" and tags:
                    found.append(Transaction(tuple(tags), waits))
                    tags, waits = [], 0
        return found


class Wire:
    """Notes what the connections of `engine` say and hear. Linux only, as libpq's trace is in psycopg."""

    def __init__(self, engine: Engine) -> None:
        self._files: list[IO[bytes]] = []
        event.listen(engine, "connect", self._trace)

    def _trace(self, connection: Any, record: Any) -> None:
        file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the connection is)
        self._files.append(file)
        pgconn = getattr(connection, "driver_connection", connection).pgconn
        pgconn.trace(file.fileno())
        pgconn.set_trace_flags(_NO_TIMES)

    def connections(self, sent: str) -> list[Talk]:
        """Those that have sent something that matches this. What an open one has said last may be missing."""
        talks = []
        for file in self._files:
            file.seek(0)
            talks.append(Talk(file.read().decode()))
        return [talk for talk in talks if re.search(sent, talk.text)]

    def close(self) -> None:
        for file in self._files:
            file.close()
