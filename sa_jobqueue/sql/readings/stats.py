"""Statistics of ended jobs: workers add to them, readers sum them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.dialects.postgresql import array as pg_array

from ...models import Job, JobMixin, Stat, companions_of
from ...rules.lifecycle import COUNTED
from ...rules.tally import BUCKETS, TaskTally
from ..parts import ZERO, array, in_seconds, materialized, packed, packed_texts, rows, table_of
from ..tables import Compiled, StorePart

By: TypeAlias = Literal["queue", "task"]

MINUTE, HOUR = 60, 3_600
#: For how long minutes are kept before they are added up by the hour, and hours before they are deleted.
MINUTES_KEPT, HOURS_KEPT = timedelta(days=7), timedelta(days=90)

#: The columns of sums of seconds, and of arrays by bucket; then all with a value, all that a worker gives, and the key.
_SECONDS = ("run_seconds", "wait_seconds")
_COUNTS = ("runs", "waits")
_VALUES = (*COUNTED, *_SECONDS, *_COUNTS)
_GIVEN = ("queue", "task", *_VALUES)
_KEY = ("seconds", "at", "queue", "task")
_NUMBERS = frozenset((*COUNTED, *_SECONDS))


def stats_parameters(tallies: Sequence[TaskTally], *, worker: uuid.UUID, number: int) -> dict[str, Any]:
    """The parameters of `add_stats`, by name, as the driver takes them, to execute a statement again that was built once."""
    columns = {name: [getattr(tally, name) for tally in tallies] for name in _GIVEN}
    for name in _COUNTS:
        columns[name] = ["{" + ",".join(map(str, counts)) + "}" for counts in columns[name]]
    given: dict[str, Any] = {"stat_worker": worker, "stat_number": number}
    for name, values in columns.items():
        given[f"stat_{name}"] = packed(values) if name in _NUMBERS else packed_texts(values)
    return given


def add_stats(
    tallies: Sequence[TaskTally], *, worker: uuid.UUID, number: int, job: type[JobMixin] = Job
) -> sa.Executable:
    """Add the counts of a worker to the rows of the current minute, for the `number`th time.

    Returns that number, or no row if the worker has added these counts before, or its own row is gone; then nothing is added. The rows are
    taken in the order of their keys, so that two workers do not deadlock.
    """
    tables = companions_of(job)
    stat, workers = tables.stat, tables.worker
    table = table_of(stat)
    given = stats_parameters(tallies, worker=worker, number=number)
    times = sa.bindparam("stat_number", number, sa.BigInteger)
    marked = (
        sa.update(workers)
        .where(workers.id == sa.bindparam("stat_worker", worker), workers.stats_written < times)
        .values(stats_written=times)
        .returning(workers.stats_written)
        .cte("marked")
    )
    types: dict[str, Any] = dict.fromkeys(COUNTED, sa.BigInteger()) | dict.fromkeys(_SECONDS, sa.Float(53))
    counted = rows(
        "counted", **{name: array(f"stat_{name}", given[f"stat_{name}"], types.get(name, sa.Text())) for name in _GIVEN}
    )
    values = [
        sa.cast(counted.c[name], ARRAY(sa.BigInteger)).label(name) if name in _COUNTS else counted.c[name]
        for name in _GIVEN
    ]
    minute = sa.func.date_trunc(sa.literal_column("'minute'"), sa.func.now())
    added = (
        _adding(
            table,
            sa.select(sa.literal_column(str(MINUTE)), minute, *values)
            .where(sa.exists(sa.select(marked.c.stats_written)))
            .order_by(counted.c.queue, counted.c.task),
        )
        .returning(table.c.seconds)
        .cte("added")
    )
    return sa.select(marked.c.stats_written).add_cte(added)


def written_stats(worker: uuid.UUID, *, job: type[JobMixin] = Job) -> sa.Executable:
    """How often a worker has added its counts; no row if its own row is gone."""
    workers = companions_of(job).worker
    return sa.select(workers.stats_written).where(workers.id == worker)


def roll_up_stats(*, keep: timedelta, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Move at most `limit` rows of minutes older than `keep` into the rows of their hours. Returns how many were moved.

    Rows that another transaction has locked are left for the next time, and a row is moved by one transaction only.
    """
    table = table_of(companions_of(job).stat)
    columns = table.c
    before = in_seconds(-keep.total_seconds(), name="keep_seconds")
    old = _page(table, MINUTE, before, limit)
    # The values of the rows as they are when they are locked.
    moved = (
        sa.delete(table)
        .where(*_same(table, old))
        .returning(*(columns[name] for name in (*_KEY, *_VALUES)))
        .cte("moved")
    )
    hour = sa.func.date_trunc(sa.literal_column("'hour'"), moved.c.at, sa.literal_column("'UTC'"))
    summed = (
        sa.select(sa.literal_column(str(HOUR)), hour, moved.c.queue, moved.c.task, *_sums(moved))
        .group_by(hour, moved.c.queue, moved.c.task)
        .order_by(hour, moved.c.queue, moved.c.task)
    )
    added = _adding(table, summed).returning(columns.seconds).cte("added")
    return sa.select(sa.func.count()).select_from(moved).add_cte(added)


