"""Limits that code declares: new, changed, and no longer declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert

from ...models import Job, JobMixin, companions_of
from ...rules.limits import Limits, Owner
from ..parts import ONE, array, epoch, materialized, rows, table_of
from ..schedules.declared import SAY_AGAIN, Declaring, Definition, definition, digests_with, to_change
from ..tables import StorePart

#: The columns of a definition.
LIMITS = tuple(Limits().columns())


def declared_limits(owners: Sequence[str], names: Sequence[str], *, job: type[JobMixin] = Job) -> sa.Executable:
    """The existing rows of these limits. Columns: owner; name; current, the digest of the definition that code declared last, and
    age, the seconds since then, both NULL if code has not declared it yet.
    """
    table = table_of(companions_of(job).limit)
    given = _given(owners, names)
    columns = table.c
    current = columns.definitions[sa.func.cardinality(columns.definitions)]
    return sa.select(
        columns.owner,
        columns.name,
        current.label("current"),
        (epoch(sa.func.now()) - epoch(columns.declared_at)).label("age"),
    ).select_from(table.join(given, (columns.owner == given.c.owner) & (columns.name == given.c.name)))


def declare_new_limit(
    owner: str, name: str, *, values: Mapping[str, Any], digest: str, job: type[JobMixin] = Job
) -> sa.Executable:
    """Insert limits that code declares. Does nothing if the row is there."""
    made = insert(table_of(companions_of(job).limit)).values(
        owner=owner, name=name, **values, declared=dict(values), definitions=[digest], declared_at=sa.func.now()
    )
    return made.on_conflict_do_nothing(index_elements=["owner", "name"]).returning(ONE)


def lock_declared_limit(owner: str, name: str, *, job: type[JobMixin] = Job) -> sa.Executable:
    """One row, locked: its limits, whether they are an operator's, what code had declared, and the digests so far.

    Nothing if another transaction has locked it just now.
    """
    columns = table_of(companions_of(job).limit).c
    return (
        sa.select(*(columns[key] for key in LIMITS), columns.held, columns.declared, columns.definitions)
        .where(*_is(job, owner, name))
        .with_for_update(key_share=True, skip_locked=True)
    )


def change_declared_limit(
    owner: str,
    name: str,
    *,
    changes: Mapping[str, Any],
    declared: Mapping[str, Any],
    definitions: Sequence[str],
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """Write a new definition: the columns that change, and the declared values of all columns."""
    values = sa.bindparam("declared_values", dict(declared), JSONB)
    return (
        sa.update(table_of(companions_of(job).limit))
        .where(*_is(job, owner, name))
        .values(**changes, declared=values, definitions=list(definitions), declared_at=sa.func.now())
    )


def say_declared_limits(owners: Sequence[str], names: Sequence[str], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Renew the declaration of these limits by a live worker. A row that another transaction has locked is left out."""
    table = table_of(companions_of(job).limit)
    given = _given(owners, names)
    mine = _locked(job, sa.tuple_(table.c.owner, table.c.name).in_(sa.select(given.c.owner, given.c.name)))
    return sa.update(table).where(_among(job, mine)).values(declared_at=sa.func.now())


def are_undeclared(*, after: timedelta, job: type[JobMixin] = Job) -> sa.ColumnElement[bool]:
    """Whether there are limits that no code has declared for this time, and that nothing else needs."""
    return sa.select(ONE).where(*_undeclared(job, after)).exists()


def drop_undeclared_limits(*, after: timedelta, job: type[JobMixin] = Job) -> sa.Executable:
    """Delete the limits that code had declared, and that no code has declared for this time, unless an operator has changed or paused them.
    Returns owner and name; not of a row that another transaction has locked.
    """
    table = table_of(companions_of(job).limit)
    mine = _locked(job, *_undeclared(job, after))
    return sa.delete(table).where(_among(job, mine)).returning(table.c.owner, table.c.name)


def _undeclared(job: type[JobMixin], after: timedelta) -> list[sa.ColumnElement[bool]]:
    columns = table_of(companions_of(job).limit).c
    said = (columns.paused_at.is_(None), columns.broken_until.is_(None))
    return [columns.declared_at < sa.func.now() - after, sa.not_(columns.held), *said]


