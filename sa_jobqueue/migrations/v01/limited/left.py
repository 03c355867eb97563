"""What rates and the limits of tasks leave of the jobs that were found."""

from __future__ import annotations

from .texts import BEGUN_AND_LATER_OR_ELSEWHERE, needed_at, owed_of, room_of, running_of_key

__all__ = ["LEFT", "WAITING"]

_OF_KEY = needed_at(
    owed="key_owed[r.place]",
    step="r.key_step",
    burst="r.key_burst",
    used="(SELECT sum(g.units) FROM unnest(of_keys, of_units) AS g (key, units) WHERE g.key = r.key)",
    units="r.units",
    found="sum(r.units) OVER of_place",
)
_OF_KEY_AND_TASK = needed_at(
    owed="r.owed_of_key",
    step="r.step_of_key",
    burst="r.burst_of_key",
    used="(SELECT sum(g.units) FROM unnest(of_keys, of_tasks, of_units) AS g (key, task, units)"
    " WHERE g.key = r.key AND g.task = r.task)",
    units="r.units",
    found="sum(r.units) OVER of_both",
)
_OF_TASK = needed_at(
    owed="task_owed[k.task_place]",
    step="k.step",
    burst="k.burst",
    used="(SELECT sum(g.units) FROM unnest(all_tasks, all_units) AS g (task, units) WHERE g.task = k.task)",
    units="k.units",
    found="sum(k.units) FILTER (WHERE k.key_goes) OVER of_task",
)
_OF_QUEUE = needed_at(
    owed="queue_owed",
    step="rule.rate_seconds / rule.rate_count",
    burst="rule.rate_burst",
    used="(SELECT sum(u) FROM unnest(of_units) AS u)",
    units="q.units",
    found="sum(q.units) FILTER (WHERE q.task_goes) OVER in_order",
)

