"""How large the tables and indexes are, what is dead in them, and when they were vacuumed: by PostgreSQL's own books."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from ..schema import quote

__all__ = ["identities", "index_sizes", "next_ids", "table_sizes"]


def identities(*, schema: str, tables: Sequence[str]) -> sa.Executable:
    """The name of each of these tables that numbers its rows by a column `id`, and its sequence, quoted."""
    return sa.text(_IDENTITIES).bindparams(in_schema=schema, tables=list(tables))


_IDENTITIES = """
SELECT rel.relname::text, pg_get_serial_sequence(quote_ident(:in_schema) || '.' || quote_ident(rel.relname), 'id')
FROM pg_catalog.pg_class AS rel
JOIN pg_catalog.pg_attribute AS attribute ON attribute.attrelid = rel.oid AND attribute.attname = 'id'
WHERE rel.relnamespace = to_regnamespace(quote_ident(:in_schema)) AND rel.relname = ANY (CAST(:tables AS text[]))
    AND attribute.attidentity <> ''
ORDER BY rel.relname
"""


def next_ids(*, schema: str, sequences: Mapping[str, str]) -> sa.Executable:
    """A row per table: the id that its next row gets, and the highest there is. `sequences`: as `identities` returned them.

    One statement: its snapshot is older than what it reads of a sequence, so a row that is inserted meanwhile has no higher id.
    """
    parts = (
        f'SELECT CAST(:name_{number} AS text) AS "table", last_value + CAST(is_called AS integer) AS next, '  # noqa: S608
        f"coalesce((SELECT max(id) FROM {_verbatim(f'{quote(schema)}.{quote(table)}')}), 0) AS highest FROM {_verbatim(sequence)}"
        for number, (table, sequence) in enumerate(sequences.items())
    )
    names = {f"name_{number}": table for number, table in enumerate(sequences)}
    return sa.text(" UNION ALL ".join(parts)).bindparams(**names)


def _verbatim(name: str) -> str:
    """`name` for `text()`: a colon starts no parameter."""
    return name.replace(":", r"\:")


def table_sizes(*, schema: str, tables: Sequence[str]) -> sa.Executable:
    """A row per table: rows alive and dead as PostgreSQL counts them, sizes in bytes, the age of its oldest transaction, and
    seconds since the last vacuum and the last analyze, NULL if there was none.

    `row_bytes`: the mean size of a row, by the statistics of the last analyze; NULL before the first.
    """
    return sa.text(_TABLES).bindparams(in_schema=schema, tables=list(tables))


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


def index_sizes(*, schema: str, tables: Sequence[str]) -> sa.Executable:
    """A row per index of these tables: whether it is valid, its size, and how often it was read.

    `entry_bytes`: the mean size of an entry, by the statistics of the table; NULL where these are missing.
    """
    return sa.text(_INDEXES).bindparams(in_schema=schema, tables=list(tables))


_INDEXES = """
SELECT of_table.relname::text AS "table", rel.relname::text AS name,
    index.indisvalid AS valid, index.indisready AS ready,
    EXISTS (
        SELECT FROM pg_catalog.pg_stat_progress_create_index AS build WHERE build.index_relid = rel.oid
    ) AS building, index.indisunique AS "unique",
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