def _given(owners: Sequence[str], names: Sequence[str]) -> Any:
    return rows("given", owner=array("limit_owners", owners, sa.Text()), name=array("limit_names", names, sa.Text()))


def _is(job: type[JobMixin], owner: str, name: str) -> list[sa.ColumnElement[bool]]:
    columns = table_of(companions_of(job).limit).c
    return [
        columns.owner == sa.bindparam("of_owner", owner, sa.Text),
        columns.name == sa.bindparam("of_name", name, sa.Text),
    ]


def _locked(job: type[JobMixin], *where: sa.ColumnElement[bool]) -> Any:
    """The rows that match, locked by this statement in the order of their names."""
    columns = table_of(companions_of(job).limit).c
    return materialized(
        sa.select(columns.owner, columns.name)
        .where(*where)
        .order_by(columns.owner, columns.name)
        .with_for_update(skip_locked=True),
        "locked",
    )


def _among(job: type[JobMixin], mine: Any) -> sa.ColumnElement[bool]:
    columns = table_of(companions_of(job).limit).c
    return sa.tuple_(columns.owner, columns.name).in_(sa.select(mine.c.owner, mine.c.name))


# ---- Writing the declared limits.


def limits_definition(limits: Limits) -> Definition:
    """The definition for these limits."""
    return definition(limits.columns())


class DeclaredLimits(StorePart):
    """The declared limits in the table of limits."""

    def declare_limits(
        self, connection: sa.Connection, definitions: Mapping[tuple[Owner, str], Definition], *, gone: timedelta
    ) -> Declaring:
        """Write the limits that this worker's code declares, by owner and name.

        A definition that was replaced does not come back while a living worker declares its replacement. `gone`: the
        time after which a definition that no worker has declared again is gone. A row that an operator holds keeps the operator's values.
        The rows are written in the order of their names, so that two workers cannot deadlock.
        """
        result = Declaring()
        if not definitions:
            return result
        owners, names = zip(*definitions, strict=True)
        found = connection.execute(declared_limits(owners, names, job=self.job))
        there = {(row.owner, row.name): row for row in found}
        to_renew: list[tuple[str, str]] = []
        for (owner, name), new in sorted(definitions.items()):
            row = there.get((owner, name))
            if row is None:
                made = declare_new_limit(owner, name, values=new.values, digest=new.digest, job=self.job)
                is_made = connection.execute(made).first() is not None
                (result.made if is_made else result.locked).append(_label(owner, name))
            elif row.current != new.digest:
                is_gone = row.age is None or row.age > gone.total_seconds()
                self._replace_limit(connection, owner, name, new, result, gone=is_gone)
            elif row.age is None or row.age > SAY_AGAIN:
                to_renew.append((owner, name))
        if to_renew:
            owners, names = zip(*to_renew, strict=True)
            connection.execute(say_declared_limits(owners, names, job=self.job))
        return result

    def _replace_limit(
        self, connection: sa.Connection, owner: str, name: str, new: Definition, result: Declaring, *, gone: bool
    ) -> None:
        label = _label(owner, name)
        row = connection.execute(lock_declared_limit(owner, name, job=self.job)).first()
        if row is None:
            result.locked.append(label)
            return
        digests = digests_with(new.digest, row.definitions, gone=gone)
        if digests is None:
            result.superseded.append(label)
            return
        before = Limits().columns() if row.declared is None else row.declared
        changes = {} if row.held else to_change(row, before, new.values, LIMITS)
        connection.execute(
            change_declared_limit(owner, name, changes=changes, declared=new.values, definitions=digests, job=self.job)
        )
        (result.held if row.held else result.changed).append(label)

    def drop_undeclared_limits(self, connection: sa.Connection, *, after: timedelta) -> list[str]:
        """Delete the limits that no code has declared for this time. Returns their owners and names as text."""
        found = connection.execute(drop_undeclared_limits(after=after, job=self.job))
        return [_label(row.owner, row.name) for row in found]


def _label(owner: str, name: str) -> str:
    return f"{owner} {name!r}"
