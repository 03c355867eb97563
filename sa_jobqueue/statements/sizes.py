"""How large the tables and indexes are, what is dead in them, and when they were vacuumed; and how many jobs wait.

A count that may be large stops at `CAP`, and reads an index: so each statement takes milliseconds, however large the tables are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Executable,
    Float,
    Integer,
    ScalarSelect,
    Select,
    SmallInteger,
    bindparam,
    func,
    literal_column,
    select,
    text,
    true,
    type_coerce,
)

from ..lifecycle import JobStatus
from ..models import Job, status_literal
from .claim import PRIORITIES
from .parts import array, rows, table_of

__all__ = ["CAP", "capped", "index_sizes", "purge_overdue", "queue_depths", "table_sizes"]

#: Where counting stops: a number of this size means "more than 10,000".
CAP = 10_001

#: A time before which no job is due, for PostgreSQL has no difference to -infinity before version 17.
_EARLIEST: ColumnElement[Any] = literal_column("timestamptz '0002-01-01 00:00:00+00'")


def capped(number: int) -> str:
    """A count as people read it: 9,999 or 10,000+."""
    return f"{CAP - 1:,}+" if number >= CAP else f"{number:,}"


def table_sizes(*, schema: str, tables: Sequence[str]) -> Executable:
    """A row per table: rows alive and dead as PostgreSQL counts them, sizes in bytes, the age of its oldest transaction, and
    seconds since the last vacuum and the last analyze, NULL if there was none.

    `row_bytes`: the mean size of a row, by the statistics of the last analyze; NULL before the first.
    """
    return text(_TABLES).bindparams(in_schema=schema, tables=list(tables))


_TABLES = """
SELECT rel.relname::text AS name,
    coalesce(stat.n_live_tup, 0) AS live, coalesce(stat.n_dead_tup, 0) AS dead,
    greatest(rel.reltuples, 0)::bigint AS planned_rows,
    stat.n_mod_since_analyze AS changed_since_analyze,
    coalesce(pg_relation_size(rel.oid), 0) AS bytes, coalesce(pg_indexes_size(rel.oid), 0) AS index_bytes,
    coalesce(pg_total_relation_size(nullif(rel.reltoastrelid, 0)), 0) AS toast_bytes,
    current_setting('block_size')::int AS block_bytes,
    -- A row's header of 24 bytes, 4 for the pointer to it, 4 of padding in the mean, and its values.
    32 + (
        SELECT sum((1 - null_frac) * avg_width) FROM pg_catalog.pg_stats
        WHERE schemaname = :in_schema AND tablename = rel.relname AND NOT inherited
    )::float8 AS row_bytes,
    coalesce(rel.reloptions, '{}') AS options,
    extract(epoch FROM now() - greatest(stat.last_vacuum, stat.last_autovacuum))::float8 AS since_vacuum,
    extract(epoch FROM now() - greatest(stat.last_analyze, stat.last_autoanalyze))::float8 AS since_analyze,
    stat.vacuum_count AS vacuums, stat.autovacuum_count AS autovacuums,
    greatest(age(rel.relfrozenxid), age(toast.relfrozenxid))::bigint AS frozen_age,
    stat.seq_scan AS seq_scans, stat.seq_tup_read AS seq_rows,
    io.heap_blks_read AS blocks_read, io.heap_blks_hit AS blocks_hit,
    coalesce(io.idx_blks_read, 0) AS index_blocks_read, coalesce(io.idx_blks_hit, 0) AS index_blocks_hit
FROM pg_catalog.pg_class AS rel
LEFT JOIN pg_catalog.pg_class AS toast ON toast.oid = rel.reltoastrelid
JOIN pg_catalog.pg_stat_all_tables AS stat ON stat.relid = rel.oid
JOIN pg_catalog.pg_statio_all_tables AS io ON io.relid = rel.oid
WHERE rel.relnamespace = to_regnamespace(quote_ident(:in_schema)) AND rel.relname = ANY (CAST(:tables AS text[]))
ORDER BY rel.relname
"""


def index_sizes(*, schema: str, tables: Sequence[str]) -> Executable:
    """A row per index of these tables: whether it is valid, its size, and how often it was read.

    `entry_bytes`: the mean size of an entry, by the statistics of the table; NULL where these are missing.
    """
    return text(_INDEXES).bindparams(in_schema=schema, tables=list(tables))


_INDEXES = """
SELECT of_table.relname::text AS "table", rel.relname::text AS name,
    index.indisvalid AS valid, index.indisready AS ready, index.indisunique AS "unique",
    coalesce(pg_relation_size(rel.oid), 0) AS bytes, greatest(rel.reltuples, 0)::bigint AS planned_rows,
    current_setting('block_size')::int AS block_bytes,
    -- An entry's header of 8 bytes, 4 for the pointer to it, its values, and 4 of padding in the mean; an expression as a time.
    16 + (
        SELECT sum(CASE WHEN part.number = 0 THEN 8 ELSE (1 - value.null_frac) * value.avg_width END)
        FROM unnest(index.indkey) AS part (number)
        LEFT JOIN pg_catalog.pg_attribute AS attribute
            ON attribute.attrelid = index.indrelid AND attribute.attnum = part.number
        LEFT JOIN pg_catalog.pg_stats AS value
            ON value.schemaname = :in_schema AND value.tablename = of_table.relname AND value.attname = attribute.attname
                AND NOT value.inherited
        HAVING bool_and(part.number = 0 OR value.avg_width IS NOT NULL)
    )::float8 AS entry_bytes,
    coalesce(rel.reloptions, '{}') AS options,
    stat.idx_scan AS scans, stat.idx_tup_read AS rows_read, stat.idx_tup_fetch AS rows_fetched
