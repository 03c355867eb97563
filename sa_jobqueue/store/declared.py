"""Writing down what code declares of schedules."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import sqlalchemy as sa

from ..models import Schedule
from ..statements.declared import (
    DEFINED,
    change_declared,
    declare_new,
    declared_schedules,
    lock_declared,
    pause_undeclared,
    resume_declared,
    say_declared,
)
from .definitions import SAY_AGAIN, Declaring, Definition, definition, digests_with, to_change
from .tables import OfTables

__all__ = ["DeclaredSchedules", "definition_of"]


def definition_of(schedule: Schedule) -> Definition:
    """What a schedule that was made by code says."""
    return definition({name: getattr(schedule, name) for name in ("name", *DEFINED)})


class DeclaredSchedules(OfTables):
    """What workers' code declares, in the table of schedules."""

    def declare(
        self, connection: sa.Connection, definitions: Mapping[str, Definition], *, gone: timedelta
    ) -> Declaring:
        """Write down what this worker's code declares.

        A definition that was replaced does not come back while a living worker declares the one that replaced it. `gone`: what no
        worker has declared for this long, none declares any more. Columns that were edited by hand stay. The rows are written in
        the order of their names, so that two workers cannot deadlock.
        """
        schedule, result = self.tables.schedule, Declaring()
        there = {row.name: row for row in connection.execute(declared_schedules(list(definitions), schedule=schedule))}
        said: list[str] = []
        resumed: list[str] = []
        for name, one in sorted(definitions.items()):
            row = there.get(name)
            if row is None:
                made = declare_new(values=one.values, digest=one.digest, schedule=schedule)
                if connection.execute(made).first() is not None:
                    result.made.append(name)
                else:
                    result.locked.append(name)
                continue
            if row.age is None:
                result.taken.append(name)
                continue
            if row.current != one.digest and not self._replace(
                connection, name, one, result, gone=row.age > gone.total_seconds()
            ):
                continue
            if row.undeclared:
                resumed.append(name)
            if row.age > SAY_AGAIN:
                said.append(name)
        if said:
            connection.execute(say_declared(said, schedule=schedule))
        if resumed:
            result.resumed = list(connection.scalars(resume_declared(resumed, schedule=schedule)))
        return result

    def _replace(self, connection: sa.Connection, name: str, new: Definition, result: Declaring, *, gone: bool) -> bool:
        row = connection.execute(lock_declared(name, schedule=self.tables.schedule)).first()
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
                schedule=self.tables.schedule,
            )
        )  # fmt: skip
        result.changed.append(name)
        return True

    def pause_undeclared(self, connection: sa.Connection, *, after: timedelta) -> list[str]:
        """Pause the schedules that no code has declared for this long. Returns their names."""
        return list(connection.scalars(pause_undeclared(after=after, schedule=self.tables.schedule)))
