"""What a handler has written: the rows that differ before and after, read from the database, which then forgets them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session, SessionTransaction

from ...errors import JobQueueError
from ...models import Job, job_schemas
from .joined import connection_of

#: Rows of a table that are compared; and that are read if only written rows are.
_MOST, _MOST_WRITTEN = 100_000, 5_000

_Kind: TypeAlias = Literal["insert", "update", "delete"]
_KINDS: tuple[_Kind, ...] = ("insert", "update", "delete")
#: By what tells rows apart: the primary key, and the whole row.
_Rows: TypeAlias = dict[tuple[str, int], tuple[Mapping[str, Any], Mapping[str, Any]]]

# Of this session, and also within savepoints that are still open.
_TOUCHED = sa.text(
    "SELECT relid::bigint, schemaname, relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_xact_user_tables "
    "WHERE n_tup_ins + n_tup_upd + n_tup_del > 0"
)
_KEY = sa.text(
    "SELECT attname FROM pg_index, unnest(indkey) WITH ORDINALITY AS part (attnum, place) JOIN pg_attribute USING (attnum) "
    "WHERE indrelid = :relid AND attrelid = :relid AND indisprimary ORDER BY place"
)
#: Whether this transaction may have written or deleted the row: transactions that began before it did not. The transaction must have
#: written before.
_MAY_BE_OURS: sa.ColumnElement[bool] = sa.literal_column("age(row.xmin) <= 0 OR age(row.xmax) <= 0", sa.Boolean)


class Writes(NamedTuple):
    """The numbers of rows of a table that statements have written. What a savepoint undid is counted, too."""

    inserted: int
    updated: int
    deleted: int


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


class Comparison:
    """Compares the rows before and after.

    `only_written`: of each table, read only rows that the transaction may have written, so that a large table is read without being sent;
    the transaction must have written before.
    """

    def __init__(self, session: Session, *, only_written: bool = False) -> None:
        session.flush()
        self.found = Effects()
        self.writes: dict[str, Writes] = {}
        """By table, if it is the application's or has jobs."""
        self._session, self._connection = session, connection_of(session, Job)
        self._only_written = only_written
        self._before = _touched(self._connection)
        self._savepoint: SessionTransaction = session.begin_nested()

    def undo(self) -> None:
        """Undo the writes."""
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
        connection, only_written = self._connection, self._only_written
        now = _touched(connection).items()
        touched = {relation: writes for relation, writes in now if writes != self._before.get(relation)}
        shown = [relation for relation in touched if relation.is_shown(connection)]
        self.writes |= {relation.label: touched[relation] for relation in shown}
        after = [relation.rows(connection, only_written=only_written) for relation in shown]
        self._savepoint.rollback()
        ours = _our_schemas(connection)
        for relation, rows in zip(shown, after, strict=True):
            named = [key for key, _ in rows.values()]
            before = relation.rows(connection, only_written=only_written, named=named)
            writes = touched[relation]
            kinds: Collection[_Kind] = _KINDS
            if relation.schema in ours:  # the queue itself changes and deletes jobs
                kinds = _KINDS[:1]
            elif only_written and not writes.updated:  # an update of a key is a row less and a row more
                kinds = [kind for kind, number in zip(_KINDS, writes, strict=True) if number]
            self.found += relation.compared(before, rows, kinds)


class _Relation(NamedTuple):
    """A table that was written to."""

    id: int
    schema: str
    name: str

    @property
    def label(self) -> str:
        """The name, with the schema unless that is `public`."""
        return self.name if self.schema == "public" else f"{self.schema}.{self.name}"

    def is_shown(self, connection: sa.Connection) -> bool:
        """Whether it is the application's, or has jobs."""
        return self.schema not in _our_schemas(connection) or self.name == Job.__tablename__

    def rows(
        self, connection: sa.Connection, *, only_written: bool, named: Collection[Mapping[str, Any]] = ()
    ) -> _Rows:
        """The rows as plain JSON, by their primary key; without a key, by themselves and a number.

        `only_written`: those that this transaction may have written, and those with the keys `named`.
        """
        key = connection.scalars(_KEY, {"relid": self.id}).all()
        table = sa.table(self.name, *(sa.column(name) for name in key), schema=self.schema)
        row = table.alias("row")
        statement = sa.select(sa.func.to_jsonb(sa.literal_column("row"), type_=JSONB)).select_from(row)
        if only_written:
            wanted = [_MAY_BE_OURS]
            if key and named:
                typed: sa.ColumnElement[Any] = sa.literal_column(
                    f"NULL::{connection.dialect.identifier_preparer.format_table(table)}"
                )
                given = sa.func.jsonb_populate_recordset(typed, sa.cast(list(named), JSONB)).table_valued(*key)
                wanted.append(sa.tuple_(*(row.c[name] for name in key)).in_(sa.select(*given.c)))
            statement = statement.where(sa.or_(*wanted))
        most, rows_of = (_MOST_WRITTEN, "written rows") if only_written else (_MOST, "rows")
        found: Sequence[Any] = connection.scalars(statement.limit(most + 1)).all()
        if len(found) > most:
            raise JobQueueError(f"the table {self.name} has more than {most:,} {rows_of}, which is too much to compare")
        times: Counter[str] = Counter()
        rows: _Rows = {}
        for values in found:
            identity = json.dumps([values[name] for name in key] if key else values, sort_keys=True)
            times[identity] += 1
            rows[identity, times[identity]] = {name: values[name] for name in key}, values
        return rows

    def compared(self, before: _Rows, after: _Rows, kinds: Collection[_Kind]) -> list[RowChange]:
        """The changes of these kinds."""
        nothing: tuple[Mapping[str, Any], Mapping[str, Any]] = {}, {}
        found: list[RowChange] = []
        for key in {**before, **after}:
            (identity, old), (identity_now, new) = before.get(key, nothing), after.get(key, nothing)
            kind: _Kind = "insert" if key not in before else "delete" if key not in after else "update"
            if old != new and kind in kinds:
                found.append(RowChange(self.label, kind, identity or identity_now, old, new))
        return found


def _touched(connection: sa.Connection) -> dict[_Relation, Writes]:
    """The tables that this transaction has written to, and how often."""
    return {_Relation(*row[:3]): Writes(*row[3:]) for row in connection.execute(_TOUCHED)}


def _our_schemas(connection: sa.Connection) -> set[str]:
    """The schemas that have jobs, the package's and the application's own."""
    translated = connection.get_execution_options().get("schema_translate_map") or {}
    return {translated.get(schema, schema) for schema in job_schemas()}
