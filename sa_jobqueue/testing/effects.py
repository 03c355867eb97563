"""What a handler would write: the rows that differ before and after, read from the database, which then forgets them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from ..errors import JobQueueError
from ..models import Job, job_schemas
from .transaction import AsyncSide, Side, SyncSide, connection_of, own_session

#: Rows of a table that are compared.
_MOST = 100_000

_Kind: TypeAlias = Literal["insert", "update", "delete"]
#: By what tells rows apart: the primary key, and the whole row.
_Rows: TypeAlias = dict[tuple[str, int], tuple[Mapping[str, Any], Mapping[str, Any]]]

# Of this session, and also within savepoints that are still open.
_TOUCHED = sa.text(
    "SELECT relid::bigint, schemaname, relname, n_tup_ins + n_tup_upd + n_tup_del AS times FROM pg_stat_xact_user_tables "
    "WHERE n_tup_ins + n_tup_upd + n_tup_del > 0"
)
_KEY = sa.text(
    "SELECT attname FROM pg_index, unnest(indkey) WITH ORDINALITY AS part (attnum, place) JOIN pg_attribute USING (attnum) "
    "WHERE indrelid = :relid AND attrelid = :relid AND indisprimary ORDER BY place"
)


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row that was inserted, updated or deleted. Values are plain JSON."""

    table: str
    """With its schema, unless that is `public`."""
    kind: _Kind
    key: Mapping[str, Any]
    """The primary key; empty if the table has none."""
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """The columns that differ, each with what it was and what it is."""
        names = {**self.before, **self.after}
        return {
            name: (self.before.get(name), self.after.get(name))
            for name in names
            if self.before.get(name) != self.after.get(name)
        }

    def __str__(self) -> str:
        key = " ".join(f"{name}={value!r}" for name, value in self.key.items())
        where = f"{self.table} {key}".rstrip()
        if self.kind == "delete":
            return f"- {where}"
        if self.kind == "insert":
            rest = ", ".join(f"{name}={value!r}" for name, value in self.after.items() if name not in self.key)
            return f"+ {where}: {rest}"
        return f"~ {where}: " + ", ".join(f"{name} {old!r} -> {new!r}" for name, (old, new) in self.changed.items())


class Effects(list[RowChange]):
    """The rows that differ, table by table. As text, a line for each."""

    def of(self, table: str) -> list[RowChange]:
        """The changes of a table."""
        return [change for change in self if change.table == table]

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "nothing was written"


@overload
def effects(session: SyncSide) -> AbstractContextManager[Effects]: ...
@overload
def effects(session: AsyncSide) -> AbstractAsyncContextManager[Effects]: ...
def effects(session: Side) -> Any:
    """Undo the writes of a block, and return them.

    `with effects(session) as rows:`, or `async with` for an `AsyncSession`. In the block `drain` or `work_one` run jobs, or the test calls a handler.

    It sees what the database saw: triggers, cascades and plain SQL as well, but no TRUNCATE. Of the queue's own tables, and of job tables of
    your own, it shows the jobs that were enqueued. Tables of up to 100,000 rows are compared.

    Raises JobQueueError if the session's transaction was ended in the block, or a table is larger.
    """
    own = own_session(session)
    return _async_effects(own) if isinstance(own, AsyncSession) else _effects(own)


@contextmanager
def _effects(session: Session) -> Generator[Effects]:
    comparison = _Comparison(session)
    try:
        yield comparison.found
    except BaseException:
        comparison.undo()
        raise
    comparison.compare()


@asynccontextmanager
async def _async_effects(session: AsyncSession) -> AsyncGenerator[Effects]:
    comparison = await session.run_sync(_Comparison)
    try:
        yield comparison.found
    except BaseException:
        await session.run_sync(lambda _: comparison.undo())
        raise
    await session.run_sync(lambda _: comparison.compare())


class _Comparison:
    """Compares the rows before and after."""

    def __init__(self, session: Session) -> None:
        session.flush()
        self.found = Effects()
        self._session, self._connection = session, connection_of(session, Job)
        self._before = _touched(self._connection)
        self._savepoint: SessionTransaction = session.begin_nested()

    def undo(self) -> None:
        if self._savepoint.is_active:
            self._savepoint.rollback()

    def compare(self) -> None:
        """Undo the writes, and note them."""
        self._session.flush()
        if not self._savepoint.is_active:
            raise JobQueueError(
                "the session was committed or rolled back within effects(): let drain() or work_one() run the handler, whose "
                "commit() ends nothing"
            )
        touched = _touched(self._connection)
        relations = [relation for relation, times in touched.items() if times != self._before.get(relation)]
        shown = [relation for relation in relations if relation.is_shown(self._connection)]
        after = [relation.rows(self._connection) for relation in shown]
        self._savepoint.rollback()
        ours = _our_schemas(self._connection)
        for relation, rows in zip(shown, after, strict=True):
            self.found += relation.compared(relation.rows(self._connection), rows, jobs=relation.schema in ours)


class _Relation(NamedTuple):
    """A table that was written to."""

    id: int
    schema: str
    name: str

    def is_shown(self, connection: sa.Connection) -> bool:
        """Whether it is the application's, or has jobs."""
        return self.schema not in _our_schemas(connection) or self.name == Job.__tablename__

    def rows(self, connection: sa.Connection) -> _Rows:
        """All rows as plain JSON, by their primary key; without a key, by themselves and a number."""
        key = connection.scalars(_KEY, {"relid": self.id}).all()
        row = sa.table(self.name, schema=self.schema).alias("row")
        whole = sa.func.to_jsonb(sa.literal_column("row"), type_=JSONB)
        found: Sequence[Any] = connection.scalars(sa.select(whole).select_from(row).limit(_MOST + 1)).all()
        if len(found) > _MOST:
            raise JobQueueError(f"the table {self.name} has more than {_MOST:,} rows, which is too much to compare")
        times: Counter[str] = Counter()
        rows: _Rows = {}
        for values in found:
            identity = json.dumps([values[name] for name in key] if key else values, sort_keys=True)
            times[identity] += 1
            rows[identity, times[identity]] = {name: values[name] for name in key}, values
        return rows

    def compared(self, before: _Rows, after: _Rows, *, jobs: bool) -> list[RowChange]:
        """What became of the rows. Of `jobs`, only those that were enqueued: what else happens to them is the queue's."""
        name = self.name if self.schema == "public" else f"{self.schema}.{self.name}"
        nothing: tuple[Mapping[str, Any], Mapping[str, Any]] = {}, {}
        found: list[RowChange] = []
        for key in {**before, **after}:
            (identity, old), (identity_now, new) = before.get(key, nothing), after.get(key, nothing)
            kind: _Kind = "insert" if key not in before else "delete" if key not in after else "update"
            if old != new and (kind == "insert" or not jobs):
                found.append(RowChange(name, kind, identity or identity_now, old, new))
        return found


def _touched(connection: sa.Connection) -> dict[_Relation, int]:
    """The tables that this transaction has written to, and how often."""
    return {_Relation(*row[:3]): row.times for row in connection.execute(_TOUCHED)}


def _our_schemas(connection: sa.Connection) -> set[str]:
    """The schemas that have jobs, the package's and the application's own."""
    translated = connection.get_execution_options().get("schema_translate_map") or {}
    return {translated.get(schema, schema) for schema in job_schemas()}
