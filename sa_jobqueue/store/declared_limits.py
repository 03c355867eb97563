"""Writing down what code declares of limits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import sqlalchemy as sa

from ..limits import Limits, Owner
from ..statements.declared_limits import (
    LIMITS,
    change_declared_limit,
    declare_new_limit,
    declared_limits,
    drop_undeclared_limits,
    lock_declared_limit,
    say_declared_limits,
)
from .definitions import SAY_AGAIN, Declaring, Definition, definition, digests_with, to_change
from .tables import OfTables

__all__ = ["DeclaredLimits", "limits_definition"]


def limits_definition(limits: Limits) -> Definition:
    """What code says by these limits."""
    return definition(limits.columns())


class DeclaredLimits(OfTables):
    """What workers' code declares, in the table of limits."""

    def declare_limits(
        self, connection: sa.Connection, definitions: Mapping[tuple[Owner, str], Definition], *, gone: timedelta
    ) -> Declaring:
        """Write down what this worker's code declares, by owner and name.

        A definition that was replaced does not come back while a living worker declares the one that replaced it. `gone`: what no
        worker has declared for this long, none declares any more. What an operator holds keeps the operator's values. The rows are
        written in the order of their names, so that two workers cannot deadlock.
        """
        limit, result = self.tables.limit, Declaring()
        if not definitions:
            return result
        owners, names = zip(*definitions, strict=True)
        found = connection.execute(declared_limits(owners, names, limit=limit))
        there = {(row.owner, row.name): row for row in found}
        said: list[tuple[str, str]] = []
        for (owner, name), one in sorted(definitions.items()):
            row = there.get((owner, name))
            if row is None:
                made = declare_new_limit(owner, name, values=one.values, digest=one.digest, limit=limit)
                is_made = connection.execute(made).first() is not None
                (result.made if is_made else result.locked).append(_said(owner, name))
            elif row.current != one.digest:
                is_gone = row.age is None or row.age > gone.total_seconds()
                self._replace_limit(connection, owner, name, one, result, gone=is_gone)
            elif row.age is None or row.age > SAY_AGAIN:
                said.append((owner, name))
        if said:
            owners, names = zip(*said, strict=True)
            connection.execute(say_declared_limits(owners, names, limit=limit))
        return result

    def _replace_limit(
        self, connection: sa.Connection, owner: str, name: str, new: Definition, result: Declaring, *, gone: bool
    ) -> None:
        limit, said = self.tables.limit, _said(owner, name)
        row = connection.execute(lock_declared_limit(owner, name, limit=limit)).first()
        if row is None:
            result.locked.append(said)
            return
        digests = digests_with(new.digest, row.definitions, gone=gone)
        if digests is None:
            result.superseded.append(said)
            return
        before = Limits().columns() if row.declared is None else row.declared
        changes = {} if row.held else to_change(row, before, new.values, LIMITS)
        connection.execute(
            change_declared_limit(owner, name, changes=changes, declared=new.values, definitions=digests, limit=limit)
        )
        (result.held if row.held else result.changed).append(said)

    def drop_undeclared_limits(self, connection: sa.Connection, *, after: timedelta) -> list[str]:
        """Delete the limits that no code has declared for this long. Returns what they were of."""
        found = connection.execute(drop_undeclared_limits(after=after, limit=self.tables.limit))
        return [_said(row.owner, row.name) for row in found]


def _said(owner: str, name: str) -> str:
    return f"{owner} {name!r}"
