"""What a claim writes beside the jobs, and what it tells."""

from __future__ import annotations

from .texts import LATER, first_without_key, free_at, inside, owed_of

__all__ = ["DROPPED", "GATE", "READIED", "SAID", "USED"]

_OWED = "free_at = excluded.free_at, owed_at = excluded.owed_at, owed = excluded.owed"
_NOT_TAKEN = " AND job.id <> ALL (picked) AND job.id <> ALL (but_ids)"

# fmt: off
# Jobs that may not wait, in these keys and in the group of each task.
DROPPED = """
IF drops AND rule.paused_at IS NULL THEN
    PERFORM {schema}.drop_waiting(l.owner, l.name, this, l.key, (SELECT count(*) FROM unnest(of_keys, of_tasks) AS g (key, task)
        WHERE (g.key = l.key OR l.key < chr(2) COLLATE "C") AND (l.owner = 'queue' OR g.task = l.name))::integer, picked)
    FROM (
        SELECT l.owner, l.name, k.key FROM {schema}.job_limit AS l CROSS JOIN LATERAL (
            SELECT k.key FROM unnest(seen) AS k (key) WHERE k.key >= chr(2) COLLATE "C"
            UNION ALL SELECT chr(1) || l.name WHERE l.owner = 'task') AS k
        WHERE ((l.owner = 'queue' AND l.name = this) OR (l.owner = 'task' AND l.name = ANY (limited_tasks)))
            AND (l.when_full <> 'wait' OR l.max_waiting IS NOT NULL)
        ORDER BY 3, 1, 2) AS l;
END IF;
""".strip()

# What rates were used, and the lowest id that may run.
USED = f"""
IF cardinality(picked) > 0 THEN
    IF rule.rate_count IS NOT NULL OR rule.running IS NOT NULL THEN
        lowest := least(lowest, (SELECT min(p) FROM unnest(picked) AS p));
        queue_owed := queue_owed + (SELECT sum(u) FROM unnest(of_units) AS u);
        INSERT INTO {{schema}}.limit_state AS s (owner, name, key, free_at, owed_at, owed, lowest_id, version)
        SELECT 'queue', this, '', {free_at("queue_owed", "rule.rate_seconds / rule.rate_count")}, clock, queue_owed,
            CASE WHEN rule.running IS NOT NULL THEN lowest END, rule.version
        WHERE rule.rate_count IS NOT NULL OR state.lowest_id IS NULL OR lowest < state.lowest_id OR lowest > state.lowest_id + 10000
        ON CONFLICT (owner, name, key) DO UPDATE SET lowest_id = excluded.lowest_id, version = excluded.version, {_OWED};
    END IF;
    INSERT INTO {{schema}}.limit_state AS l (owner, name, key, free_at, owed_at, owed)
    SELECT r.owner, r.name, r.key, {free_at("w.owed", "r.seconds / r.count")}, clock, w.owed FROM (
        SELECT 'task' AS owner, l.name, '' AS key, g.units, l.rate_count AS count, l.rate_seconds AS seconds
        FROM (SELECT g.task, sum(g.units) AS units FROM unnest(of_tasks, of_units) AS g (task, units) GROUP BY g.task) AS g
        JOIN {{schema}}.job_limit AS l ON l.owner = 'task' AND l.name = g.task AND g.task = ANY (task_names)
        UNION ALL
        SELECT 'queue', this, g.key, g.units, coalesce(k.rate_count, rule.key_rate_count),
            CASE WHEN k.rate_count IS NULL THEN rule.key_rate_seconds ELSE k.rate_seconds END
        FROM (SELECT g.key, sum(g.units) AS units FROM unnest(of_keys, of_units) AS g (key, units) WHERE g.key >= chr(2) COLLATE "C" GROUP BY g.key) AS g
        LEFT JOIN LATERAL (SELECT * FROM {{schema}}.job_key AS k WHERE k.owner = 'queue' AND k.name = this AND k.key = g.key OFFSET 0) AS k ON true
        UNION ALL
        SELECT 'task', g.task, g.key, g.units, coalesce(k.rate_count, l.key_rate_count),
            CASE WHEN k.rate_count IS NULL THEN l.key_rate_seconds ELSE k.rate_seconds END
        FROM (SELECT g.key, g.task, sum(g.units) AS units FROM unnest(of_keys, of_tasks, of_units) AS g (key, task, units)
              WHERE g.key >= chr(2) COLLATE "C" AND g.task = ANY (task_names) GROUP BY g.key, g.task) AS g
        JOIN {{schema}}.job_limit AS l ON l.owner = 'task' AND l.name = g.task
        LEFT JOIN LATERAL (SELECT * FROM {{schema}}.job_key AS k WHERE k.owner = 'task' AND k.name = g.task AND k.key = g.key OFFSET 0) AS k ON true) AS r
    LEFT JOIN LATERAL (SELECT * FROM {{schema}}.limit_state AS s
        WHERE s.owner = r.owner AND s.name = r.name AND s.key = r.key OFFSET 0) AS s ON true
    CROSS JOIN LATERAL (SELECT {owed_of("s", "r.count", "r.seconds")} + r.units AS owed) AS w
    WHERE r.count IS NOT NULL
    ORDER BY 1, 2, 3
    ON CONFLICT (owner, name, key) DO UPDATE SET {_OWED};
END IF;
""".strip()

