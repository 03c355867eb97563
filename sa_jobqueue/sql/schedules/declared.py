"""What code declares of schedules: new ones, changed ones, and those that no code declares any more."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from ...models import Job, JobMixin, Schedule, companions_of
from ...rules.job_fields import JOB_FIELDS
from ..parts import ONE, array, epoch, lock_in_order, members, table_of
from ..tables import StorePart

#: What a definition says, beside the name.
DEFINED = (
    "expression", "timezone", "missed", "catch_up", "overlap", "jitter", "pause_after",
    *(field.schedule for field in JOB_FIELDS if field.schedule is not None),
)  # fmt: skip


def declared_schedules(names: Sequence[str], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Those of these schedules that are there. Columns: name; current, the digest of the definition that code declared last, and age,
    the seconds since then, both NULL if it was made at run time; undeclared, true if it is paused because no code declares it.
    """
    columns = table_of(companions_of(job).schedule).c
    current = columns.definitions[sa.func.cardinality(columns.definitions)]
    return sa.select(
        columns.name,
        current.label("current"),
        (epoch(sa.func.now()) - epoch(columns.declared_at)).label("age"),
        (columns.paused_by == sa.literal_column("'undeclared'")).label("undeclared"),
    ).where(columns.name == sa.func.any(array("schedule_names", names, sa.Text())))


def declare_new(*, values: Mapping[str, Any], digest: str, job: type[JobMixin] = Job) -> sa.Executable:
    """Insert a schedule that code declares. Nothing happens if its name is there."""
    made = insert(table_of(companions_of(job).schedule)).values(
        **values, declared=dict(values), definitions=[digest], declared_at=sa.func.now()
    )
    return made.on_conflict_do_nothing(index_elements=["name"]).returning(ONE)


def lock_declared(name: str, *, job: type[JobMixin] = Job) -> sa.Executable:
    """One schedule that code has declared, locked: its definition in the row, what code had declared, and the digests so far.

    Nothing if another transaction has locked it just now.
    """
    columns = table_of(companions_of(job).schedule).c
    own = [columns[key] for key in DEFINED]
    return (
        sa.select(*own, columns.declared, columns.definitions)
        .where(columns.name == name, columns.declared_at.is_not(None))
        .with_for_update(key_share=True, skip_locked=True)
    )