# fmt: off
# From the key's limits to the task's and the queue's: `..._has_room` is what a limit says of the job itself, `..._goes` whether it goes on.
# Behind a job that has to wait, those of its key wait, too. A job of more units than the burst goes where all of the burst is left.
LEFT = f"""
WITH found AS (
    SELECT j.*, keys[j.place] AS key, keys[j.place] >= chr(2) COLLATE "C" AS is_key, array_position(task_names, j.task) AS task_place
    FROM unnest(ids, places, tasks, units) WITH ORDINALITY AS j (id, place, task, units, number)),
said AS (
    SELECT c.*, l.rate_burst AS burst, coalesce(own.rate_burst, rule.key_rate_burst) AS key_burst,
        CASE WHEN c.is_key AND s.blocked_until > clock OR o.paused_at IS NOT NULL
                OR l."strict" AND c.is_key AND (c.key = ANY (late_keys) OR EXISTS (SELECT FROM {{schema}}.job
                    WHERE job.concurrency_key = c.key AND {BEGUN_AND_LATER_OR_ELSEWHERE} AND job.task = c.task)) THEN 0
            WHEN c.is_key AND coalesce(o.running, l.key_running) IS NOT NULL THEN
                greatest(coalesce(o.running, l.key_running) - (SELECT count(*) FROM {{schema}}.job WHERE {running_of_key('c.key')} AND job.task = c.task)
                    - (SELECT count(*) FROM unnest(all_keys, all_tasks) AS g (key, task) WHERE g.key = c.key AND g.task = c.task), 0)
        END AS room_of_key,
        w.burst AS burst_of_key,
        CASE WHEN c.is_key AND w.count IS NOT NULL THEN
            {room_of("w.owed", "w.burst")}
            - (SELECT coalesce(sum(g.units), 0) FROM unnest(of_keys, of_tasks, of_units) AS g (key, task, units)
               WHERE g.key = c.key AND g.task = c.task)::integer
        END AS units_of_key,
        s.blocked_until, w.owed AS owed_of_key, l.rate_seconds / l.rate_count AS step,
        CASE WHEN own.rate_count IS NULL THEN rule.key_rate_seconds / rule.key_rate_count ELSE own.rate_seconds / own.rate_count END AS key_step,
        w.seconds / w.count AS step_of_key
    FROM found AS c
    LEFT JOIN LATERAL (SELECT * FROM {{schema}}.job_limit AS l
        WHERE l.owner = 'task' AND l.name = c.task AND c.task = ANY (limited_tasks) OFFSET 0) AS l ON true
    LEFT JOIN LATERAL (SELECT * FROM {{schema}}.job_key AS o
        WHERE o.owner = 'task' AND o.name = c.task AND o.key = c.key AND l.name IS NOT NULL OFFSET 0) AS o ON true
    LEFT JOIN LATERAL (SELECT * FROM {{schema}}.limit_state AS s
        WHERE s.owner = 'task' AND s.name = c.task AND s.key = c.key AND c.key <> '' AND l.name IS NOT NULL OFFSET 0) AS s ON true
    CROSS JOIN LATERAL (SELECT r.*, {owed_of("s", "r.count", "r.seconds")} AS owed FROM (SELECT coalesce(o.rate_count, l.key_rate_count) AS count,
        CASE WHEN o.rate_count IS NULL THEN l.key_rate_seconds ELSE o.rate_seconds END AS seconds, coalesce(o.rate_burst, l.key_rate_burst) AS burst) AS r) AS w
    LEFT JOIN LATERAL (SELECT * FROM {{schema}}.job_key AS own
        WHERE own.owner = 'queue' AND own.name = this AND own.key = c.key AND has_rates OFFSET 0) AS own ON true),
of_keys_limits AS (
    SELECT r.*, (key_units[r.place] IS NULL OR sum(r.units) OVER of_place <= key_units[r.place]
                OR (taken[r.place] = 0 AND key_units[r.place] >= r.key_burst AND sum(r.units) OVER of_place = r.units))
            AND (r.room_of_key IS NULL OR row_number() OVER of_both <= r.room_of_key)
            AND (r.units_of_key IS NULL OR sum(r.units) OVER of_both <= r.units_of_key
                OR (r.units_of_key >= r.burst_of_key AND sum(r.units) OVER of_both = r.units)) AS key_has_room,
        greatest(r.blocked_until, {_OF_KEY}, {_OF_KEY_AND_TASK}) AS key_again_at,
        r.room_of_key <= 0 AS full
    FROM said AS r WINDOW of_place AS (PARTITION BY r.place ORDER BY r.number), of_both AS (PARTITION BY r.task, r.place ORDER BY r.number)),
of_keys_order AS (
    SELECT h.*, CASE WHEN h.is_key THEN bool_and(h.key_has_room) OVER (PARTITION BY h.place ORDER BY h.number) ELSE h.key_has_room END AS key_goes
    FROM of_keys_limits AS h),
of_tasks_limits AS (
    SELECT k.*, greatest(k.key_again_at, {_OF_TASK}) AS task_again_at,
        k.key_goes AND (k.task_place IS NULL OR (
            count(*) FILTER (WHERE k.key_goes) OVER of_task <= task_rooms[k.task_place]
            AND (task_units[k.task_place] IS NULL OR sum(k.units) FILTER (WHERE k.key_goes) OVER of_task <= task_units[k.task_place]
                OR (task_units[k.task_place] >= k.burst AND sum(k.units) FILTER (WHERE k.key_goes) OVER of_task = k.units)))) AS task_has_room
    FROM of_keys_order AS k WINDOW of_task AS (PARTITION BY k.task ORDER BY k.number)),
of_tasks_order AS (
    SELECT t.*, CASE WHEN t.is_key THEN bool_and(t.task_has_room) OVER (PARTITION BY t.place ORDER BY t.number) ELSE t.task_has_room END AS task_goes
    FROM of_tasks_limits AS t),
of_queue AS (
    SELECT q.*, greatest(q.task_again_at, {_OF_QUEUE}) AS again_at,
        q.task_goes AND (units_left IS NULL OR sum(q.units) FILTER (WHERE q.task_goes) OVER in_order <= units_left
            OR (units_left >= rule.rate_burst AND sum(q.units) FILTER (WHERE q.task_goes) OVER in_order = q.units)) AS goes
    FROM of_tasks_order AS q WINDOW in_order AS (ORDER BY q.number))
SELECT array_agg(l.id ORDER BY l.number) FILTER (WHERE l.goes) AS ids, array_agg(l.place ORDER BY l.number) FILTER (WHERE l.goes) AS places,
    array_agg(l.task ORDER BY l.number) FILTER (WHERE l.goes) AS tasks, array_agg(l.units ORDER BY l.number) FILTER (WHERE l.goes) AS units,
    array_agg(l.id) FILTER (WHERE NOT l.goes) AS skipped,
    count(*) FILTER (WHERE NOT l.goes AND l.key = '' AND NOT l.task_goes)::integer AS passed,
    coalesce(array_agg(DISTINCT l.place) FILTER (WHERE NOT l.goes AND l.key <> ''), '{{{{}}}}') AS closed,
    coalesce(bool_or(l.full), false) AS full, min(l.again_at) FILTER (WHERE NOT l.goes AND l.again_at > clock) AS again_at,
    min(l.place) FILTER (WHERE l.task_goes AND NOT l.goes) AS short,
    coalesce(array_agg(DISTINCT l.task) FILTER (WHERE l.key_goes AND NOT l.task_has_room), '{{{{}}}}') AS short_tasks
INTO answer FROM of_queue AS l;
""".strip()

