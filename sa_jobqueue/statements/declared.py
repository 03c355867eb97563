"""What code declares of schedules: new ones, changed ones, and those that no code declares any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from ..models import Schedule
from .parts import array, epoch, lock_in_order, members, table_of

__all__ = [
    "DEFINED",
    "change_declared",
    "declare_new",
    "declared_schedules",
    "lock_declared",
    "pause_undeclared",
    "resume_declared",
    "say_declared",
]

#: What a definition says, beside the name.
DEFINED = (
    "expression", "timezone", "missed", "catch_up", "overlap", "jitter", "pause_after", "task", "args", "queue", "priority",
    "max_attempts", "meta", "uniqueness", "expires_in", "deadline", "concurrency_key", "units",
)  # fmt: skip


def declared_schedules(names: Sequence[str], *, schedule: type[Schedule] = Schedule) -> sa.Executable:
    """Those of these schedules that are there. Columns: name; current, the digest of the definition that code declared last, and age,
    the seconds since then, both NULL if it was made at run time; undeclared, true if it is paused because no code declares it.
    """
    columns = table_of(schedule).c
    current = columns.definitions[sa.func.cardinality(columns.definitions)]
    return sa.select(
        columns.name,
        current.label("current"),
        (epoch(sa.func.now()) - epoch(columns.declared_at)).label("age"),
        (columns.paused_by == sa.literal_column("'undeclared'")).label("undeclared"),
    ).where(columns.name == sa.func.any(array("schedule_names", names, sa.Text())))


def declare_new(*, values: Mapping[str, Any], digest: str, schedule: type[Schedule] = Schedule) -> sa.Executable:
    """Insert a schedule that code declares. Nothing happens if its name is there."""
    made = insert(table_of(schedule)).values(
        **values, declared=dict(values), definitions=[digest], declared_at=sa.func.now()
    )
    return made.on_conflict_do_nothing(index_elements=["name"]).returning(sa.literal_column("1"))


def lock_declared(name: str, *, schedule: type[Schedule] = Schedule) -> sa.Executable:
    """One schedule that code has declared, locked: its definition in the row, what code had declared, and the digests so far.

    Nothing if another transaction has locked it just now.
    """
    columns = table_of(schedule).c
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
    schedule: type[Schedule] = Schedule,
) -> sa.Executable:
    """Write a new definition: the columns that are to change, and what code says of all of them."""
    table = table_of(schedule)
    return (
        sa.update(table)
        .where(table.c.name == name)
        .values(**changes, declared=dict(declared), definitions=list(definitions), declared_at=sa.func.now())
    )


def say_declared(names: Sequence[str], *, schedule: type[Schedule] = Schedule) -> sa.Executable:
    """These schedules are declared by a living worker. A row that another transaction has locked is left."""
    table = table_of(schedule)
    mine = lock_in_order(table, table.c.name == sa.func.any(array("schedule_names", names, sa.Text())))
    return sa.update(table).where(members(table.c.id, sa.select(mine.c.id))).values(declared_at=sa.func.now())


def resume_declared(names: Sequence[str], *, schedule: type[Schedule] = Schedule) -> sa.Executable:
    """Schedules that were paused because no code declared them go on. Returns their names; not of a row that another transaction has
    locked.
    """
    table = table_of(schedule)
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


def pause_undeclared(*, after: timedelta, schedule: type[Schedule] = Schedule) -> sa.Executable:
    """Pause the schedules that code had declared, and that none has for this long. Returns their names; not of a row that another
    transaction has locked.
    """
    table = table_of(schedule)
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
