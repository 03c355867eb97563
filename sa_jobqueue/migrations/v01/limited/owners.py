"""What the limits of tasks and of a queue leave, and the locks under which it is counted."""

from __future__ import annotations

from .texts import HAS_STATES, LATER, READY, next_at, owed_of, room_of

__all__ = ["LOCKS", "QUEUE", "TASKS"]

# fmt: off
# Claims of one limited queue or task come one after the other, from here to their commits.
LOCKS = """
PERFORM pg_advisory_xact_lock(owner_space, o.place) FROM (
    SELECT DISTINCT hashtext(l.owner || ':' || l.name) AS place FROM {schema}.job_limit AS l
    WHERE (l.running IS NOT NULL OR l.rate_count IS NOT NULL)
        AND ((l.owner = 'queue' AND l.name = ANY (queue_names)) OR (l.owner = 'task' AND l.name = ANY (limited_tasks)))
    ORDER BY 1) AS o;
-- They may have changed while this claim waited.
IF (SELECT bit_xor(l.version) FROM {schema}.job_limit AS l) IS DISTINCT FROM known THEN
    PERFORM {schema}.limits_changed(known);
END IF;
""".strip()

# What limited tasks may start, in all queues together.
TASKS = f"""
IF cardinality(limited_tasks) > 0 THEN
    -- All of them are counted at once: each count reads all that runs.
    WITH runs AS MATERIALIZED (
        SELECT job.task, count(*) AS number FROM {{schema}}.job
        WHERE job.status = 'running' AND job.task = ANY (limited_tasks) AND EXISTS (SELECT FROM {{schema}}.job_limit AS l
            WHERE l.owner = 'task' AND l.name = ANY (limited_tasks) AND l.running IS NOT NULL)
        GROUP BY job.task)
    SELECT coalesce(array_agg(t.name), '{{{{}}}}') AS names, array_agg(t.room) AS rooms, array_agg(t.units) AS units, array_agg(t.owed) AS owed,
        coalesce(bool_or(t.by_key), false) AS by_key, coalesce(array_agg(t.name) FILTER (WHERE t.is_strict), '{{{{}}}}') AS stricts, min(t.again_at) FILTER (WHERE t.again_at > clock) AS again_at,
        coalesce(bool_or(t.room <= 0 AND NOT t.is_paused), false) AS full
    INTO answer FROM (
        SELECT l.name, l.key_running IS NOT NULL OR l.key_rate_count IS NOT NULL
                OR l."strict" OR EXISTS (SELECT FROM {{schema}}.job_key AS k WHERE k.owner = 'task' AND k.name = l.name) AS by_key,
            l."strict" AS is_strict,
            l.paused_at IS NOT NULL AS is_paused, CASE WHEN l.paused_at IS NOT NULL OR s.blocked_until > clock THEN 0
                WHEN l.running IS NULL THEN 1000000
                ELSE greatest(l.running - coalesce(r.number, 0), 0) END AS room,
            {room_of("o.owed", "l.rate_burst")} AS units, o.owed,
            greatest(s.blocked_until, {next_at("o.owed", "l.rate_")}) AS again_at
        FROM {{schema}}.job_limit AS l LEFT JOIN {{schema}}.limit_state AS s
            ON s.owner = 'task' AND s.name = l.name AND s.key = ''
        LEFT JOIN runs AS r ON r.task = l.name
        CROSS JOIN LATERAL (SELECT {owed_of('s', 'l.rate_count', 'l.rate_seconds')} AS owed) AS o
        WHERE l.owner = 'task' AND l.name = ANY (limited_tasks)) AS t;
    task_names := answer.names; task_rooms := answer.rooms; task_units := answer.units; task_owed := answer.owed; by_key := answer.by_key; strict_tasks := answer.stricts; tasks_at := answer.again_at;
    any_permit := answer.full;
END IF;
-- Jobs that this worker cannot run would use up rates, and go back: to it, their tasks are as if they were paused.
FOR place IN 1 .. cardinality(unknown_tasks) LOOP
    total := coalesce(array_position(task_names, unknown_tasks[place]), cardinality(task_names) + 1);
    task_names[total] := unknown_tasks[place]; task_rooms[total] := 0; task_units[total] := NULL; task_owed[total] := NULL;
END LOOP;
""".strip()

# What this queue may start.
QUEUE = f"""
SELECT * INTO rule FROM {{schema}}.job_limit AS l WHERE l.owner = 'queue' AND l.name = this;
SELECT * INTO state FROM {{schema}}.limit_state AS s WHERE s.owner = 'queue' AND s.name = this AND s.key = '';
is_strict := coalesce(rule."strict", false) OR cardinality(strict_tasks) > 0;
behind := '{{{{}}}}';
IF cardinality(task_names) > 0 AND EXISTS (
    SELECT FROM {{schema}}.job WHERE job.queue = this AND job.concurrency_key < chr(2) COLLATE "C" AND {READY}) THEN
    -- Tasks of which some jobs were put aside: these go before those that were not.
    behind := ARRAY (SELECT substr(g.key, 2) FROM {{schema}}.ready_keys(this, '', chr(2), 1000) AS r, unnest(r.keys) AS g (key)
        WHERE g.key < chr(2) COLLATE "C" AND substr(g.key, 2) = ANY (task_names));
END IF;
IF is_strict THEN
    late_keys := ARRAY (SELECT DISTINCT job.concurrency_key FROM {{schema}}.job WHERE job.queue = this AND {LATER} AND job.run_at <= clock);
END IF;
has_keys := EXISTS (SELECT FROM {{schema}}.job_key AS k WHERE k.owner = 'queue' AND k.name = this);
has_states := {HAS_STATES};
alike := NOT (has_keys OR has_states OR cardinality(task_names) > 0 OR coalesce(rule.key_running IS NOT NULL
    OR rule.key_rate_count IS NOT NULL OR rule."strict" OR rule.max_waiting IS NOT NULL OR rule.when_full <> 'wait', false));
-- Under other limits, or none, jobs with lower ids may have been started.
IF state.version IS DISTINCT FROM rule.version THEN
    state.lowest_id := NULL;
END IF;
IF rule.paused_at IS NOT NULL THEN
    room := 0; rate_at := NULL;
ELSIF state.blocked_until > clock THEN
    room := 0; rate_at := state.blocked_until;
END IF;
IF room > 0 AND rule.running IS NOT NULL THEN
    SELECT count(*), min(job.id) INTO total, lowest FROM {{schema}}.job
    WHERE job.status = 'running' AND job.queue = this AND job.id >= coalesce(state.lowest_id, 0);
    room := least(room, rule.running - total);
    permit := permit OR room <= 0;
END IF;
IF room > 0 AND rule.rate_count IS NOT NULL THEN
    queue_owed := {owed_of('state', 'rule.rate_count', 'rule.rate_seconds')};
    units_left := {room_of("queue_owed", "rule.rate_burst")};
    room := least(room, units_left);
    IF room <= 0 THEN
        rate_at := least(rate_at, {next_at("queue_owed", "rule.rate_")});
    END IF;
END IF;
""".strip()
# fmt: on
