"""The jobs of the keys that have a turn."""

from __future__ import annotations

from .texts import BEGUN_AND_READY, FREE, OF_JOB, READY, TURN, WITHOUT_KEY, first_without_key, inside

__all__ = ["ASKED", "FOUND", "TAKEN"]

# fmt: off
# How many of each, by its weight: as many whole rounds as there is room for, and then a part of one. The first key may
# have had some of its turns.
ASKED = """
SELECT sum(w.weight) INTO total FROM unnest(weights, rooms, key_units) AS w (weight, room, units)
WHERE w.room > 0 AND coalesce(w.units, 1) > 0;
EXIT WHEN room <= 0 OR total IS NULL;
-- As many whole rounds as there is room for, and then a part of one. The first key may have had some of its turns.
had := CASE WHEN pass = 1 AND inclusive AND keys[1] = cursor_key AND rooms[1] > 0 AND coalesce(key_units[1], 1) > 0
    THEN coalesce(had_turns[place], 0) % weights[1] ELSE 0 END;
quantum := greatest((room + had) / total, 1);
SELECT array_agg(greatest(least(w.room, w.units, w.weight * quantum - CASE WHEN w.number = 1 THEN had ELSE 0 END), 0) ORDER BY w.number)
INTO asked FROM unnest(weights, rooms, key_units) WITH ORDINALITY AS w (weight, room, units, number);
IF cardinality(task_names) > 0 THEN
    -- Their jobs without a key let those of other tasks pass.
    away := behind || ARRAY (SELECT t.name FROM unnest(task_names, task_rooms, task_units) AS t (name, room, units) WHERE least(t.room, t.units) <= 0);
END IF;
""".strip()

# Under strict, the jobs of a key up to the first that is not among them: another transaction has locked it, this claim cannot see it yet, or
# the worker skips it. Those behind it wait, and nothing tells when it is free: so the next claim looks soon.
IN_ORDER = f"""
SELECT array_agg(j.id ORDER BY j.number) FILTER (WHERE j.goes) AS ids, array_agg(j.place ORDER BY j.number) FILTER (WHERE j.goes) AS places,
    array_agg(j.task ORDER BY j.number) FILTER (WHERE j.goes) AS tasks, array_agg(j.units ORDER BY j.number) FILTER (WHERE j.goes) AS units,
    array_agg(j.sure ORDER BY j.number) FILTER (WHERE j.goes) AS sures, array_agg(DISTINCT j.place) FILTER (WHERE NOT j.goes) AS closed
INTO answer FROM (
    SELECT f.*, NOT f.is_ordered OR bool_and((f.id = first.ids[f.rank]) IS TRUE) OVER (PARTITION BY f.place, f.is_ordered ORDER BY f.rank) AS goes
    FROM (
        SELECT f.*, row_number() OVER (PARTITION BY f.place, f.is_ordered ORDER BY f.number) AS rank FROM (
            SELECT f.*, keys[f.place] >= chr(2) COLLATE "C" AND (rule."strict" IS TRUE OR f.task = ANY (strict_tasks)) AS is_ordered
            FROM unnest(ids, places, tasks, units, sures) WITH ORDINALITY AS f (id, place, task, units, sure, number)) AS f) AS f
    LEFT JOIN (
        SELECT p.place, ARRAY (
            SELECT * FROM (
                SELECT job.id FROM {{schema}}.job
                WHERE job.concurrency_key = keys[p.place] AND {BEGUN_AND_READY} AND job.queue = this
                    AND (rule."strict" IS TRUE OR job.task = ANY (strict_tasks)) AND job.id <> ALL (picked)
                ORDER BY (job.id + 0) LIMIT p.number) AS begun
            UNION ALL
            SELECT * FROM (
                SELECT job.id FROM {{schema}}.job
                WHERE job.queue = this AND job.concurrency_key = keys[p.place]
                    AND ((- job.priority), job.run_at, job.id) >= (priorities[p.place], times[p.place], firsts[p.place])
                    AND {READY} AND job.claims = 0 AND (rule."strict" IS TRUE OR job.task = ANY (strict_tasks)) AND job.id <> ALL (picked)
                ORDER BY job.concurrency_key, {TURN} LIMIT p.number) AS with_key) AS ids
        FROM (SELECT f.place, count(*) AS number FROM unnest(places) AS f (place) GROUP BY f.place) AS p) AS first ON first.place = f.place) AS j;
IF answer.closed IS NOT NULL THEN
    rate_at := least(rate_at, clock + interval '0.1 seconds');
    ids := answer.ids; places := answer.places; tasks := answer.tasks; units := answer.units; sures := answer.sures;
    all_sure := true = ALL (sures);
    FOR n IN 1 .. cardinality(keys) LOOP
        limits[n] := CASE WHEN n = ANY (answer.closed) THEN 0 ELSE limits[n] END;
        rooms[n] := CASE WHEN ids IS NULL THEN limits[n] - taken[n] ELSE rooms[n] END;
    END LOOP;
    CONTINUE WHEN ids IS NULL;
END IF;
""".strip()

