"""What becomes of jobs that may not wait, where a limit is full."""

from __future__ import annotations

from .texts import READY, TURN, owed_of, room_of, running_of_key

__all__ = ["DROP"]

#: What was begun once is not dropped: it may have done a part of its work, and its own start may be what makes the limit full.
_NEW = "job.claims = 0"

# fmt: off
# Ends jobs of a key that wait, where more wait than its limits allow. `started`: how many of its jobs are being started now, the `picked`.
DROP = f"""
    CREATE FUNCTION {{schema}}.drop_waiting(owner text, name text, queue text, key text, started integer, picked bigint[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $body$
    #variable_conflict use_column
    DECLARE
        rule record;
        most integer;
        is_group boolean := $4 < chr(2) COLLATE "C";
        is_full boolean;
        clock timestamptz := clock_timestamp();
        reason text;
        dropped bigint[];
    BEGIN
        SELECT l.when_full, l.max_waiting, CASE WHEN is_group THEN l.running ELSE coalesce(k.running, l.key_running) END AS running,
            CASE WHEN is_group THEN l.rate_count ELSE coalesce(k.rate_count, l.key_rate_count) END AS rate_count,
            CASE WHEN is_group THEN l.rate_seconds WHEN k.rate_count IS NULL THEN l.key_rate_seconds ELSE k.rate_seconds END AS rate_seconds,
            CASE WHEN is_group THEN l.rate_burst WHEN k.rate_count IS NULL THEN l.key_rate_burst ELSE k.rate_burst END AS rate_burst,
            s.free_at, s.owed_at, s.owed
        INTO rule FROM {{schema}}.job_limit AS l
        LEFT JOIN {{schema}}.job_key AS k ON k.owner = l.owner AND k.name = l.name AND k.key = $4
        LEFT JOIN {{schema}}.limit_state AS s ON s.owner = l.owner AND s.name = l.name AND s.key = CASE WHEN is_group THEN '' ELSE $4 END
        WHERE l.owner = $1 AND l.name = $2;
        most := coalesce(rule.max_waiting, CASE rule.when_full WHEN 'wait' THEN NULL WHEN 'drop_newest' THEN 0 ELSE 1 END);
        IF most IS NULL THEN
            RETURN;
        END IF;
        IF is_group THEN
            is_full := (SELECT count(*) FROM {{schema}}.job WHERE job.status = 'running' AND job.task = $2) + $5 >= rule.running;
        ELSE
            is_full := (SELECT count(*) FROM {{schema}}.job WHERE {running_of_key('$4')}
                AND CASE $1 WHEN 'queue' THEN job.queue = $3 ELSE job.task = $2 END) + $5 >= rule.running;
        END IF;
        is_full := coalesce(is_full, false)
            OR coalesce({room_of(owed_of("rule", "rule.rate_count", "rule.rate_seconds"), "rule.rate_burst")} <= $5, false);
        IF NOT is_full AND rule.max_waiting IS NULL THEN
            RETURN;
        END IF;
        reason := concat(CASE WHEN NOT is_group THEN format('key %L of ', $4) END, format('%s %L: ', $1, $2),
            CASE WHEN rule.max_waiting IS NULL THEN 'it is full, and when_full is ' || rule.when_full
                WHEN most = 0 THEN 'none may wait (max_waiting)'
                ELSE format('no more than %s may wait (max_waiting)', most) END);
        SELECT array_agg(d.id) INTO dropped FROM (
            SELECT w.id FROM (
                SELECT j.id, row_number() OVER (ORDER BY j.id) AS place, count(*) OVER () AS number FROM (
                    SELECT job.id FROM {{schema}}.job
                    WHERE job.queue = $3 AND job.concurrency_key = $4 AND {READY} AND {_NEW} AND ($1 = 'queue' OR job.task = $2)
                        AND job.id <> ALL (picked)
                    ORDER BY job.concurrency_key, {TURN} LIMIT most + 1000) AS j) AS w
            WHERE CASE WHEN rule.when_full IN ('wait', 'drop_newest') THEN w.place > most ELSE w.place <= w.number - most END) AS d;
        IF dropped IS NOT NULL THEN
            WITH locked AS MATERIALIZED (
                SELECT job.id FROM {{schema}}.job WHERE job.id = ANY (dropped) AND job.status = 'queued'
                ORDER BY job.id FOR NO KEY UPDATE SKIP LOCKED),
            ended AS (
                UPDATE {{schema}}.job SET status = 'cancelled', finished_at = clock_timestamp(), purge_at = CASE WHEN job.workflow_id IS NULL THEN clock_timestamp() + interval '7 days' END,
                    errors = CASE WHEN jsonb_typeof(job.errors) = 'array' THEN job.errors ELSE '[]' END || jsonb_build_array(jsonb_build_object(
                        'at', clock_timestamp(), 'attempt', job.attempt, 'type', 'Dropped', 'message', reason, 'traceback', ''))
                WHERE job.id = ANY (ARRAY (SELECT locked.id FROM locked))
                RETURNING job.id, job.workflow_id, job.uniqueness ->> 'key' AS key),
            events AS (
                INSERT INTO {{schema}}.workflow_event (workflow_id, job_id, completed)
                SELECT ended.workflow_id, ended.id, false FROM ended WHERE ended.workflow_id IS NOT NULL
                RETURNING {{schema}}.tell_workflows()),
            freed AS (
                DELETE FROM {{schema}}.unique_key AS taken USING ended
                WHERE taken.key = ended.key AND taken.job_id = ended.id AND taken.keep IS NULL AND taken.expires_at IS NULL),
            kept AS (
                UPDATE {{schema}}.unique_key AS taken SET expires_at = clock_timestamp() + taken.keep * interval '1 second' FROM ended
                WHERE taken.key = ended.key AND taken.job_id = ended.id AND taken.keep IS NOT NULL AND taken.expires_at IS NULL)
            SELECT array_agg(ended.id) INTO dropped FROM ended;
            IF {{schema}}.any_awaited() THEN
                PERFORM {{schema}}.tell_ended(dropped);
            END IF;
        END IF;
        -- What waits now takes the place of what runs.
        IF rule.when_full = 'cancel_running' AND is_full AND EXISTS (
            SELECT FROM {{schema}}.job WHERE job.queue = $3 AND job.concurrency_key = $4 AND {READY} AND {_NEW} AND ($1 = 'queue' OR job.task = $2)
                AND job.id <> ALL (picked)
        ) THEN
            -- Not one that is locked: its worker may be writing its end, and waiting for this claim.
            UPDATE {{schema}}.job SET cancel_requested_at = {{schema}}.tell_workers(job.tableoid)
            WHERE job.id = ANY (ARRAY (
                SELECT job.id FROM {{schema}}.job
                WHERE job.status = 'running' AND job.cancel_requested_at IS NULL AND job.id = ANY (ARRAY (
                    SELECT job.id FROM {{schema}}.job WHERE {running_of_key('$4')}
                        AND CASE $1 WHEN 'queue' THEN job.queue = $3 ELSE job.task = $2 END
                    UNION ALL
                    SELECT job.id FROM {{schema}}.job WHERE is_group AND job.status = 'running' AND job.task = $2))
                ORDER BY job.id FOR NO KEY UPDATE SKIP LOCKED));
        END IF;
    END
    $body$
    """
# fmt: on
