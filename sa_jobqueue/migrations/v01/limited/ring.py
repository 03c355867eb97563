"""The keys of a queue that have ready jobs, in their order: a loose scan of an index."""

from __future__ import annotations

from .texts import READY, TURN

__all__ = ["RING"]

# fmt: off
# With the place of each key's first job: what reads its jobs then begins there, and not at the entries of those that are done.
RING = f"""
    CREATE FUNCTION {{schema}}.ready_keys(
        queue text, after text, up_to text, most integer,
        OUT keys text[], OUT priorities smallint[], OUT times timestamptz[], OUT ids bigint[]
    ) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $body$
    #variable_conflict use_column
    BEGIN
        WITH RECURSIVE ring AS (
            (SELECT job.concurrency_key AS key, - job.priority AS priority, job.run_at, job.id, 1 AS number FROM {{schema}}.job
             WHERE job.queue = $1 AND job.concurrency_key > $2 AND {READY}
             ORDER BY job.concurrency_key, {TURN} LIMIT 1)
            UNION ALL
            SELECT next.key, next.priority, next.run_at, next.id, ring.number + 1 FROM ring CROSS JOIN LATERAL (
                SELECT job.concurrency_key AS key, - job.priority AS priority, job.run_at, job.id FROM {{schema}}.job
                WHERE job.queue = $1 AND job.concurrency_key > ring.key AND {READY}
                ORDER BY job.concurrency_key, {TURN} LIMIT 1) AS next
            WHERE ring.number < $4 AND (ring.key < $3 COLLATE "C" OR $3 IS NULL))
        SELECT coalesce(array_agg(ring.key ORDER BY ring.number), '{{{{}}}}'), array_agg(ring.priority::smallint ORDER BY ring.number),
            array_agg(ring.run_at ORDER BY ring.number), array_agg(ring.id ORDER BY ring.number)
        INTO keys, priorities, times, ids FROM ring WHERE ring.key <= $3 COLLATE "C" OR $3 IS NULL;
    END
    $body$
    """
# fmt: on
