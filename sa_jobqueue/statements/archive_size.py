"""What the archive holds, month by month, by PostgreSQL's own books."""

from __future__ import annotations

import sqlalchemy as sa

__all__ = ["archive_months", "archive_needs"]


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
