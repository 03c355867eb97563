"""Finding jobs in the archive that are not in their table any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ..models import Job, JobMixin, companions_of
from .parts import ONE, array, rows, table_of

_LAST: sa.ColumnElement[Any] = sa.literal_column("-1")


def archive_parts(*, schema: str, table: str) -> sa.Executable:
    """The months of the archive, as "2026-11", the newest first, or the names of partitions that are not the queue's.

    No rows where the role may not read the archive, or where policies hide rows of the job table `table` from the role but not rows of
    the archive.
    """
    return sa.text(_PARTS).bindparams(in_schema=schema, in_table=table)


_PARTS = """
SELECT CASE WHEN part.relname ~ '^archived_job_[0-9]{4}_[0-9]{2}$' THEN replace(right(part.relname, 7), '_', '-') ELSE part.relname::text END
FROM pg_catalog.pg_inherits AS tree
JOIN pg_catalog.pg_class AS part ON part.oid = tree.inhrelid
WHERE tree.inhparent = to_regclass(quote_ident(:in_schema) || '.archived_job') AND has_any_column_privilege(tree.inhparent, 'SELECT')
    AND (row_security_active(tree.inhparent) OR NOT row_security_active(to_regclass(quote_ident(:in_schema) || '.' || quote_ident(:in_table))))
ORDER BY part.relname DESC
"""


def is_archive_locked(*, schema: str) -> sa.Executable:
    """Whether another transaction has locked the archive, or a month of it, so that no job can be moved there; or waits for such a lock."""
    return sa.text(_IS_LOCKED).bindparams(in_schema=schema)


_IS_LOCKED = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_locks AS held
    WHERE held.locktype = 'relation' AND held.pid <> pg_backend_pid()
        AND held.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
        AND held.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
        AND held.relation IN (SELECT relid FROM pg_partition_tree(to_regclass(quote_ident(:in_schema) || '.archived_job')))
)
"""


def archived_facts(id: int, *, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """How an archived job ended, and when it was archived; no row if the job is not in the archive."""
    columns = table_of(companions_of(job).archived_job).c
    names = (
        "status", "queue", "task", "attempt", "max_attempts", "finished_at", "cancel_requested_at", "duplicate_of", "archived_at",
    )  # fmt: skip
    return (
        sa.select(
            *(columns[name] for name in names), columns.errors.op("->", return_type=JSONB())(_LAST).label("error")
        )
        .where(columns.id == id)
        # The indexes of the months are read one after the other, until the job is found.
        .order_by(columns.finished_at.desc())
        .limit(ONE)
    )


def archived_ends(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Executable:
    """id, task, status, result and last error of those of these jobs that are in the archive."""
    columns = table_of(companions_of(job).archived_job).c
    last = columns.errors.op("->", return_type=JSONB())(_LAST)
    asked = rows("asked", id=array("archived_ids", ids, sa.BigInteger()))
    found = sa.select(columns.id, columns.task, columns.status, columns.result, last.label("error"))
    return found.where(columns.id == asked.c.id)


# ---- What the archive holds, month by month, by PostgreSQL's own books.


def archive_months(*, schema: str) -> sa.Executable:
    """A row per month of the archive, the oldest first: `month`, as "2026-11", or the name of a partition that is not the queue's;
    `rows`, as of the last vacuum or analyze; `bytes`, with indexes and TOAST.
    """
    return sa.text(_MONTHS).bindparams(in_schema=schema)


_MONTHS = """
SELECT CASE WHEN part.relname ~ '^archived_job_[0-9]{4}_[0-9]{2}$' THEN replace(right(part.relname, 7), '_', '-') ELSE part.relname::text END
        AS month,
    greatest(part.reltuples, 0)::bigint AS rows, coalesce(pg_total_relation_size(part.oid), 0)::bigint AS bytes
FROM pg_catalog.pg_inherits AS tree
JOIN pg_catalog.pg_class AS part ON part.oid = tree.inhrelid
WHERE tree.inhparent = to_regclass(quote_ident(:in_schema) || '.archived_job')
ORDER BY part.relname
"""


def archive_needs() -> sa.Executable:
    """One row: `this_month` and `next_month`, as "2026-11"."""
    return sa.text(_NEEDS)


_NEEDS = """
SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM') AS this_month,
    to_char(date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month', 'YYYY-MM') AS next_month
"""
