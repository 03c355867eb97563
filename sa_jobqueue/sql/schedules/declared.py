"""Schedules that code declares: new, changed, and no longer declared."""

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

#: The columns of a definition, without the name.
DEFINED = (
    "expression", "timezone", "missed", "catch_up", "overlap", "jitter", "pause_after",
    *(field.schedule for field in JOB_FIELDS if field.schedule is not None),
)  # fmt: skip


def declared_schedules(names: Sequence[str], *, job: type[JobMixin] = Job) -> sa.Executable:
    """The existing rows of these schedules. Columns: name; current, the digest of the definition that code declared last, and age,
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
    """Insert a schedule that code declares. Does nothing if its name is there."""
    made = insert(table_of(companions_of(job).schedule)).values(
        **values, declared=dict(values), definitions=[digest], declared_at=sa.func.now()
    )
    return made.on_conflict_do_nothing(index_elements=["name"]).returning(ONE)


def lock_declared(name: str, *, job: type[JobMixin] = Job) -> sa.Executable:
    """A schedule that code has declared, locked: the definition in its row, the declared values, and the digests so far.

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
    """Write a new definition: the columns that change, and the declared values of all columns."""
    table = table_of(companions_of(job).schedule)
    return (
        sa.update(table)
        .where(table.c.name == name)
        .values(**changes, declared=dict(declared), definitions=list(definitions), declared_at=sa.func.now())
    )


def say_declared(names: Sequence[str], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Renew the declaration of these schedules by a live worker. A row that another transaction has locked is left out."""
    table = table_of(companions_of(job).schedule)
    mine = lock_in_order(table, table.c.name == sa.func.any(array("schedule_names", names, sa.Text())))
    return sa.update(table).where(members(table.c.id, sa.select(mine.c.id))).values(declared_at=sa.func.now())


def resume_declared(names: Sequence[str], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Resume schedules that were paused because no code declared them, except rows that another transaction has locked. Returns their
    names.
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
    """Pause the schedules that code had declared, and that no code has declared for this time, except rows that another transaction has
    locked. Returns their names.
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


# ---- Definitions, and which of them is in use while releases roll.

#: Seconds after which a worker renews its declarations.
SAY_AGAIN = 30.0
#: Digests that are kept of a row's former definitions.
_FORMER = 100


class Definition(NamedTuple):
    """The values that code declares, by column; and their digest."""

    values: Mapping[str, Any]
    digest: str


@dataclass(slots=True)
class Declaring:
    """The names of the declared rows, by what was done with them."""

    made: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    """An operator's values are in use; the declared values are written next to them."""
    superseded: list[str] = field(default_factory=list)
    """Another definition is in use, of a newer release or of another application."""
    taken: list[str] = field(default_factory=list)
    """The name belongs to a row that was made at run time."""
    locked: list[str] = field(default_factory=list)
    """Another transaction has locked it just now."""


def definition(values: Mapping[str, Any]) -> Definition:
    """The definition with these values."""
    # Without the values that it leaves open: so the digests that rows have do not change when a later release adds a column.
    given = {name: value for name, value in values.items() if value is not None}
    text = json.dumps(given, sort_keys=True, separators=(",", ":"))
    return Definition(values, hashlib.sha256(text.encode()).hexdigest()[:24])


def digests_with(digest: str, known: Sequence[str] | None, *, gone: bool) -> list[str] | None:
    """The digests of a row with the digest of its new definition at the end. None if the definition was replaced before, and stays so
    because a live worker declares the definition in use, which is not `gone`.
    """
    before = list(known or ())
    if digest in before and not gone:
        return None
    return [*[former for former in before if former != digest][-_FORMER:], digest]


def to_change(row: Any, before: object, values: Mapping[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """The columns of a row that a new definition changes. A column that differs from the value declared `before` was edited, and stays."""
    old: Mapping[str, Any] = before if isinstance(before, dict) else {}  # by hand it may be any JSON
    changes = {name: values[name] for name in columns if getattr(row, name) == old.get(name) != values[name]}
    if "extras" in changes and row.args != old.get("args"):
        changes.pop("extras", None)  # arguments that were edited keep their version
    return changes


# ---- Writing the declared schedules.


def definition_of(schedule: Schedule) -> Definition:
    """The definition of a schedule that was made by code."""
    return definition({name: getattr(schedule, name) for name in ("name", *DEFINED)})


class DeclaredSchedules(StorePart):
    """The declared schedules in the table of schedules."""

    def declare(
        self, connection: sa.Connection, definitions: Mapping[str, Definition], *, gone: timedelta
    ) -> Declaring:
        """Write the schedules that this worker's code declares.

        A definition that was replaced does not come back while a live worker declares its replacement. `gone`: the time after which a
        definition that no worker has declared again is gone. Columns that were edited by hand stay. The rows are written in
        the order of their names, so that two workers cannot deadlock.
        """
        result = Declaring()
        there = {row.name: row for row in connection.execute(declared_schedules(list(definitions), job=self.job))}
        to_renew, resumed = list[str](), list[str]()
        for name, new in sorted(definitions.items()):
            row = there.get(name)
            if row is None:
                made = declare_new(values=new.values, digest=new.digest, job=self.job)
                is_made = connection.execute(made).first() is not None
                (result.made if is_made else result.locked).append(name)
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
                to_renew.append(name)
        if to_renew:
            connection.execute(say_declared(to_renew, job=self.job))
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
        """Pause the schedules that no code has declared for this time. Returns their names."""
        return list(connection.scalars(pause_undeclared(after=after, job=self.job)))
