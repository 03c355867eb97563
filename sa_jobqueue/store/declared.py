"""Writing down what code declares of schedules."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection

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
from .tables import OfTables

__all__ = ["DeclaredSchedules", "Declaring", "Definition", "definition_of"]

#: A worker says again what it declares when it has not said so for this number of seconds.
_SAY_AGAIN = 30.0
#: Digests that are kept of a schedule's former definitions.
_FORMER = 100


class Definition(NamedTuple):
    """What code declares of a schedule, by column; and the digest of that."""

    values: Mapping[str, Any]
    digest: str


def definition_of(schedule: Schedule) -> Definition:
    """What a schedule that was made by code says."""
    values = {name: getattr(schedule, name) for name in ("name", *DEFINED)}
    # Not what it leaves open: so the digests that rows have do not change when a later release adds a column.
    said = {name: value for name, value in values.items() if value is not None}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return Definition(values, hashlib.sha256(text.encode()).hexdigest()[:24])


@dataclass(slots=True)
class Declaring:
    """What became of the schedules that code declares, by name."""

    made: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    superseded: list[str] = field(default_factory=list)
    """Another definition is in use, of a newer release or of another application."""
    taken: list[str] = field(default_factory=list)
    """The name belongs to a schedule that was made at run time."""
    locked: list[str] = field(default_factory=list)
    """Another transaction has locked it just now."""


class DeclaredSchedules(OfTables):
    """What workers' code declares, in the table of schedules."""

    def declare(self, connection: Connection, definitions: Mapping[str, Definition], *, gone: timedelta) -> Declaring:
        """Write down what this worker's code declares.

        A definition that was replaced does not come back while a living worker declares the one that replaced it. `gone`: what no
        worker has declared for this long, none declares any more. Columns that were edited by hand stay. The rows are written in
        the order of their names, so that two workers cannot deadlock.
        """
        schedule, result = self.tables.schedule, Declaring()
        there = {row.name: row for row in connection.execute(declared_schedules(list(definitions), schedule=schedule))}
        said: list[str] = []
        resumed: list[str] = []
        for name, definition in sorted(definitions.items()):
            row = there.get(name)
            if row is None:
                made = declare_new(values=definition.values, digest=definition.digest, schedule=schedule)
                if connection.execute(made).first() is not None:
                    result.made.append(name)
                else:
                    result.locked.append(name)
                continue
            if row.age is None:
                result.taken.append(name)
                continue
            if row.current != definition.digest and not self._replace(
                connection, name, definition, result, gone=row.age > gone.total_seconds()
            ):
                continue
            if row.undeclared:
                resumed.append(name)
            if row.age > _SAY_AGAIN:
                said.append(name)
        if said:
            connection.execute(say_declared(said, schedule=schedule))
        if resumed:
            result.resumed = list(connection.scalars(resume_declared(resumed, schedule=schedule)))
        return result

    def _replace(
        self, connection: Connection, name: str, definition: Definition, result: Declaring, *, gone: bool
    ) -> bool:
        row = connection.execute(lock_declared(name, schedule=self.tables.schedule)).first()
        if row is None:
            result.locked.append(name)
            return False
        known: list[str] = list(row.definitions or ())
        if definition.digest in known and not gone:
            result.superseded.append(name)
            return False
        before = row.declared if isinstance(row.declared, dict) else {}  # by hand it may be any JSON
        values = definition.values
        changes = {
            column: values[column] for column in DEFINED if getattr(row, column) == before.get(column) != values[column]
        }
        digests = [one for one in known if one != definition.digest][-_FORMER:]
        connection.execute(
            change_declared(
                name, changes=changes, declared=values, definitions=[*digests, definition.digest],
                schedule=self.tables.schedule,
            )
        )  # fmt: skip
        result.changed.append(name)
        return True

    def pause_undeclared(self, connection: Connection, *, after: timedelta) -> list[str]:
        """Pause the schedules that no code has declared for this long. Returns their names."""
        return list(connection.scalars(pause_undeclared(after=after, schedule=self.tables.schedule)))
