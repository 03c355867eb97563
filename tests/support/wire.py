"""What goes over the wire, as libpq sees it: however a statement is sent, its round trips are counted.

wire = Wire(engine)                                   # before its first connection
service, = wire.connections("claimed_at")             # those that have sent this text
[one.round_trips for one in service.transactions]

with counting(wire, schema="sa_jobqueue") as counted: # all that its connections do meanwhile
    ...
counted.result.commits
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from psycopg.pq import ConnStatus
from sqlalchemy import Engine, event

#: libpq's PQTRACE_SUPPRESS_TIMESTAMPS.
_NO_TIMES = 1
#: A line of the trace; a statement's text has lines of its own.
_ANSWER = re.compile(r"^B\t\d+\t(CommandComplete|ParseComplete|ReadyForQuery)\b(?:\t(.*))?$", re.MULTILINE)
#: What only begins and ends a transaction.
_FRAME = frozenset({"BEGIN", "COMMIT", "ROLLBACK"})


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

    @property
    def committed(self) -> bool:
        """Whether it was not rolled back."""
        return self.kinds[-1] == "COMMIT" or self.kinds[0] != "BEGIN"

    @property
    def statements(self) -> int:
        """Without BEGIN and COMMIT."""
        return sum(kind not in _FRAME for kind in self.kinds)

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
        self._connections: list[tuple[Any, IO[bytes]]] = []
        event.listen(engine, "connect", self._connected)

    def _connected(self, connection: Any, record: Any) -> None:
        pgconn = getattr(connection, "driver_connection", connection).pgconn
        file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the connection is)
        self._connections.append((pgconn, file))
        _trace(pgconn, file)

    @property
    def open(self) -> list[Any]:
        """The connections, as libpq's, that are open."""
        return [pgconn for pgconn, _ in self._connections if pgconn.status == ConnStatus.OK]

    def connections(self, sent: str = "") -> list[Talk]:
        """Those that have sent something that matches this. What an open one has said last may be missing."""
        talks = []
        for _, file in self._connections:
            file.seek(0)
            talks.append(Talk(file.read().decode()))
        return [talk for talk in talks if re.search(sent, talk.text)]

    def forget(self) -> None:
        """What was said until now. All connections have to be at rest."""
        self.pause()
        for pgconn, file in self._connections:
            file.seek(0)
            file.truncate()
            if pgconn.status == ConnStatus.OK:
                _trace(pgconn, file)

    def pause(self) -> None:
        """Note nothing more of those that are open, and miss nothing of what they have said. They have to be at rest."""
        for pgconn in self.open:
            pgconn.untrace()

    def close(self) -> None:
        self.pause()
        for _, file in self._connections:
            file.close()


def _trace(pgconn: Any, file: IO[bytes]) -> None:
    pgconn.trace(file.fileno())
    pgconn.set_trace_flags(_NO_TIMES)


@dataclass(frozen=True)
class Counts:
    """What something asked of the server: the same on every machine."""

    round_trips: int
    commits: int
    """Those of single statements that were their own transactions, too."""
    statements: int
    """Without BEGIN and COMMIT."""
    rows: int
    """Versions of rows that were inserted, updated or deleted."""

    @classmethod
    def of(cls, transactions: Iterable[Transaction], rows: int) -> Counts:
        made = list(transactions)
        return cls(
            sum(one.round_trips for one in made),
            sum(one.committed for one in made),
            sum(one.statements for one in made),
            rows,
        )


class Counted:
    """What was counted, at the end of `counting`."""

    result: Counts


@contextmanager
def counting(wire: Wire, *, schema: str) -> Iterator[Counted]:
    """Count what the connections on `wire` do meanwhile, one of which has to be open; and the rows of this schema.

    Before and after, they have to be at rest. Who else writes there is counted as far as the server has heard of it.
    """
    counted = Counted()
    before = _written(wire.open, schema)
    wire.forget()
    yield counted
    wire.pause()
    transactions = [one for talk in wire.connections() for one in talk.transactions]
    counted.result = Counts.of(transactions, _written(wire.open, schema) - before)


def _written(connections: list[Any], schema: str) -> int:
    """Rows written in the tables of a schema so far, by the server's own count."""
    for pgconn in connections:  # a server process reports at once what it would once a second
        pgconn.exec_(b"SELECT pg_stat_force_next_flush()")
    found = connections[0].exec_params(
        b"SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables WHERE schemaname = $1",
        [schema.encode()],
    )
    return int(found.get_value(0, 0))