def drop_old_stats(*, keep: timedelta, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Delete at most `limit` rows of hours older than `keep`, except those that are locked."""
    table = table_of(companions_of(job).stat)
    old = _page(table, HOUR, in_seconds(-keep.total_seconds(), name="keep_seconds"), limit)
    return sa.delete(table).where(*_same(table, old))


def sum_stats(
    *,
    since: timedelta,
    by: Collection[By] = (),
    queues: Collection[str] = (),
    tasks: Collection[str] = (),
    step: timedelta | None = None,
    values: Collection[str] = (),
    stat: type[Stat] = Stat,
) -> sa.Executable:
    """How jobs ended since `since`: a row for each combination of `by`, in order; without `by`, one row.

    The columns of `by`; completed, retried, failed, cancelled, snoozed, suspended, released, rescued, lost; run_seconds, wait_seconds; runs and
    waits, arrays by the buckets of `sa_jobqueue.rules.tally`. `queues`, `tasks`: only these. `step`: a row for each such time as well, with
    the column `at`, when it began, and in its order. `values`: only these of the sums; by default all. The last 7 days are counted by the minute, what is older by the hour.
    """
    table = table_of(stat)
    columns = table.c
    keys: list[Any] = [columns[name] for name in ("queue", "task") if name in by]
    if step is not None:
        apart: sa.ColumnElement[Any] = sa.bindparam("step", step)
        start = sa.func.date_bin(apart, columns.at, sa.literal_column("timestamptz 'epoch'"))
        keys.insert(0, start.label("at"))
    begin = sa.func.date_trunc(sa.literal_column("'minute'"), in_seconds(-since.total_seconds(), name="since_seconds"))
    sums = [total for total in _sums(table) if not values or total.key in values]
    query = sa.select(*keys, *sums).where(
        columns.seconds.in_([sa.literal_column(str(MINUTE)), sa.literal_column(str(HOUR))]), columns.at >= begin
    )
    if queues:
        query = query.where(columns.queue.in_(list(queues)))
    if tasks:
        query = query.where(columns.task.in_(list(tasks)))
    if keys:
        names: list[Any] = [sa.literal_column(str(number + 1)) for number in range(len(keys))]
        query = query.group_by(*names).order_by(*names)
    return query


def _adding(table: sa.Table, query: Any) -> Any:
    """Insert the rows of `query`, or add them to the rows that are there."""
    insertion = insert(table).from_select(["seconds", "at", *_GIVEN], query)
    new, old = insertion.excluded, table.c
    sums: dict[str, Any] = {name: old[name] + new[name] for name in (*COUNTED, *_SECONDS)}
    for name in _COUNTS:
        each = [_bucket(old[name], number) + _bucket(new[name], number) for number in range(1, BUCKETS + 1)]
        sums[name] = pg_array(each)
    return insertion.on_conflict_do_update(index_elements=list(_KEY), set_=sums)


#: The sum of each bucket. As text, because to build it from parts takes Core longer than the server takes to answer.
_EACH = (
    f"CAST(ARRAY[{', '.join(f'coalesce(sum({{0}}[{number}]), 0)' for number in range(1, BUCKETS + 1))}] AS bigint[])"
)


def _sums(table: Any) -> list[sa.ColumnElement[Any]]:
    columns = table.c
    numbers = [
        sa.type_coerce(sa.cast(sa.func.coalesce(sa.func.sum(columns[name]), ZERO), sa.BigInteger), sa.BigInteger).label(name)
        for name in COUNTED
    ]  # fmt: skip
    seconds = [
        sa.func.coalesce(sa.func.sum(columns[name]), sa.literal_column("0.0", sa.Float)).label(name)
        for name in _SECONDS
    ]
    return [
        *numbers,
        *seconds,
        *(sa.literal_column(_EACH.format(name), ARRAY(sa.BigInteger)).label(name) for name in _COUNTS),
    ]


def _bucket(counts: Any, number: int) -> sa.ColumnElement[int]:
    """A bucket of an array; the first has the number 1."""
    found: sa.ColumnElement[int] = counts[sa.literal_column(str(number), sa.Integer)]
    return found


def _page(table: sa.Table, seconds: int, before: sa.ColumnElement[Any], limit: int) -> sa.CTE:
    """The oldest rows of this kind, locked."""
    columns = table.c
    key = [columns[name] for name in _KEY]
    return materialized(
        sa.select(*key)
        .where(columns.seconds == sa.literal_column(str(seconds)), columns.at < before)
        .order_by(*key)
        .limit(sa.bindparam("page", limit))
        .with_for_update(skip_locked=True),
        "old",
    )


def _same(table: sa.Table, old: sa.CTE) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == old.c[name] for name in _KEY]


# ---- Statistics of ended jobs, by minute and by hour.


class Stats(StorePart):
    """Adding counts to the statistics, and shortening these."""

    def add_stats(
        self, connection: sa.Connection, tallies: Sequence[TaskTally], *, worker: uuid.UUID, number: int
    ) -> bool:
        """Add the counts of `worker`, for the `number`th time. Returns False if its row is gone and nothing was added."""
        given = stats_parameters(tallies, worker=worker, number=number)
        if self._add_stats.rows(connection, given):
            return True
        written = connection.scalar(written_stats(worker, job=self.job))
        return written is not None and written >= number

    def roll_up_stats(self, connection: sa.Connection, *, keep: timedelta, limit: int) -> int:
        """Move a page of minutes older than `keep` into their hours. Returns how many rows were moved."""
        return int(connection.scalar(roll_up_stats(keep=keep, limit=limit, job=self.job)) or 0)

    def drop_old_stats(self, connection: sa.Connection, *, keep: timedelta, limit: int) -> int:
        """Delete a page of hours older than `keep`. Returns how many rows were deleted."""
        statement: sa.Executable = drop_old_stats(keep=keep, limit=limit, job=self.job)
        assert isinstance(statement, sa.Delete)
        return connection.execute(statement).rowcount

    @cached_property
    def _add_stats(self) -> Compiled:
        # Core would compile it each time, which takes as long as all else: an ON CONFLICT is not cached.
        none = uuid.UUID(int=0)
        return Compiled(add_stats([], worker=none, number=0, job=self.job))