# What follows for the keys and tasks of which a job has to wait.
WAITING = """
skipped := skipped || answer.skipped;
-- Behind those of a task that can start no more there may be others.
IF answer.passed > 0 THEN
    total := array_position(keys, ''); asked[total] := asked[total] - answer.passed;
END IF;
permit := permit OR answer.full; rate_at := least(rate_at, answer.again_at);
-- A key with a job that has to wait gets no more.
SELECT array_agg(CASE WHEN w.number = ANY (answer.closed) THEN 0 ELSE w.room END ORDER BY w.number) INTO limits
FROM unnest(limits) WITH ORDINALITY AS w (room, number);
ids := answer.ids; places := answer.places; tasks := answer.tasks; units := answer.units; short := answer.short;
-- Nor does a task of which one has to wait; so jobs of fewer units do not take what it waits for.
SELECT coalesce(array_agg(CASE WHEN w.name = ANY (answer.short_tasks) THEN least(w.unit, 0) ELSE w.unit END ORDER BY w.number), '{{}}')
INTO task_units FROM unnest(task_names, task_units) WITH ORDINALITY AS w (name, unit, number);
IF ids IS NULL THEN
    -- Where it is the rate of the queue that is used up, the next claim begins with this key.
    IF short > 1 THEN
        stopped := keys[short - 1]; turns := 0;
    END IF;
    EXIT WHEN short IS NOT NULL;
    FOR n IN 1 .. cardinality(keys) LOOP
        rooms[n] := limits[n] - taken[n];
    END LOOP;
    CONTINUE;
END IF;
picked := picked || ids;
room := room - cardinality(ids);
units_left := units_left - (SELECT sum(u) FROM unnest(units) AS u);
SELECT array_agg(t.room - t.n ORDER BY t.number), array_agg(t.unit - t.u ORDER BY t.number) INTO task_rooms, task_units FROM (
    SELECT w.number, w.room, w.unit, count(g.task)::integer AS n, coalesce(sum(g.units), 0)::integer AS u
    FROM unnest(task_names, task_rooms, task_units) WITH ORDINALITY AS w (name, room, unit, number)
    LEFT JOIN unnest(tasks, units) AS g (task, units) ON g.task = w.name GROUP BY 1, 2, 3) AS t;
task_rooms := coalesce(task_rooms, '{{}}'); task_units := coalesce(task_units, '{{}}');
""".strip()
# fmt: on