FROM pg_catalog.pg_index AS index
JOIN pg_catalog.pg_class AS rel ON rel.oid = index.indexrelid
JOIN pg_catalog.pg_class AS of_table ON of_table.oid = index.indrelid
JOIN pg_catalog.pg_stat_all_indexes AS stat ON stat.indexrelid = index.indexrelid
WHERE of_table.relnamespace = to_regnamespace(quote_ident(:in_schema)) AND of_table.relname = ANY (CAST(:tables AS text[]))
ORDER BY of_table.relname, rel.relname
"""


def purge_overdue(*, cap: int = CAP, job: type[Job] = Job) -> Executable:
    """One row: how many finished jobs should have been deleted by now, counted up to `cap`, and the `seconds` since the first
    should have been. Where they are many, or their time was over long ago, cleanup is behind.
    """
    columns = table_of(job).c
    since = func.greatest(columns.purge_at, _EARLIEST)
    over = (
        select(since.label("purge_at"))
        .where(columns.purge_at <= func.now())
        .order_by(columns.purge_at)
        .limit(bindparam("cap", cap, Integer))
        .subquery("over")
    )
    age = func.extract("epoch", func.now() - func.min(over.c.purge_at))
    return select(func.count().label("rows"), type_coerce(func.coalesce(age, 0), Float).label("seconds")).select_from(
        over
    )


def queue_depths(*, cap: int = CAP, job: type[Job] = Job) -> Executable:
    """A row per queue that has queued jobs, by name: `queued` and `due`, each counted up to `cap`, and `oldest_due_age`, the
    seconds since which the first due job waits; NULL if none is due.

    The names are found by one probe of the claim's index each, and each (queue, priority) is read from its front.
    """
    columns = table_of(job).c
    queued = columns.status == status_literal(JobStatus.QUEUED)
    limit = bindparam("cap", cap, Integer)
    one: ColumnElement[int] = literal_column("1")

    first: Any = select(columns.queue).where(queued).order_by(columns.queue).limit(one)
    names = select(first.scalar_subquery().label("queue")).cte("names", recursive=True)
    following = first.where(columns.queue > names.c.queue).correlate(names).scalar_subquery()
    names = names.union_all(select(following).where(names.c.queue.is_not(None)))

    all_of_queue = select(one).where(queued, columns.queue == names.c.queue).limit(limit).correlate(names)
    slot = rows("slot", priority=array("priorities", PRIORITIES, SmallInteger()))
    due = (
        select(columns.run_at)
        .where(
            queued, columns.queue == names.c.queue, columns.priority == slot.c.priority, columns.run_at <= func.now()
        )
        .order_by(columns.run_at)
        .correlate(names, slot)
    )
    counted = due.limit(limit).lateral("due")
    all_due = select(one).select_from(slot.join(counted, true())).limit(limit).correlate(names)
    front = due.limit(one).lateral("front")
    oldest: Any = select(func.min(func.greatest(front.c.run_at, _EARLIEST))).select_from(slot.join(front, true()))
    age = func.extract("epoch", func.now() - oldest.correlate(names).scalar_subquery())
    return (
        select(
            names.c.queue,
            _number(all_of_queue).label("queued"),
            _number(all_due).label("due"),
            type_coerce(age, Float).label("oldest_due_age"),
        )
        .where(names.c.queue.is_not(None))
        .order_by(names.c.queue)
    )


def _number(page: Select[Any]) -> ScalarSelect[int]:
    return select(func.count()).select_from(page.subquery()).scalar_subquery()