FOUND = f"""
SELECT array_agg(d.id), array_agg(d.place), array_agg(d.task), array_agg(d.units), bool_and(d.sure), array_agg(d.sure)
INTO ids, places, tasks, units, all_sure, sures FROM (
    SELECT c.place::integer, d.id, d.task, d.units, d.sure
    FROM unnest(keys, asked, priorities, times, firsts) WITH ORDINALITY AS c (key, most, priority, time, first, place) CROSS JOIN LATERAL (
        SELECT * FROM (
            -- What has begun goes before the others, where a key is to keep its order. `+ 0`, so that no plan reads all jobs in this order.
            SELECT {OF_JOB} FROM {{schema}}.job
            WHERE job.concurrency_key = c.key AND {BEGUN_AND_READY} AND job.queue = this
                AND {FREE}
            ORDER BY (job.id + 0) LIMIT CASE WHEN is_strict AND c.key <> '' THEN c.most ELSE 0 END FOR NO KEY UPDATE SKIP LOCKED) AS begun
        UNION ALL
        SELECT * FROM (
            SELECT {OF_JOB} FROM {{schema}}.job
            WHERE job.queue = this AND job.concurrency_key = c.key AND ((- job.priority), job.run_at, job.id) >= (c.priority, c.time, c.first)
                AND {READY} AND NOT (is_strict AND job.claims > 0)
                AND {FREE}
            ORDER BY job.concurrency_key, {TURN} LIMIT CASE WHEN c.key <> '' THEN c.most ELSE 0 END FOR NO KEY UPDATE SKIP LOCKED) AS with_key
        UNION ALL
        SELECT * FROM (
            SELECT u.* FROM generate_series(9, 0, -1) AS p (level) CROSS JOIN LATERAL (
                SELECT {OF_JOB} FROM {{schema}}.job WHERE {WITHOUT_KEY} AND {FREE}
                ORDER BY job.run_at, job.id LIMIT CASE WHEN c.key = '' AND away = '{{{{}}}}' THEN c.most ELSE 0 END FOR NO KEY UPDATE SKIP LOCKED) AS u
            LIMIT CASE WHEN c.key = '' AND away = '{{{{}}}}' THEN c.most ELSE 0 END) AS without_key
        UNION ALL
        -- The same behind those of tasks that can start none: as far as a claim can look in a fraction of a second. The second condition of
        -- a status is said so that a row is looked up by its id.
        SELECT * FROM (
            SELECT u.* FROM ({inside(first_without_key(200_000), 16)}) AS near CROSS JOIN LATERAL (
                SELECT {OF_JOB} FROM {{schema}}.job
                WHERE job.id = near.id AND job.status LIKE 'queued' AND job.concurrency_key IS NULL AND job.run_at <= clock AND job.queue = this
                    AND {FREE} FOR NO KEY UPDATE SKIP LOCKED) AS u
            WHERE near.task <> ALL (away)
            LIMIT CASE WHEN c.key = '' AND away <> '{{{{}}}}' THEN c.most ELSE 0 END) AS past_others
        LIMIT c.most) AS d
    LIMIT room) AS d;
IF is_strict AND ids IS NOT NULL THEN
    {inside(IN_ORDER, 4)}
END IF;
IF NOT all_sure THEN
    -- The next claim sees whether they are there. What is behind them in their key waits with them.
    again := true;
    SELECT array_agg(j.id ORDER BY j.number), array_agg(j.place ORDER BY j.number), array_agg(j.task ORDER BY j.number),
        array_agg(j.units ORDER BY j.number)
    INTO ids, places, tasks, units FROM (
        SELECT f.*, bool_and(f.sure) OVER (PARTITION BY f.place ORDER BY f.number) AS goes
        FROM unnest(ids, places, tasks, units, sures) WITH ORDINALITY AS f (id, place, task, units, sure, number)) AS j
    WHERE j.goes;
END IF;
""".strip()

# What the keys, and the next claim, have of it.
TAKEN = """
IF units_left IS NOT NULL OR has_rates OR drops OR cardinality(task_names) > 0 THEN
    SELECT of_keys || array_agg(keys[p.place]), of_tasks || array_agg(p.task), of_units || array_agg(p.units)
    INTO of_keys, of_tasks, of_units FROM unnest(places, tasks, units) AS p (place, task, units);
    SELECT all_keys || array_agg(keys[p.place]), all_tasks || array_agg(p.task)
    INTO all_keys, all_tasks FROM unnest(places, tasks) AS p (place, task);
    all_units := all_units || units;
END IF;
FOR n IN 1 .. cardinality(ids) LOOP
    total := places[n];
    taken[total] := taken[total] + 1;
    lows[total] := least(lows[total], ids[n]);
    asked[total] := asked[total] - 1;
    key_units[total] := key_units[total] - units[n];
END LOOP;
total := places[cardinality(places)];
IF room > 0 THEN
    -- A key that got fewer than it was offered has no more.
    FOR n IN 1 .. cardinality(keys) LOOP
        rooms[n] := CASE WHEN asked[n] > 0 THEN 0 ELSE limits[n] - taken[n] END;
    END LOOP;
END IF;
-- The next claim goes on behind the last key that got a job, or with it while it has turns left.
stopped := keys[total];
turns := (cardinality(array_positions(places, total)) + CASE WHEN total = 1 THEN had ELSE 0 END) % weights[total];
IF short IS NOT NULL THEN
    IF short > 1 AND taken[short] = 0 THEN
        stopped := keys[short - 1]; turns := 0;
    END IF;
    EXIT;
END IF;
""".strip()
# fmt: on