# Jobs whose time has come are ready; those of tasks that can start none leave the way of the others, once the first in it is one of them.
# The next claim finds them. As many of each as take some 50 ms.
_FIRST = first_without_key(1, but=_NOT_TAKEN)
_FRONT = first_without_key(2_000, but=_NOT_TAKEN)
READIED = f"""
IF rule.paused_at IS NULL THEN
    UPDATE {{schema}}.job SET ready_at = job.run_at WHERE job.id = ANY (ARRAY (
        SELECT job.id FROM {{schema}}.job WHERE job.queue = this AND {LATER} AND job.run_at <= clock
        ORDER BY job.run_at, job.id LIMIT 2000 FOR NO KEY UPDATE SKIP LOCKED));
    again := again OR FOUND;
    SELECT job.run_at INTO next_at FROM {{schema}}.job WHERE job.queue = this AND {LATER} AND job.run_at > clock
    ORDER BY job.run_at, job.id LIMIT 1;
END IF;
WHILE away <> '{{{{}}}}' LOOP
    UPDATE {{schema}}.job SET concurrency_key = chr(1) || job.task, ready_at = job.run_at WHERE job.id = ANY (ARRAY (
        SELECT job.id FROM {{schema}}.job
        WHERE job.id = ANY (ARRAY (SELECT f.id FROM ({inside(_FRONT, 12)}) AS f
                WHERE f.task = ANY (away) AND (SELECT f.task FROM ({inside(_FIRST, 16)}) AS f) = ANY (away)))
            AND job.status LIKE 'queued' AND job.concurrency_key IS NULL AND job.run_at <= clock FOR NO KEY UPDATE SKIP LOCKED));
    again := again OR FOUND;
    -- Where nothing could be started, others may be too far behind to be seen.
    EXIT WHEN NOT FOUND OR picked <> '{{{{}}}}' OR clock_timestamp() > clock + interval '0.5 seconds';
END LOOP;
""".strip()

SAID = """
RETURN QUERY SELECT p, clock, NULL::text FROM unnest(picked) AS p;
permit := permit AND cardinality(picked) < wanted[place];
any_permit := any_permit OR permit;
IF permit THEN
    -- A permit that became free after the count, and before this worker's gate is open, is told to nobody: look again then.
    cell := coalesce(pg_sequence_last_value(({name} || '.gate_limit')::regclass), 0);
    again := again OR cell / 1000 <= extract(epoch FROM clock) OR cell % 1000 NOT IN (opener, 0);
END IF;
RETURN QUERY SELECT NULL::bigint, clock, jsonb_build_object('queue', this, 'after', stopped, 'turns', turns, 'again', again, 'unseen', visits >= 1000 AND NOT circled,
    'permit', permit, 'picked', cardinality(picked), 'rate_in', CASE WHEN rate_at > clock THEN date_part('epoch', rate_at - clock) END,
    'due_in', date_part('epoch', next_at - clock))::text;
""".strip()

# A worker that waits for a permit of another's has opened the gate, and is told of permits that this one has freed.
GATE = """
IF freed THEN
    PERFORM {schema}.permits_freed(opener);
END IF;
IF any_permit THEN
    cell := coalesce(pg_sequence_last_value(({name} || '.gate_limit')::regclass), 0);
    seconds := extract(epoch FROM clock_timestamp())::bigint;
    IF cell / 1000 < seconds + 5 THEN
        PERFORM setval(({name} || '.gate_limit')::regclass, (seconds + 10) * 1000 + opener);
    ELSIF cell % 1000 NOT IN (opener, 0) THEN
        PERFORM setval(({name} || '.gate_limit')::regclass, cell / 1000 * 1000);
    END IF;
END IF;
""".strip()
# fmt: on