def change_declared(
    name: str,
    *,
    changes: Mapping[str, Any],
    declared: Mapping[str, Any],
    definitions: Sequence[str],
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """Write a new definition: the columns that are to change, and what code says of all of them."""
    table = table_of(companions_of(job).schedule)
    return (
        sa.update(table)
        .where(table.c.name == name)
        .values(**changes, declared=dict(declared), definitions=list(definitions), declared_at=sa.func.now())
    )


def say_declared(names: Sequence[str], *, job: type[JobMixin] = Job) -> sa.Executable:
    """These schedules are declared by a living worker. A row that another transaction has locked is left."""
    table = table_of(companions_of(job).schedule)
    mine = lock_in_order(table, table.c.name == sa.func.any(array("schedule_names", names, sa.Text())))
    return sa.update(table).where(members(table.c.id, sa.select(mine.c.id))).values(declared_at=sa.func.now())


def resume_declared(names: Sequence[str], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Schedules that were paused because no code declared them go on. Returns their names; not of a row that another transaction has
    locked.
    """
    table = table_of(companions_of(job).schedule)
    mine = lock_in_order(
        table,
        table.c.name == sa.func.any(array("schedule_names", names, sa.Text())),
        table.c.paused_by == sa.literal_column("'undeclared'"),
    )
    return (
        sa.update(table)
        .where(members(table.c.id, sa.select(mine.c.id)))
        .values(paused_at=sa.null())
        .returning(table.c.name)
    )


def pause_undeclared(*, after: timedelta, job: type[JobMixin] = Job) -> sa.Executable:
    """Pause the schedules that code had declared, and that none has for this long. Returns their names; not of a row that another
    transaction has locked.
    """
    table = table_of(companions_of(job).schedule)
    columns = table.c
    mine = lock_in_order(table, columns.paused_at.is_(None), columns.declared_at < sa.func.now() - after)
    return (
        sa.update(table)
        .where(members(columns.id, sa.select(mine.c.id)))
        .values(
            paused_at=sa.func.now(),
            paused_by=sa.literal_column("'undeclared'"),
            pause_reason=sa.literal_column("'no worker''s code declares it any more'"),
        )
        .returning(columns.name)
    )


# ---- What code declares, and which definition is in use while releases roll.

#: A worker says again what it declares when it has not said so for this number of seconds.
SAY_AGAIN = 30.0
#: Digests that are kept of a row's former definitions.
_FORMER = 100


class Definition(NamedTuple):
    """What code declares, by column; and the digest of that."""

    values: Mapping[str, Any]
    digest: str


@dataclass(slots=True)
class Declaring:
    """What became of what code declares, by name."""

    made: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    """An operator's values are in use; what the code declares now is written beside them."""
    superseded: list[str] = field(default_factory=list)
    """Another definition is in use, of a newer release or of another application."""
    taken: list[str] = field(default_factory=list)
    """The name belongs to a row that was made at run time."""
    locked: list[str] = field(default_factory=list)
    """Another transaction has locked it just now."""


def definition(values: Mapping[str, Any]) -> Definition:
    """The definition that says these values."""
    # Not what it leaves open: so the digests that rows have do not change when a later release adds a column.
    said = {name: value for name, value in values.items() if value is not None}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return Definition(values, hashlib.sha256(text.encode()).hexdigest()[:24])


def digests_with(digest: str, known: Sequence[str] | None, *, gone: bool) -> list[str] | None:
    """The digests of a row with that of its new definition at the end. None: it was replaced, and stays so; unless no living worker
    declares the one in use, which is `gone`.
    """
    before = list(known or ())
    if digest in before and not gone:
        return None
    return [*[former for former in before if former != digest][-_FORMER:], digest]


def to_change(row: Any, before: object, values: Mapping[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """The columns of a row that a new definition changes. One that differs from what code said `before` was edited, and stays."""
    said: Mapping[str, Any] = before if isinstance(before, dict) else {}  # by hand it may be any JSON
    return {name: values[name] for name in columns if getattr(row, name) == said.get(name) != values[name]}


# ---- Writing down what code declares of schedules.


def definition_of(schedule: Schedule) -> Definition:
    """What a schedule that was made by code says."""
    return definition({name: getattr(schedule, name) for name in ("name", *DEFINED)})


class DeclaredSchedules(StorePart):
    """What workers' code declares, in the table of schedules."""

    def declare(
        self, connection: sa.Connection, definitions: Mapping[str, Definition], *, gone: timedelta
    ) -> Declaring:
        """Write down what this worker's code declares.

        A definition that was replaced does not come back while a living worker declares the one that replaced it. `gone`: what no
        worker has declared for this long, none declares any more. Columns that were edited by hand stay. The rows are written in
        the order of their names, so that two workers cannot deadlock.
        """
        result = Declaring()
        there = {row.name: row for row in connection.execute(declared_schedules(list(definitions), job=self.job))}
        said: list[str] = []
        resumed: list[str] = []
        for name, new in sorted(definitions.items()):
            row = there.get(name)
            if row is None:
                made = declare_new(values=new.values, digest=new.digest, job=self.job)
                if connection.execute(made).first() is not None:
                    result.made.append(name)
                else:
                    result.locked.append(name)
                continue
            if row.age is None:
                result.taken.append(name)
                continue
            if row.current != new.digest and not self._replace(
                connection, name, new, result, gone=row.age > gone.total_seconds()
            ):
                continue
            if row.undeclared:
                resumed.append(name)
            if row.age > SAY_AGAIN:
                said.append(name)
        if said:
            connection.execute(say_declared(said, job=self.job))
        if resumed:
            result.resumed = list(connection.scalars(resume_declared(resumed, job=self.job)))
        return result

    def _replace(self, connection: sa.Connection, name: str, new: Definition, result: Declaring, *, gone: bool) -> bool:
        row = connection.execute(lock_declared(name, job=self.job)).first()
        if row is None:
            result.locked.append(name)
            return False
        digests = digests_with(new.digest, row.definitions, gone=gone)
        if digests is None:
            result.superseded.append(name)
            return False
        connection.execute(
            change_declared(
                name, changes=to_change(row, row.declared, new.values, DEFINED), declared=new.values, definitions=digests,
                job=self.job)
        )  # fmt: skip
        result.changed.append(name)
        return True

    def pause_undeclared(self, connection: sa.Connection, *, after: timedelta) -> list[str]:
        """Pause the schedules that no code has declared for this long. Returns their names."""
        return list(connection.scalars(pause_undeclared(after=after, job=self.job)))
