"""Find rows with secret arguments, and encrypt them again with the current key.

Statements write only the changed entries of `args`, because Python cannot represent every number of jsonb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ..arguments.storable import encode_plain, load_any
from ..errors import PayloadError
from ..models import Job, JobMixin, companions_of
from .parts import array, rows, table_of

_SECRET: sa.ColumnElement[Any] = sa.literal_column("""CAST('$.*."$secret"' AS jsonpath)""")
_MARKED: sa.ColumnElement[Any] = sa.literal_column(
    """CAST('$.* ? (exists (@."$secret") || exists (@."$sensitive"))' AS jsonpath)"""
)
#: Of stored arguments of a task, the entries that are to change.
Reseal = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


def has_marks(args: sa.SQLColumnExpression[Any]) -> sa.ColumnElement[bool]:
    """Whether some of a row's arguments are secret or sensitive."""
    return sa.func.jsonb_path_exists(args, _MARKED, type_=sa.Boolean())


@dataclass(slots=True)
class Rotated:
    """The number of encrypted rows by table, and the rows that could not be encrypted, each with the reason."""

    count: dict[str, int] = field(default_factory=dict[str, int])
    left: list[str] = field(default_factory=list[str])


def reseal_rows(
    engine: sa.Engine, reseal: Reseal, *, tasks: Sequence[str], batch: int, job: type[JobMixin] = Job
) -> Rotated:
    """Encrypt the secret arguments of all jobs, schedules and callbacks of workflows again. Each batch of rows is a transaction.

    `tasks`: the names of tasks with secret arguments, whose rows may still be in clear. The archive does not change.
    """
    companions, done = companions_of(job), Rotated()
    # Jobs last: jobs that schedules or callbacks enqueue meanwhile have the new key, or are found among the jobs.
    for name, mapped in (("schedules", companions.schedule), ("callbacks", companions.callback), ("jobs", job)):
        table, done.count[name] = table_of(mapped), 0
        key = list(table.primary_key)
        is_known = table.c.task == sa.func.any(array("secret_tasks", tasks, sa.Text()))
        page = (
            sa.select(table.c.task, sa.cast(table.c.args, sa.Text).label("args"), *key)
            .where(sa.func.jsonb_path_exists(table.c.args, _SECRET) | is_known)
            .order_by(*key)
            .limit(batch)
            .with_for_update(key_share=True)
        )
        found = list[sa.Row[Any]]()
        while not found or len(found) == batch:
            after: sa.ColumnElement[bool] = sa.true()
            if found:
                after = sa.tuple_(*key) > sa.tuple_(*[sa.literal(value, sa.BigInteger) for value in _key(found[-1])])
            with engine.begin() as connection:
                found = list(connection.execute(page.where(after)))
                changed = [(_key(row), changes) for row in found if (changes := _changes(name, row, reseal, done))]
                if changed:
                    connection.execute(_resealed(table, key, changed))
            done.count[name] += len(changed)
            if not found:
                break
    return done


def _resealed(
    table: sa.Table, key: Sequence[sa.Column[Any]], changed: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]]
) -> sa.Update:
    """Write the changed entries of these rows, each given by its key."""
    texts = [encode_plain(changes, what="rotate") for _, changes in changed]
    ids = zip(*(of_row for of_row, _ in changed), strict=True)
    keys = {
        column.key: array(f"resealed_{column.key}", of, sa.BigInteger()) for column, of in zip(key, ids, strict=True)
    }
    given = rows("resealed", made=array("resealed_args", texts, sa.Text()), **keys)
    merged = table.c.args.op("||")(sa.cast(given.c.made, JSONB))
    return sa.update(table).where(*(column == given.c[column.key] for column in key)).values(args=merged)


def _key(row: sa.Row[Any]) -> tuple[Any, ...]:
    return tuple(row)[2:]


def _changes(name: str, row: sa.Row[Any], reseal: Reseal, done: Rotated) -> Mapping[str, Any]:
    try:
        args = load_any(row.args)
        return reseal(row.task, args) if isinstance(args, dict) else {}
    except (PayloadError, RecursionError, ValueError) as error:  # the last two: of JSON that is nested too deep
        done.left.append(f"{name} {', '.join(map(str, _key(row)))} ({row.task}): {error}")
        return {}
