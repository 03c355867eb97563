-- The function by which a worker picks jobs where keys take turns or limits hold.
--
-- It takes the locks that make counting exact, and each statement in it has a snapshot of its own, which is younger than the locks. The
-- statement that calls it then claims what it picked, in the same transaction: so the locks last until the claim is visible to all.
--
-- Nothing here waits for a job or a key that another transaction has locked. Only the claims of one limited queue or task come one after the
-- other.
--
-- What its statements repeat: the conditions of the partial indexes, for jobs with a key that are ready, that will be, and that may have a
-- permit. Some are phrased so that the planner can match one index only.
--
-- A job is free if the statement that calls the function can see it too: a job that was enqueued while this one waited for a lock is none
-- of its rows. Of the ages, those far below zero are of rows that are older than any transaction that goes on.
--
-- It is sure to be free if no savepoint hides it. A job of a savepoint has a transaction id of its own, of which that snapshot says
-- nothing; it is higher than that of its transaction. So if transactions that went on then have ended since, the jobs behind the first of
-- them may be theirs, and would use up a rate in vain.

-- How many units of the burst are used up now: the generic cell rate algorithm, `free_at` is its theoretical arrival time. The state may be
-- of another rate. Its units count as if they had started at this one, and for no longer than they would have at the other one. So a change
-- never makes a job wait for the old rate's period. No state is 0 units, and no rate NULL. It is a plain expression, and inlined.
CREATE FUNCTION {schema}.rate_owed(
    free_at timestamptz, owed_at timestamptz, owed double precision, clock timestamptz, count integer, seconds double precision
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN greatest(least(
    extract(epoch FROM free_at - clock)::double precision,
    owed * seconds / count - extract(epoch FROM clock - owed_at)::double precision), 0) * count / seconds;

-- The keys of a job that only limit. What was written by hand may be any JSON.
CREATE FUNCTION {schema}.other_keys(extras jsonb) RETURNS TABLE (of_key text, value text) LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT k.key, k.value FROM jsonb_each_text(CASE WHEN jsonb_typeof(extras -> 'keys') = 'object' THEN extras -> 'keys' ELSE '{}' END) AS k
    WHERE char_length(k.key) <= 50 AND char_length(k.value) <= 200;
END;

-- How many jobs run by such keys, once for the queue and once for the task of each. `slot`: as that of their limits in `further_rates`.
CREATE FUNCTION {schema}.other_keys_running(wanted boolean) RETURNS TABLE (slot text[], number bigint) LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT ARRAY[o.owner || ':' || k.of_key, o.name, k.value], count(*) FROM {schema}.job CROSS JOIN LATERAL {schema}.other_keys(job.extras) AS k
    CROSS JOIN LATERAL (VALUES ('queue', job.queue), ('task', job.task)) AS o (owner, name)
    WHERE wanted AND job.status = 'running' AND job.extras ? 'keys' GROUP BY 1;
END;

-- The rates beside those of the columns, mostly of named units, and the limits of keys that only limit: a row for each of them and each of these
-- jobs that takes something of it. `slot`: the key of its state, whose owner has the name of such a key behind a colon, and of a rate the
-- unit and the seconds behind a blank. `level`: 1 of a key, 2 of a task, 3 of a queue. How many jobs may run is the `burst` of a row that has no
-- unit and no `count`. An amount that is no such number, written by hand, counts as 1. `also_free`: also the rates of which a job takes nothing.
CREATE FUNCTION {schema}.further_rates(ids bigint[], also_free boolean DEFAULT false) RETURNS TABLE (
    place bigint, slot text[], level integer, unit text, count integer, seconds double precision, burst integer, amount double precision
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT j.place, ARRAY[s.owner || coalesce(' ' || r.unit || '/' || r.seconds, ''), o.name, s.key],
        CASE WHEN s.key <> '' THEN 1 WHEN o.owner = 'task' THEN 2 ELSE 3 END, r.unit, r.count, r.seconds, r.burst, a.amount
    FROM unnest($1) WITH ORDINALITY AS j (id, place) CROSS JOIN LATERAL (
        SELECT job.queue, job.task, job.concurrency_key, job.units, job.extras FROM {schema}.job WHERE job.id = j.id OFFSET 0) AS job
    CROSS JOIN LATERAL (VALUES ('queue', job.queue), ('task', job.task)) AS o (owner, name)
    LEFT JOIN {schema}.job_limit AS l ON l.owner = o.owner AND l.name = o.name
    LEFT JOIN {schema}.job_key AS k ON k.owner = o.owner AND k.name = o.name AND k.key = job.concurrency_key
    CROSS JOIN LATERAL (
        SELECT o.owner, '' AS key, l.rates
        UNION ALL SELECT o.owner, job.concurrency_key, coalesce(k.rates, l.key_rates) WHERE job.concurrency_key >= chr(2) COLLATE "C"
        UNION ALL SELECT n.owner, n.value, coalesce(own.rates, every.rates, '[]') || CASE WHEN own.rate_count IS NOT NULL
                THEN jsonb_build_object('unit', '', 'count', own.rate_count, 'seconds', own.rate_seconds, 'burst', own.rate_burst)
                WHEN every.rate_count IS NOT NULL
                THEN jsonb_build_object('unit', '', 'count', every.rate_count, 'seconds', every.rate_seconds, 'burst', every.rate_burst)
                ELSE '[]' END
            || CASE WHEN coalesce(own.running, every.running) IS NOT NULL
                THEN jsonb_build_object('burst', coalesce(own.running, every.running)) ELSE '[]' END
        FROM (SELECT o.owner || ':' || n.of_key AS owner, n.of_key, n.value FROM {schema}.other_keys(job.extras) AS n) AS n
        CROSS JOIN LATERAL jsonb_populate_record(NULL::{schema}.job_key, l.per -> n.of_key) AS every
        LEFT JOIN {schema}.job_key AS own ON own.owner = n.owner AND own.name = o.name AND own.key = n.value) AS s
    CROSS JOIN LATERAL jsonb_to_recordset(s.rates) AS r (unit text, count integer, seconds double precision, burst integer)
    CROSS JOIN LATERAL (SELECT CASE WHEN r.unit IS NULL THEN 1 WHEN r.unit = '' THEN coalesce(job.units, 1) WHEN job.extras -> 'units' -> r.unit IS NULL THEN 0
        WHEN job.extras -> 'units' ->> r.unit ~ '^\d{1,9}$' THEN (job.extras -> 'units' ->> r.unit)::double precision ELSE 1 END AS amount) AS a
    WHERE a.amount > 0 OR $2;
END
$body$;

-- Which of these jobs must wait for such limits: by their places a level, 0 where a job may start, and -1 where only jobs before it among these
-- keep it waiting, which may not start after all. `picked`: jobs of the queue that are to start now, and are not in the states; `earlier`: those of
-- other queues. `shut`: the slots for which a job waits, which a smaller job does not pass. `is_full`: whether a job waits for others to end.
CREATE FUNCTION {schema}.further_waits(
    ids bigint[], picked bigint[], earlier bigint[], clock timestamptz, INOUT shut text[], OUT levels integer[], OUT again_at timestamptz, OUT is_full boolean
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = on SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
DECLARE
    slots text[]; owed double precision[]; before double precision[]; bursts integer[]; steps double precision[]; now_shut text[] := shut;
    taker record; slot integer; behind double precision; level integer; waits boolean;
BEGIN
    levels := array_fill(0, ARRAY[cardinality(ids)]); is_full := false;
    WITH wanted AS MATERIALIZED (SELECT DISTINCT ON (r.slot) r.slot, r.burst, r.count, r.seconds FROM {schema}.further_rates(ids) AS r),
    taken AS MATERIALIZED (
        SELECT p.slot, sum(p.amount) AS amount FROM (
            SELECT p.slot, p.amount FROM {schema}.further_rates(picked) AS p
            UNION ALL SELECT p.slot, p.amount FROM {schema}.further_rates(earlier) AS p WHERE p.count IS NULL
            UNION ALL SELECT n.slot, n.number FROM {schema}.other_keys_running(EXISTS (SELECT FROM wanted AS r WHERE r.count IS NULL)) AS n) AS p
        GROUP BY 1)
    SELECT array_agg(w.slot::text), array_agg(w.owed), array_agg(w.burst), array_agg(w.step) INTO slots, owed, bursts, steps FROM (
        SELECT r.slot, r.burst, r.seconds / r.count AS step, coalesce(p.amount, 0)
            + coalesce({schema}.rate_owed(s.free_at, s.owed_at, s.owed, clock, r.count, r.seconds), 0) AS owed
        FROM wanted AS r LEFT JOIN taken AS p ON p.slot = r.slot
        LEFT JOIN {schema}.limit_state AS s ON s.owner = r.slot[1] AND s.name = r.slot[2] AND s.key = r.slot[3] AND r.count IS NOT NULL) AS w;
    before := owed;
    FOR taker IN
        SELECT r.place, array_agg(array_position(slots, r.slot::text)) AS slots, array_agg(r.amount) AS amounts, array_agg(r.level) AS levels
        FROM {schema}.further_rates(ids) AS r GROUP BY r.place ORDER BY r.place
    LOOP
        level := 0; waits := false;
        FOR n IN 1 .. cardinality(taker.slots) LOOP
            slot := taker.slots[n];
            -- A job of more units than the burst starts where all of the burst is left.
            behind := least(taker.amounts[n], bursts[slot]) - bursts[slot];
            CONTINUE WHEN owed[slot] + behind <= 0.000001 AND slots[slot] <> ALL (now_shut);
            waits := true; now_shut := now_shut || slots[slot];
            CONTINUE WHEN before[slot] + behind <= 0.000001 AND slots[slot] <> ALL (shut);
            level := greatest(level, taker.levels[n]);
            shut := CASE WHEN slots[slot] = ANY (shut) THEN shut ELSE shut || slots[slot] END;
            is_full := is_full OR steps[slot] IS NULL;
            again_at := least(again_at, CASE WHEN steps[slot] IS NOT NULL
                THEN clock + greatest(least((before[slot] + behind) * steps[slot], 1e10), 0.001) * interval '1 second' END);
        END LOOP;
        levels[taker.place] := CASE WHEN waits AND level = 0 THEN -1 ELSE level END;
        FOR n IN 1 .. CASE WHEN waits THEN 0 ELSE cardinality(taker.slots) END LOOP
            owed[taker.slots[n]] := owed[taker.slots[n]] + taker.amounts[n];
        END LOOP;
    END LOOP;
END
$body$;

-- The further limits that keep a queued job waiting now: of a rate until when, if nothing else starts; of the others how many jobs are `used`. A
-- key that only limits is named, as provider=openai.
CREATE FUNCTION {schema}.further_full(job_id bigint) RETURNS TABLE (
    owner text, name text, key text, unit text, count integer, seconds double precision, until timestamptz, used bigint
) LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT split_part(w.owner, ':', 1), r.slot[2], nullif(coalesce(nullif(split_part(w.owner, ':', 2), '') || '=', '') || r.slot[3], ''),
        r.unit, coalesce(r.count, r.burst), r.seconds, statement_timestamp() + CASE WHEN r.count IS NOT NULL
        THEN least(w.behind * r.seconds / r.count, 1e10) END * interval '1 second', CASE WHEN r.count IS NULL THEN w.owed END
    FROM {schema}.further_rates(ARRAY[job_id]) AS r
    LEFT JOIN {schema}.limit_state AS s ON s.owner = r.slot[1] AND s.name = r.slot[2] AND s.key = r.slot[3]
    LEFT JOIN {schema}.other_keys_running(true) AS n ON n.slot = r.slot AND r.count IS NULL
    CROSS JOIN LATERAL (SELECT CASE WHEN r.count IS NULL THEN coalesce(n.number, 0)
        ELSE {schema}.rate_owed(s.free_at, s.owed_at, s.owed, statement_timestamp(), r.count, r.seconds) END AS owed) AS o
    CROSS JOIN LATERAL (SELECT split_part(r.slot[1], ' ', 1) AS owner, o.owed, o.owed + least(r.amount, r.burst) - r.burst AS behind) AS w
    WHERE w.behind > 0.000001;
END;

-- Takes what a job has used of named units from such rates, {"tokens": [what it has taken so far, or null for what it was enqueued with, what
-- it has used]}, unless another claim of the job came later.
CREATE FUNCTION {schema}.further_correct(job_id bigint, token bigint, used jsonb) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    clock timestamptz;
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.job WHERE job.id = $1 AND job.claim_token = $2) THEN
        RETURN false;
    END IF;
    -- As claims do, which write these states under the locks.
    PERFORM pg_advisory_xact_lock(hashtext('sa_jobqueue owners ' || ({name} || '.job')::regclass::oid), o.place) FROM (
        SELECT DISTINCT hashtext(split_part(split_part(r.slot[1], ' ', 1), ':', 1) || ':' || r.slot[2]) AS place FROM {schema}.further_rates(ARRAY[$1], true) AS r
        ORDER BY 1) AS o;
    clock := clock_timestamp();
    INSERT INTO {schema}.limit_state AS l (owner, name, key, free_at, owed_at, owed)
    SELECT r.slot[1], r.slot[2], r.slot[3], clock + least(w.owed * (r.seconds / r.count), 1e12) * interval '1 second', clock, w.owed
    FROM {schema}.further_rates(ARRAY[$1], true) AS r
    LEFT JOIN {schema}.limit_state AS s ON s.owner = r.slot[1] AND s.name = r.slot[2] AND s.key = r.slot[3]
    CROSS JOIN LATERAL (SELECT greatest(coalesce({schema}.rate_owed(s.free_at, s.owed_at, s.owed, clock, r.count, r.seconds), 0)
        + ($3 -> r.unit ->> 1)::double precision - coalesce(($3 -> r.unit ->> 0)::double precision, r.amount), 0) AS owed) AS w
    WHERE $3 ? r.unit
    ORDER BY r.slot
    ON CONFLICT (owner, name, key) DO UPDATE SET free_at = excluded.free_at, owed_at = excluded.owed_at, owed = excluded.owed;
    RETURN true;
END
$body$;

-- Notes what these jobs take of such rates.
CREATE FUNCTION {schema}.further_used(ids bigint[], clock timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $body$
BEGIN
    INSERT INTO {schema}.limit_state AS l (owner, name, key, free_at, owed_at, owed)
    SELECT r.slot[1], r.slot[2], r.slot[3], $2 + least(w.owed * (r.seconds / r.count), 1e12) * interval '1 second', $2, w.owed
    FROM (SELECT f.slot, f.count, f.seconds, sum(f.amount) AS amount FROM {schema}.further_rates($1) AS f WHERE f.count IS NOT NULL GROUP BY 1, 2, 3) AS r
    LEFT JOIN {schema}.limit_state AS s ON s.owner = r.slot[1] AND s.name = r.slot[2] AND s.key = r.slot[3]
    CROSS JOIN LATERAL (SELECT coalesce({schema}.rate_owed(s.free_at, s.owed_at, s.owed, $2, r.count, r.seconds), 0) + r.amount AS owed) AS w
    ORDER BY r.slot
    ON CONFLICT (owner, name, key) DO UPDATE SET free_at = excluded.free_at, owed_at = excluded.owed_at, owed = excluded.owed;
END
$body$;

-- Permits of this worker's jobs are free again: those that wait for some are told at the commit. The gate's cell holds a second of the
-- epoch until which a worker waits, and behind it, in seven digits, the opener: which worker; 0: several.
CREATE FUNCTION {schema}.permits_freed(opener integer) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    gate regclass := ({name} || '.gate_limit')::regclass;
    cell bigint := pg_sequence_last_value(gate);
BEGIN
    IF cell / 10000000 > extract(epoch FROM clock_timestamp()) AND cell % 10000000 <> opener THEN
        PERFORM pg_notify('sa_jobqueue_' || ({name} || '.job')::regclass::oid, '(limits)'), setval(gate, 0);
    END IF;
END
$body$;

-- With the place of each key's first job: what reads its jobs then begins there, and not at the entries of those that are done.
CREATE FUNCTION {schema}.ready_keys(
    queue text, after text, up_to text, most integer,
    OUT keys text[], OUT priorities smallint[], OUT times timestamptz[], OUT ids bigint[]
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
BEGIN
    WITH RECURSIVE ring AS (
        (SELECT job.concurrency_key AS key, - job.priority AS priority, job.run_at, job.id, 1 AS number FROM {schema}.job
         WHERE job.queue = $1 AND job.concurrency_key > $2 AND job.concurrency_key IS NOT NULL AND job.status = 'queued'
             AND job.run_at <= GREATEST(job.created_at, job.ready_at)
         ORDER BY job.concurrency_key, (- job.priority), job.run_at, job.id LIMIT 1)
        UNION ALL
        SELECT next.key, next.priority, next.run_at, next.id, ring.number + 1 FROM ring CROSS JOIN LATERAL (
            SELECT job.concurrency_key AS key, - job.priority AS priority, job.run_at, job.id FROM {schema}.job
            WHERE job.queue = $1 AND job.concurrency_key > ring.key AND job.concurrency_key IS NOT NULL AND job.status = 'queued'
                AND job.run_at <= GREATEST(job.created_at, job.ready_at)
            ORDER BY job.concurrency_key, (- job.priority), job.run_at, job.id LIMIT 1) AS next
        WHERE ring.number < $4 AND (ring.key < $3 COLLATE "C" OR $3 IS NULL))
    SELECT coalesce(array_agg(ring.key ORDER BY ring.number), '{}'), array_agg(ring.priority::smallint ORDER BY ring.number),
        array_agg(ring.run_at ORDER BY ring.number), array_agg(ring.id ORDER BY ring.number)
    INTO keys, priorities, times, ids FROM ring WHERE ring.key <= $3 COLLATE "C" OR $3 IS NULL;
END
$body$;

-- Ends jobs of a key that wait, where more wait than its limits allow. `started`: how many of its jobs are being started now, the `picked`.
-- What was begun once is not dropped: it may have done a part of its work, and its own start may be what makes the limit full.
CREATE FUNCTION {schema}.drop_waiting(owner text, name text, queue text, key text, started integer, picked bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
DECLARE
    rule record;
    most integer;
    is_group boolean := $4 < chr(2) COLLATE "C";
    room integer;  -- how many more may start; NULL: any number
    behind double precision;
    clock timestamptz := clock_timestamp();
    reason text;
    dropped bigint[];
BEGIN
    SELECT l.when_full, l.max_waiting, CASE WHEN is_group THEN l.running ELSE coalesce(k.running, l.key_running) END AS running,
        CASE WHEN is_group THEN l.rate_count ELSE coalesce(k.rate_count, l.key_rate_count) END AS rate_count,
        CASE WHEN is_group THEN l.rate_seconds WHEN k.rate_count IS NULL THEN l.key_rate_seconds ELSE k.rate_seconds END AS rate_seconds,
        CASE WHEN is_group THEN l.rate_burst WHEN k.rate_count IS NULL THEN l.key_rate_burst ELSE k.rate_burst END AS rate_burst,
        s.free_at, s.owed_at, s.owed
    INTO rule FROM {schema}.job_limit AS l
    LEFT JOIN {schema}.job_key AS k ON k.owner = l.owner AND k.name = l.name AND k.key = $4
    LEFT JOIN {schema}.limit_state AS s ON s.owner = l.owner AND s.name = l.name AND s.key = CASE WHEN is_group THEN '' ELSE $4 END
    WHERE l.owner = $1 AND l.name = $2;
    most := coalesce(rule.max_waiting, CASE rule.when_full WHEN 'wait' THEN NULL WHEN 'drop_newest' THEN 0 ELSE 1 END);
    IF most IS NULL THEN
        RETURN;
    END IF;
    IF is_group THEN
        room := rule.running - $5 - (SELECT count(*) FROM {schema}.job WHERE job.status = 'running' AND job.task = $2);
    ELSE
        room := rule.running - $5 - (SELECT count(*) FROM {schema}.job
            WHERE (job.concurrency_key, job.status <> 'queued', job.id) >= ($4, true, 0) AND job.concurrency_key <= $4
            AND job.concurrency_key IS NOT NULL AND (job.status = 'running' OR (job.status = 'queued' AND job.claims > 0))
            AND CASE $1 WHEN 'queue' THEN job.queue = $3 ELSE job.task = $2 END);
    END IF;
    behind := {schema}.rate_owed(rule.free_at, rule.owed_at, rule.owed, clock, rule.rate_count, rule.rate_seconds);
    room := least(room, floor(rule.rate_burst - least(coalesce(behind, 0), rule.rate_burst) + 0.000001)::integer - $5);
    IF rule.max_waiting IS NULL AND (room IS NULL OR room > 0) THEN
        RETURN;
    END IF;
    -- For these jobs there is room, but they were enqueued after this claim had looked, or it may start no more. The next one starts them.
    most := most + greatest(room, 0);
    reason := concat(CASE WHEN NOT is_group THEN format('key %L of ', $4) END, format('%s %L: ', $1, $2),
        CASE WHEN rule.max_waiting IS NULL THEN 'it is full, and when_full is ' || rule.when_full
            WHEN rule.max_waiting = 0 THEN 'none may wait (max_waiting)'
            ELSE format('no more than %s may wait (max_waiting)', rule.max_waiting) END);
    SELECT array_agg(d.id) INTO dropped FROM (
        SELECT w.id FROM (
            SELECT j.id, row_number() OVER (ORDER BY j.id) AS place, count(*) OVER () AS number FROM (
                SELECT job.id FROM {schema}.job
                WHERE job.queue = $3 AND job.concurrency_key = $4 AND job.concurrency_key IS NOT NULL AND job.status = 'queued'
                    AND job.run_at <= GREATEST(job.created_at, job.ready_at) AND job.claims = 0 AND ($1 = 'queue' OR job.task = $2)
                    AND job.id <> ALL (picked)
                ORDER BY job.concurrency_key, (- job.priority), job.run_at, job.id LIMIT most + 1000) AS j) AS w
        WHERE CASE WHEN rule.when_full IN ('wait', 'drop_newest') THEN w.place > most ELSE w.place <= w.number - most END) AS d;
    IF dropped IS NOT NULL THEN
        WITH locked AS MATERIALIZED (
            SELECT job.id FROM {schema}.job WHERE job.id = ANY (dropped) AND job.status = 'queued'
            ORDER BY job.id FOR NO KEY UPDATE SKIP LOCKED),
        ended AS (
            UPDATE {schema}.job SET status = 'cancelled', finished_at = clock_timestamp(), purge_at = CASE WHEN job.workflow_id IS NULL
                THEN clock_timestamp() + interval '7 days' END,
                errors = CASE WHEN jsonb_typeof(job.errors) = 'array' THEN job.errors ELSE '[]' END || jsonb_build_array(jsonb_build_object(
                    'at', clock_timestamp(), 'attempt', job.attempt, 'type', 'Dropped', 'message', reason, 'traceback', ''))
            WHERE job.id = ANY (ARRAY (SELECT locked.id FROM locked))
            RETURNING job.id, job.workflow_id, job.uniqueness ->> 'key' AS key),
        events AS (
            INSERT INTO {schema}.workflow_event (workflow_id, job_id, completed)
            SELECT ended.workflow_id, ended.id, false FROM ended WHERE ended.workflow_id IS NOT NULL
            RETURNING {schema}.tell_workflows()),
        freed AS (
            DELETE FROM {schema}.unique_key AS taken USING ended
            WHERE taken.key = ended.key AND taken.job_id = ended.id AND taken.keep IS NULL AND taken.expires_at IS NULL),
        kept AS (
            UPDATE {schema}.unique_key AS taken SET expires_at = clock_timestamp() + taken.keep * interval '1 second' FROM ended
            WHERE taken.key = ended.key AND taken.job_id = ended.id AND taken.keep IS NOT NULL AND taken.expires_at IS NULL)
        SELECT array_agg(ended.id) INTO dropped FROM ended;
        IF {schema}.any_awaited() THEN
            PERFORM {schema}.tell_ended(dropped);
        END IF;
    END IF;
    -- What waits now takes the place of what runs.
    IF rule.when_full = 'cancel_running' AND room <= 0 AND EXISTS (
        SELECT FROM {schema}.job WHERE job.queue = $3 AND job.concurrency_key = $4 AND job.concurrency_key IS NOT NULL AND job.status = 'queued'
            AND job.run_at <= GREATEST(job.created_at, job.ready_at) AND job.claims = 0 AND ($1 = 'queue' OR job.task = $2)
            AND job.id <> ALL (picked)
    ) THEN
        -- Not one that is locked: its worker may be writing its end, and waiting for this claim.
        UPDATE {schema}.job SET cancel_requested_at = {schema}.tell_workers(job.tableoid)
        WHERE job.id = ANY (ARRAY (
            SELECT job.id FROM {schema}.job
            WHERE job.status = 'running' AND job.cancel_requested_at IS NULL AND job.id = ANY (ARRAY (
                SELECT job.id FROM {schema}.job WHERE (job.concurrency_key, job.status <> 'queued', job.id) >= ($4, true, 0) AND job.concurrency_key <= $4
                    AND job.concurrency_key IS NOT NULL AND (job.status = 'running' OR (job.status = 'queued' AND job.claims > 0))
                    AND CASE $1 WHEN 'queue' THEN job.queue = $3 ELSE job.task = $2 END
                UNION ALL
                SELECT job.id FROM {schema}.job WHERE is_group AND job.status = 'running' AND job.task = $2))
            ORDER BY job.id FOR NO KEY UPDATE SKIP LOCKED));
    END IF;
END
$body$;

-- A ring of keys: each gets jobs by its weight, until as many are picked as are wanted, or all have had their turn.
--
-- Returns a row for each job that it picked, and a row without an id for each queue, whose `info` says where the ring stopped, when to
-- look again, and whether jobs wait for a permit. `from_times`, `from_ids`: of each queue and level, from 9 to 0, the place of a job without
-- a key behind which to begin, at first; before are only the entries of jobs that are done, as a rule. `unknown_tasks`: those that the worker cannot run. `known`: the versions of the limits that the worker has read. `opener`: 1 to 999, the
-- worker; `freed`: whether limited jobs of it have ended since its last claim. `charges`: of each queue whose keys share its time, the seconds that
-- a job of it takes, and by key the seconds that it is charged and that a job of it takes; NULL: none. `visible`: what the statement sees that
-- is to claim the jobs; NULL: all.
-- OFFSET 0 is a fence: what is looked up for each key is looked up by index, also by a plan that was made when there was nothing.
--
-- The `concurrency_key` of a limited task's jobs that have no key is chr(1) and the task's name. All other keys are not below chr(2).
CREATE FUNCTION {schema}.pick_limited(
    queue_names text[], wanted integer[], after_keys text[], had_turns integer[], from_times double precision[], from_ids bigint[],
    limited_tasks text[], unknown_tasks text[], known bigint, but_ids bigint[], opener integer, freed boolean, charges jsonb, visible pg_snapshot
) RETURNS TABLE (id bigint, at timestamptz, info text) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
DECLARE
    jobs regclass := ({name} || '.job')::regclass;
    owner_space integer := hashtext('sa_jobqueue owners ' || jobs::oid);
    key_space integer := hashtext('sa_jobqueue keys ' || jobs::oid);
    -- Of the caller's snapshot: the age of the first transaction that it knows nothing of, those that went on, and the caller's own.
    newest integer := age(pg_snapshot_xmax(visible)::xid);
    unfinished xid[] := ARRAY (SELECT x::xid FROM pg_snapshot_xip(visible) AS x);
    own xid := pg_current_xact_id_if_assigned()::xid;
    -- One time for all that is picked here, and for its claims.
    clock timestamptz;
    -- The limited tasks, side by side: what they may start, in all queues together.
    task_names text[] := '{}'; task_rooms integer[] := '{}'; task_units integer[] := '{}'; task_owed double precision[];
    by_key boolean := false; strict_tasks text[] := '{}'; drops boolean; any_permit boolean := false; tasks_at timestamptz;
    -- The queue: its limits, and what they leave.
    this text; rule record; state record; room integer; units_left integer; queue_owed double precision; lowest bigint; is_strict boolean;
    has_keys boolean; has_states boolean; alike boolean; late_keys text[]; behind text[]; away text[];
    -- Where the walk is.
    cursor_key text; inclusive boolean; from_key text; second_half boolean; circled boolean; bound integer; visits integer;
    visited text; seen text[];
    -- The keys that have a turn, side by side; the next three are of the first job of each.
    keys text[]; priorities smallint[]; times timestamptz[]; firsts bigint[]; weights integer[]; rooms integer[]; limits integer[];
    key_units integer[]; key_owed double precision[]; asked integer[]; taken integer[]; lows bigint[]; known_lows bigint[];
    further boolean; tasks_further boolean := false; earlier bigint[] := '{}'; shut text[]; shuts integer; levels integer[]; held_back integer[]; late_tasks text[]; by_time boolean; usual double precision; of_time jsonb; has_rates boolean; has_any_rate boolean; began timestamptz; slow boolean; quantum integer; had integer;
    -- The jobs found for them, side by side, and the place of the first key that the queue's rate keeps waiting.
    ids bigint[]; places integer[]; tasks text[]; units integer[]; sures boolean[]; all_sure boolean; by_id boolean; resumes boolean; short integer;
    -- All that is picked: of this queue, and of all.
    picked bigint[]; of_keys text[]; of_tasks text[]; of_units integer[]; skipped bigint[];
    all_keys text[] := '{}'; all_tasks text[] := '{}'; all_units integer[] := '{}';
    -- What the worker is told.
    permit boolean; keyed boolean; again boolean; rate_at timestamptz; next_at timestamptz; stopped text; turns integer;
    answer record; total integer; cell bigint; seconds bigint;
BEGIN
    -- Claims of one limited queue or task come one after the other, from here to their commits.
    PERFORM pg_advisory_xact_lock(owner_space, o.place) FROM (
        SELECT DISTINCT hashtext(l.owner || ':' || l.name) AS place FROM (
            SELECT l.owner, l.name FROM {schema}.job_limit AS l
            WHERE num_nonnulls(l.running, l.rate_count, l.rates, l.key_rates, l.per, l.broken_until) > 0
            UNION ALL SELECT split_part(k.owner, ':', 1), k.name FROM {schema}.job_key AS k WHERE k.rates IS NOT NULL OR k.owner LIKE '%:%') AS l
        WHERE ((l.owner = 'queue' AND l.name = ANY (queue_names)) OR (l.owner = 'task' AND l.name = ANY (limited_tasks)))
        ORDER BY 1) AS o;
    -- They may have changed while this claim waited.
    IF (SELECT bit_xor(l.version) FROM {schema}.job_limit AS l) IS DISTINCT FROM known THEN
        PERFORM {schema}.limits_changed(known);
    END IF;
    -- Another transaction may have a later time and come first: then a rate gives less, not more.
    clock := clock_timestamp();
    -- What limited tasks may start, in all queues together.
    IF cardinality(limited_tasks) > 0 THEN
        -- All of them are counted at once: each count reads all that runs.
        WITH runs AS MATERIALIZED (
            SELECT job.task, count(*) AS number FROM {schema}.job
            WHERE job.status = 'running' AND job.task = ANY (limited_tasks) AND EXISTS (SELECT FROM {schema}.job_limit AS l
                WHERE l.owner = 'task' AND l.name = ANY (limited_tasks) AND l.running IS NOT NULL)
            GROUP BY job.task)
        SELECT coalesce(array_agg(t.name), '{}') AS names, array_agg(t.room) AS rooms, array_agg(t.units) AS units, array_agg(t.owed) AS owed,
            coalesce(bool_or(t.by_key), false) AS by_key, coalesce(array_agg(t.name) FILTER (WHERE t.is_strict), '{}') AS stricts,
                min(t.again_at) FILTER (WHERE t.again_at > clock) AS again_at,
            coalesce(bool_or(t.room <= 0 AND NOT t.is_paused), false) AS full, coalesce(bool_or(t.further), false) AS further
        INTO answer FROM (
            SELECT l.name, num_nonnulls(l.rates, l.key_rates, l.per) > 0 OR EXISTS (SELECT FROM {schema}.job_key AS k WHERE k.name = l.name
                    AND split_part(k.owner, ':', 1) = 'task' AND (k.rates IS NOT NULL OR k.owner LIKE '%:%')) AS further, l.key_running IS NOT NULL OR l.key_rate_count IS NOT NULL
                    OR l."strict" OR EXISTS (SELECT FROM {schema}.job_key AS k WHERE k.owner = 'task' AND k.name = l.name) AS by_key,
                l."strict" AS is_strict,
                l.paused_at IS NOT NULL AS is_paused, CASE WHEN l.paused_at IS NOT NULL OR s.blocked_until > clock OR l.broken_until > clock THEN 0
                    WHEN l.broken_until IS NOT NULL THEN greatest(least(1, l.running - coalesce(r.number, 0)) - (SELECT count(*) FROM {schema}.job
                        WHERE job.status = 'running' AND job.task = l.name AND job.claimed_at >= l.broken_until), 0)
                    WHEN l.running IS NULL THEN 1000000
                    ELSE greatest(l.running - coalesce(r.number, 0), 0) END AS room,
                CASE WHEN o.owed IS NOT NULL THEN floor(l.rate_burst - least(o.owed, l.rate_burst) + 0.000001)::integer END AS units, o.owed,
                greatest(s.blocked_until, l.broken_until, CASE WHEN l.rate_seconds / l.rate_count IS NOT NULL
                    THEN clock + greatest(least((o.owed + 1 - l.rate_burst) * (l.rate_seconds / l.rate_count), 1e10), 0) * interval '1 second' END) AS again_at
            FROM {schema}.job_limit AS l LEFT JOIN {schema}.limit_state AS s
                ON s.owner = 'task' AND s.name = l.name AND s.key = ''
            LEFT JOIN runs AS r ON r.task = l.name
            CROSS JOIN LATERAL (SELECT {schema}.rate_owed(s.free_at, s.owed_at, s.owed, clock, l.rate_count, l.rate_seconds) AS owed) AS o
            WHERE l.owner = 'task' AND l.name = ANY (limited_tasks)) AS t;
        task_names := answer.names; task_rooms := answer.rooms; task_units := answer.units; task_owed := answer.owed; by_key := answer.by_key; strict_tasks :=
            answer.stricts; tasks_at := answer.again_at;
        any_permit := answer.full; tasks_further := answer.further;
    END IF;
    -- Jobs that this worker cannot run would use up rates, and go back: to it, their tasks are as if they were paused.
    FOR place IN 1 .. cardinality(unknown_tasks) LOOP
        total := coalesce(array_position(task_names, unknown_tasks[place]), cardinality(task_names) + 1);
        task_names[total] := unknown_tasks[place]; task_rooms[total] := 0; task_units[total] := NULL; task_owed[total] := NULL;
    END LOOP;
    drops := EXISTS (SELECT FROM {schema}.job_limit AS l WHERE (l.when_full <> 'wait' OR l.max_waiting IS NOT NULL)
        AND ((l.owner = 'queue' AND l.name = ANY (queue_names)) OR (l.owner = 'task' AND l.name = ANY (limited_tasks))));
    FOR place IN 1 .. cardinality(queue_names) LOOP
        this := queue_names[place];
        room := wanted[place];
        cursor_key := coalesce(after_keys[place], '');
        -- Whether the key at which the last claim stopped has turns left.
        inclusive := after_keys[place] IS NULL OR had_turns[place] > 0;
        stopped := cursor_key; turns := coalesce(had_turns[place], 0);
        visits := 0; again := false; permit := any_permit; rate_at := tasks_at; next_at := NULL; units_left := NULL; queue_owed := NULL; lowest := NULL;
        circled := false; visited := NULL; short := NULL; keyed := false;
        picked := '{}'; of_keys := '{}'; of_tasks := '{}'; of_units := '{}'; away := '{}'; skipped := '{}'; seen := '{}';
        -- What this queue may start.
        SELECT * INTO rule FROM {schema}.job_limit AS l WHERE l.owner = 'queue' AND l.name = this;
        SELECT * INTO state FROM {schema}.limit_state AS s WHERE s.owner = 'queue' AND s.name = this AND s.key = '';
        by_time := coalesce(rule.share = 'time', false);
        of_time := charges -> this -> 1; usual := coalesce((charges -> this ->> 0)::double precision, 0);
        is_strict := coalesce(rule."strict", false) OR cardinality(strict_tasks) > 0;
        behind := '{}';
        IF cardinality(task_names) > 0 AND EXISTS (
            SELECT FROM {schema}.job WHERE job.queue = this AND job.concurrency_key < chr(2) COLLATE "C" AND job.concurrency_key IS NOT NULL
                AND job.status = 'queued' AND job.run_at <= GREATEST(job.created_at, job.ready_at)) THEN
            -- Tasks of which some jobs were put aside: these go before those that were not.
            behind := ARRAY (SELECT substr(g.key, 2) FROM {schema}.ready_keys(this, '', chr(2), 1000) AS r, unnest(r.keys) AS g (key)
                WHERE g.key < chr(2) COLLATE "C" AND substr(g.key, 2) = ANY (task_names));
        END IF;
        IF is_strict THEN
            late_keys := ARRAY (SELECT DISTINCT job.concurrency_key FROM {schema}.job WHERE job.queue = this AND job.concurrency_key IS NOT NULL
                AND job.status = 'queued' AND job.run_at > GREATEST(job.created_at, job.ready_at) AND job.run_at <= clock);
        END IF;
        -- Where no job with a key is ready, the ring has only those without one.
        SELECT EXISTS (SELECT FROM {schema}.job_key AS k WHERE k.owner = 'queue' AND k.name = this),
            EXISTS (SELECT FROM {schema}.limit_state AS s WHERE s.owner = 'queue' AND s.name = this AND s.key > ''),
            NOT EXISTS (SELECT FROM {schema}.job WHERE job.queue = this AND job.concurrency_key IS NOT NULL AND job.status = 'queued'
                AND job.run_at <= GREATEST(job.created_at, job.ready_at))
        INTO has_keys, has_states, second_half;
        shut := '{}'; late_tasks := '{}';
        further := tasks_further OR num_nonnulls(rule.rates, rule.key_rates, rule.per) > 0 OR EXISTS (SELECT FROM {schema}.job_key AS k
            WHERE k.name = this AND split_part(k.owner, ':', 1) = 'queue' AND (k.rates IS NOT NULL OR k.owner LIKE '%:%'));
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
            SELECT count(*), min(job.id) INTO total, lowest FROM {schema}.job
            WHERE job.status = 'running' AND job.queue = this AND job.id >= coalesce(state.lowest_id, 0);
            room := least(room, rule.running - total);
            permit := permit OR room <= 0;
        END IF;
        IF room > 0 AND rule.rate_count IS NOT NULL THEN
            queue_owed := {schema}.rate_owed(state.free_at, state.owed_at, state.owed, clock, rule.rate_count, rule.rate_seconds);
            units_left := CASE WHEN queue_owed IS NOT NULL THEN floor(rule.rate_burst - least(queue_owed, rule.rate_burst) + 0.000001)::integer END;
            room := least(room, units_left);
            IF room <= 0 THEN
                rate_at := least(rate_at, CASE WHEN rule.rate_seconds / rule.rate_count IS NOT NULL
                    THEN clock + greatest(least((queue_owed + 1 - rule.rate_burst) * (rule.rate_seconds / rule.rate_count), 1e10),
                    0) * interval '1 second' END);
            END IF;
        END IF;
        from_key := cursor_key;
        IF second_half THEN
            from_key := NULL;
        END IF;
        WHILE room > 0 AND NOT circled AND visits < 1000 LOOP
            -- 1. The keys that have a turn next.
            -- The next keys with ready jobs: those behind the one at which the last claim stopped, then those up to it. The jobs
            -- without a key are one of them, ''.
            bound := least(CASE WHEN by_time THEN 4 * room + 60 WHEN shut <> '{}' THEN 256 ELSE room + 8 END, 256);
            keys := '{}'; priorities := '{}'; times := '{}'; firsts := '{}';
            IF inclusive AND visits = 0 THEN
                keys := ARRAY[cursor_key]; priorities := ARRAY[-100::smallint]; times := ARRAY['-infinity'::timestamptz]; firsts := ARRAY[0::bigint];
            END IF;
            IF NOT second_half THEN
                SELECT * INTO answer FROM {schema}.ready_keys(this, from_key, NULL, bound);
                keys := keys || answer.keys; priorities := priorities || answer.priorities; times := times || answer.times;
                firsts := firsts || answer.ids;
                second_half := cardinality(answer.keys) < bound;
                from_key := CASE WHEN second_half THEN NULL ELSE answer.keys[bound] END;
            END IF;
            IF second_half AND cardinality(keys) < bound THEN
                IF from_key IS NULL THEN
                    from_key := '';
                    IF NOT (inclusive AND cursor_key = '') THEN
                        keys := keys || ''::text; priorities := priorities || -100::smallint; times := times || '-infinity'::timestamptz;
                        firsts := firsts || 0::bigint;
                    END IF;
                END IF;
                circled := cursor_key = '';
                IF NOT circled THEN
                    SELECT * INTO answer FROM {schema}.ready_keys(this, from_key, cursor_key, bound);
                    total := cardinality(answer.keys);
                    circled := total < bound;
                    from_key := coalesce(answer.keys[total], from_key);
                    IF inclusive AND answer.keys[total] = cursor_key THEN
                        total := total - 1;
                    END IF;
                    keys := keys || answer.keys[1:total]; priorities := priorities || answer.priorities[1:total];
                    times := times || answer.times[1:total]; firsts := firsts || answer.ids[1:total];
                END IF;
            END IF;
            visits := visits + cardinality(keys) + 1;
            seen := CASE WHEN drops THEN seen || keys ELSE seen END;
            CONTINUE WHEN cardinality(keys) = 0;
            visited := keys[cardinality(keys)]; keyed := keyed OR keys <> '{""}';
            -- 2. How many jobs each may start.
            IF alike THEN
                -- Where nothing is said of any key, each may start as many as there is room for.
                weights := array_fill(1, ARRAY[cardinality(keys)]); rooms := array_fill(1000000, ARRAY[cardinality(keys)]);
                limits := rooms; key_units := array_fill(NULL::integer, ARRAY[cardinality(keys)]); key_owed := NULL; lows := NULL;
                has_rates := false; slow := false;
            ELSE
                -- Which of them may start jobs at all. Those with limits of their own are locked, and none is waited for.
                WITH said AS MATERIALIZED (
                    SELECT r.key, r.number, r.priority, r.time, r.first, coalesce(k.weight, 1)::integer AS weight, r.key >= chr(2) COLLATE "C" AS is_key,
                        k.paused_at IS NOT NULL OR (r.key < chr(2) COLLATE "C" AND coalesce(
                            least(task_rooms[array_position(task_names, substr(r.key, 2))],
                                  task_units[array_position(task_names, substr(r.key, 2))]) <= 0, false)) AS closed,
                        CASE WHEN r.key >= chr(2) COLLATE "C" THEN coalesce(k.running, rule.key_running) END AS running,
                        CASE WHEN r.key >= chr(2) COLLATE "C" THEN coalesce(k.rate_count, rule.key_rate_count) END AS rate_count,
                        CASE WHEN k.rate_count IS NULL THEN rule.key_rate_seconds ELSE k.rate_seconds END AS rate_seconds,
                        CASE WHEN k.rate_count IS NULL THEN rule.key_rate_burst ELSE k.rate_burst END AS rate_burst
                    FROM unnest(keys, priorities, times, firsts) WITH ORDINALITY AS r (key, priority, time, first, number) LEFT JOIN LATERAL (
                        SELECT * FROM {schema}.job_key AS k WHERE k.owner = 'queue' AND k.name = this AND k.key = r.key AND has_keys OFFSET 0) AS k ON true),
                locked AS MATERIALIZED (
                    SELECT s.*, CASE
                        WHEN s.closed THEN false
                        WHEN s.is_key AND (s.running IS NOT NULL OR s.rate_count IS NOT NULL OR by_key OR rule."strict"
                                           OR rule.max_waiting IS NOT NULL OR rule.when_full <> 'wait')
                            THEN pg_try_advisory_xact_lock(key_space, hashtext(s.key) & 1023)
                        ELSE true END AS mine
                    FROM said AS s)
                SELECT array_agg(l.key) FILTER (WHERE l.mine) AS keys,
                    array_agg(l.weight) FILTER (WHERE l.mine) AS weights,
                    array_agg(l.priority) FILTER (WHERE l.mine) AS priorities,
                    array_agg(l.time) FILTER (WHERE l.mine) AS times,
                    array_agg(l.first) FILTER (WHERE l.mine) AS firsts,
                    array_agg(l.running) FILTER (WHERE l.mine) AS running,
                    array_agg(l.rate_count) FILTER (WHERE l.mine) AS counts,
                    array_agg(l.rate_seconds) FILTER (WHERE l.mine) AS spans,
                    array_agg(l.rate_burst) FILTER (WHERE l.mine) AS bursts,
                    bool_or(l.mine AND l.rate_count IS NOT NULL) AS has_rates,
                    coalesce(bool_or(NOT l.mine AND NOT l.closed), false) AS taken_by_others
                INTO answer FROM (SELECT * FROM locked ORDER BY number) AS l;
                again := again OR answer.taken_by_others;
                CONTINUE WHEN answer.keys IS NULL;
                keys := answer.keys; weights := answer.weights; priorities := answer.priorities; times := answer.times; firsts := answer.firsts;
                has_rates := answer.has_rates;
                -- How many each may start. This statement is younger than the locks, so it sees all that runs.
                began := clock_timestamp();
                has_states := EXISTS (SELECT FROM {schema}.limit_state AS s WHERE s.owner = 'queue' AND s.name = this AND s.key > '');
                SELECT array_agg(r.room) AS rooms, array_agg(r.units) AS units,
                    array_agg(r.lowest) AS lowest, array_agg(r.lowest_id) AS known_lowest,
                    array_agg(r.owed) AS owed,
                    coalesce(bool_or(r.full), false) AS full, min(r.again_at) FILTER (WHERE r.again_at > clock) AS again_at
                INTO answer FROM (
                    SELECT c.number, c.running <= n.runs AS full, n.lowest, o.owed, CASE WHEN s.version = rule.version AND rule.key_running IS NOT NULL
                        THEN s.lowest_id END AS lowest_id,
                        CASE WHEN s.blocked_until > clock
                                -- A job that waits to be tried again keeps its key closed, and so does one that is due and not yet among the ready ones.
                                OR rule."strict" AND c.key >= chr(2) COLLATE "C" AND (c.key = ANY (late_keys) OR EXISTS (SELECT FROM {schema}.job
                                    WHERE job.concurrency_key = c.key AND job.concurrency_key IS NOT NULL
                                        AND (job.status = 'running' OR (job.status = 'queued' AND job.claims > 0)) AND job.status <> 'running'
                                        AND NOT job.run_at <= GREATEST(job.created_at, job.ready_at) AND job.queue = this)) THEN 0
                            WHEN c.running IS NULL THEN 1000000 ELSE greatest(c.running - n.runs, 0) END AS room,
                        CASE WHEN o.owed IS NOT NULL THEN floor(c.burst - least(o.owed, c.burst) + 0.000001)::integer END AS units,
                        greatest(s.blocked_until, CASE WHEN c.seconds / c.count IS NOT NULL
                            THEN clock + greatest(least((o.owed + 1 - c.burst) * (c.seconds / c.count), 1e10), 0) * interval '1 second' END) AS again_at
                    FROM unnest(keys, answer.running, answer.counts, answer.spans, answer.bursts) WITH ORDINALITY
                        AS c (key, running, count, seconds, burst, number)
                    LEFT JOIN LATERAL (SELECT * FROM {schema}.limit_state AS s
                        WHERE s.owner = 'queue' AND s.name = this AND s.key = c.key AND c.key <> '' AND has_states OFFSET 0) AS s ON true
                    CROSS JOIN LATERAL (SELECT {schema}.rate_owed(s.free_at, s.owed_at, s.owed, clock, c.count, c.seconds) AS owed) AS o
                    CROSS JOIN LATERAL (SELECT count(*) AS runs, min(o.id) AS lowest FROM (SELECT job.id FROM {schema}.job
                        WHERE c.running IS NOT NULL AND job.queue = this
                            AND (job.concurrency_key, job.status <> 'queued', job.id) >= (c.key, true,
                            coalesce(CASE WHEN s.version = rule.version AND rule.key_running IS NOT NULL THEN s.lowest_id END, 0))
                            AND job.concurrency_key <= c.key AND job.concurrency_key IS NOT NULL
                            AND (job.status = 'running' OR (job.status = 'queued' AND job.claims > 0))) AS o) AS n
                    ORDER BY c.number) AS r;
                -- Behind the entries of jobs that are done, which an old snapshot keeps, it pays to note where those that run begin.
                slow := clock_timestamp() - began > interval '1 ms' + cardinality(keys) * interval '15 microseconds';
                rooms := answer.rooms; limits := rooms; key_units := answer.units; lows := answer.lowest; known_lows := answer.known_lowest; key_owed :=
                    answer.owed;
                permit := permit OR answer.full;
                rate_at := least(rate_at, answer.again_at);
            END IF;
            taken := array_fill(0, ARRAY[cardinality(keys)]); short := NULL; shuts := 0;
            has_any_rate := further OR units_left IS NOT NULL OR has_rates OR by_key OR cardinality(array_remove(task_units, NULL)) > 0;
            -- 3. The jobs. Where some keys have fewer, the others get more. A pass in which all jobs have to wait closes their keys.
            FOR pass IN 1 .. 6 + cardinality(keys) LOOP
                EXIT WHEN room <= 0;
                IF cardinality(shut) > shuts AND NOT is_strict THEN
                    -- Where one key waits for a further limit, many may. Those whose first job has to wait are closed at once, and not asked.
                    shuts := cardinality(shut);
                    SELECT * INTO answer FROM {schema}.further_waits(firsts, picked, earlier, clock, shut);
                    rate_at := least(rate_at, answer.again_at); permit := permit OR answer.is_full;
                    FOR n IN 1 .. cardinality(keys) LOOP
                        IF answer.levels[n] = 1 AND taken[n] = 0 THEN
                            rooms[n] := 0; limits[n] := 0;
                        END IF;
                    END LOOP;
                END IF;
                IF late_tasks <> '{}' THEN
                    SELECT array_agg(CASE WHEN w.name = ANY (late_tasks) THEN least(w.unit, 0) ELSE w.unit END ORDER BY w.number)
                    INTO task_units FROM unnest(task_names, task_units) WITH ORDINALITY AS w (name, unit, number);
                END IF;
                IF by_time THEN
                    -- As if each job that is started took as long as those of its key did: the next job is one of the key that is charged least.
                    had := 0;
                    SELECT array_agg(coalesce(n.number, 0) ORDER BY w.number) INTO asked
                    FROM generate_series(1, cardinality(keys)) AS w (number) LEFT JOIN (
                        SELECT s.number, count(*)::integer FROM (
                            SELECT w.number FROM unnest(keys, weights, rooms, key_units, taken) WITH ORDINALITY AS w (key, weight, most, units, before, number)
                            CROSS JOIN LATERAL generate_series(0, least(w.most, w.units, room, 2 * room / cardinality(keys) + 8) - 1) AS n
                            ORDER BY coalesce((of_time -> w.key ->> 0)::double precision, 0)
                                + (w.before + n) * coalesce((of_time -> w.key ->> 1)::double precision, usual) / w.weight, n, w.number
                            LIMIT room) AS s GROUP BY s.number) AS n (place, number) ON n.place = w.number;
                    EXIT WHEN 0 >= ALL (asked);
                ELSIF alike AND pass = 1 AND shuts = 0 THEN
                    quantum := greatest(room / cardinality(keys), 1); had := 0;
                    asked := array_fill(quantum, ARRAY[cardinality(keys)]);
                ELSE
                    SELECT sum(w.weight) INTO total FROM unnest(weights, rooms, key_units) AS w (weight, room, units)
                    WHERE w.room > 0 AND coalesce(w.units, 1) > 0;
                    EXIT WHEN total IS NULL;
                    -- How many of each, by its weight: as many whole rounds as there is room for, and then a part of one. The first key may have had some of its turns.
                    had := CASE WHEN pass = 1 AND inclusive AND keys[1] = cursor_key AND rooms[1] > 0 AND coalesce(key_units[1], 1) > 0
                        THEN coalesce(had_turns[place], 0) % weights[1] ELSE 0 END;
                    quantum := greatest((room + had) / total, 1);
                    SELECT array_agg(greatest(least(w.room, w.units, w.weight * quantum - CASE WHEN w.number = 1 THEN had ELSE 0 END), 0) ORDER BY w.number)
                    INTO asked FROM unnest(weights, rooms, key_units) WITH ORDINALITY AS w (weight, room, units, number);
                END IF;
                IF cardinality(task_names) > 0 THEN
                    -- Their jobs without a key let those of other tasks pass.
                    away := behind || ARRAY (SELECT t.name FROM unnest(task_names, task_rooms, task_units) AS t (name, room, units)
                        WHERE least(t.room, t.units) <= 0);
                END IF;
                -- Where each key may start one job, that is the first, which its place in the ring names.
                resumes := pass = 1 AND keys = '{""}' AND '-infinity' < ANY (from_times[10 * place - 9:10 * place]);
                by_id := pass = 1 AND firsts[1] <> 0 AND away = '{}' AND NOT is_strict AND 1 >= ALL (asked);
                IF by_id OR (keys = '{""}' AND away = '{}') THEN
                    SELECT array_agg(d.id), array_agg(d.place), array_agg(d.task), array_agg(d.units), bool_and(d.sure), array_agg(d.sure)
                    INTO ids, places, tasks, units, all_sure, sures FROM (
                        SELECT c.place::integer, d.id, d.task, d.units, d.sure
                        FROM unnest(keys, asked, firsts) WITH ORDINALITY AS c (key, most, first, place) CROSS JOIN LATERAL (
                            SELECT * FROM (
                                SELECT job.id, job.task, coalesce(job.units, 1)::integer AS units,
                                    (NOT has_any_rate OR age(job.xmin) >= coalesce((SELECT max(age(x::xid)) FROM pg_snapshot_xip(visible) AS x
                                    WHERE pg_visible_in_snapshot(x, pg_current_snapshot())), newest) OR age(job.xmin) < -1000000
                                    OR coalesce(job.xmin = own, false) OR newest IS NULL) AS sure FROM {schema}.job
                                WHERE job.id = c.first AND job.queue = this AND job.concurrency_key = c.key AND job.status = 'queued'
                                    AND job.run_at <= GREATEST(job.created_at, job.ready_at)
                                    AND ((age(job.xmin) > newest AND NOT job.xmin = ANY (unfinished)) OR age(job.xmin) < -1000000 OR job.xmin = own
                                        OR newest IS NULL) AND job.id <> ALL (but_ids) AND job.id <> ALL (picked) AND job.id <> ALL (skipped)
                                LIMIT CASE WHEN c.key <> '' THEN c.most ELSE 0 END FOR NO KEY UPDATE SKIP LOCKED) AS with_key
                            UNION ALL
                            SELECT * FROM (
                                SELECT u.* FROM generate_series(9, 0, -1) AS p (level) CROSS JOIN LATERAL (
                                    SELECT job.id, job.task, coalesce(job.units, 1)::integer AS units,
                                        (NOT has_any_rate OR age(job.xmin) >= coalesce((SELECT max(age(x::xid)) FROM pg_snapshot_xip(visible) AS x
                                        WHERE pg_visible_in_snapshot(x, pg_current_snapshot())), newest) OR age(job.xmin) < -1000000
                                        OR coalesce(job.xmin = own, false) OR newest IS NULL) AS sure FROM {schema}.job
                                    WHERE job.queue = this AND job.priority = p.level AND job.status = 'queued' AND job.concurrency_key IS NULL
                                        AND job.run_at <= clock AND (job.run_at, job.id) > (
                                            CASE WHEN resumes THEN to_timestamp(from_times[10 * place - p.level]) ELSE '-infinity' END,
                                            CASE WHEN resumes THEN from_ids[10 * place - p.level] ELSE 0 END)
                                        AND ((age(job.xmin) > newest AND NOT job.xmin = ANY (unfinished)) OR age(job.xmin) < -1000000 OR job.xmin = own
                                        OR newest IS NULL) AND job.id <> ALL (but_ids) AND job.id <> ALL (picked) AND job.id <> ALL (skipped)
                                    ORDER BY job.run_at, job.id LIMIT CASE WHEN c.key = '' THEN c.most ELSE 0 END
                                        FOR NO KEY UPDATE SKIP LOCKED) AS u
                                LIMIT CASE WHEN c.key = '' THEN c.most ELSE 0 END) AS without_key) AS d
                        LIMIT room) AS d;
                ELSE
                    SELECT array_agg(d.id), array_agg(d.place), array_agg(d.task), array_agg(d.units), bool_and(d.sure), array_agg(d.sure)
                    INTO ids, places, tasks, units, all_sure, sures FROM (
                        SELECT c.place::integer, d.id, d.task, d.units, d.sure
                        FROM unnest(keys, asked, priorities, times, firsts) WITH ORDINALITY AS c (key, most, priority, time, first, place) CROSS JOIN LATERAL (
                            SELECT * FROM (
                                -- What has begun goes before the others, where a key is to keep its order. `+ 0`, so that no plan reads all jobs in this order.
                                SELECT job.id, job.task, coalesce(job.units, 1)::integer AS units,
                                    (NOT has_any_rate OR age(job.xmin) >= coalesce((SELECT max(age(x::xid)) FROM pg_snapshot_xip(visible) AS x
                                    WHERE pg_visible_in_snapshot(x, pg_current_snapshot())), newest) OR age(job.xmin) < -1000000 OR coalesce(job.xmin = own, false)
                                    OR newest IS NULL) AS sure FROM {schema}.job
                                WHERE job.concurrency_key = c.key AND job.concurrency_key IS NOT NULL
                                    AND (job.status = 'running' OR (job.status = 'queued' AND job.claims > 0)) AND job.status <> 'running'
                                    AND NOT job.run_at > GREATEST(job.created_at, job.ready_at) AND job.queue = this
                                    AND ((age(job.xmin) > newest AND NOT job.xmin = ANY (unfinished)) OR age(job.xmin) < -1000000 OR job.xmin = own
                                        OR newest IS NULL) AND job.id <> ALL (but_ids) AND job.id <> ALL (picked) AND job.id <> ALL (skipped)
                                ORDER BY (job.id + 0) LIMIT CASE WHEN is_strict AND c.key <> '' THEN c.most ELSE 0 END FOR NO KEY UPDATE SKIP LOCKED) AS begun
                            UNION ALL
                            SELECT * FROM (
                                SELECT job.id, job.task, coalesce(job.units, 1)::integer AS units,
                                    (NOT has_any_rate OR age(job.xmin) >= coalesce((SELECT max(age(x::xid)) FROM pg_snapshot_xip(visible) AS x
                                    WHERE pg_visible_in_snapshot(x, pg_current_snapshot())), newest) OR age(job.xmin) < -1000000 OR coalesce(job.xmin = own, false)
                                    OR newest IS NULL) AS sure FROM {schema}.job
                                WHERE job.queue = this AND job.concurrency_key = c.key AND ((- job.priority), job.run_at, job.id) >= (c.priority, c.time, c.first)
                                    AND job.concurrency_key IS NOT NULL AND job.status = 'queued' AND job.run_at <= GREATEST(job.created_at, job.ready_at)
                                        AND NOT (is_strict AND job.claims > 0)
                                    AND ((age(job.xmin) > newest AND NOT job.xmin = ANY (unfinished)) OR age(job.xmin) < -1000000 OR job.xmin = own
                                        OR newest IS NULL) AND job.id <> ALL (but_ids) AND job.id <> ALL (picked) AND job.id <> ALL (skipped)
                                ORDER BY job.concurrency_key, (- job.priority), job.run_at, job.id LIMIT CASE WHEN c.key <> '' THEN c.most ELSE 0 END
                                    FOR NO KEY UPDATE SKIP LOCKED) AS with_key
                            UNION ALL
                            SELECT * FROM (
                                SELECT u.* FROM generate_series(9, 0, -1) AS p (level) CROSS JOIN LATERAL (
                                    SELECT job.id, job.task, coalesce(job.units, 1)::integer AS units,
                                        (NOT has_any_rate OR age(job.xmin) >= coalesce((SELECT max(age(x::xid)) FROM pg_snapshot_xip(visible) AS x
                                        WHERE pg_visible_in_snapshot(x, pg_current_snapshot())), newest) OR age(job.xmin) < -1000000
                                        OR coalesce(job.xmin = own, false) OR newest IS NULL) AS sure FROM {schema}.job WHERE job.queue = this
                                        AND job.priority = p.level AND job.status = 'queued' AND job.concurrency_key IS NULL AND job.run_at <= clock
                                        AND ((age(job.xmin) > newest AND NOT job.xmin = ANY (unfinished)) OR age(job.xmin) < -1000000 OR job.xmin = own
                                        OR newest IS NULL) AND job.id <> ALL (but_ids) AND job.id <> ALL (picked) AND job.id <> ALL (skipped)
                                    ORDER BY job.run_at, job.id LIMIT CASE WHEN c.key = '' AND away = '{}' THEN c.most ELSE 0 END
                                        FOR NO KEY UPDATE SKIP LOCKED) AS u
                                LIMIT CASE WHEN c.key = '' AND away = '{}' THEN c.most ELSE 0 END) AS without_key
                            UNION ALL
                            -- The same behind those of tasks that can start none: as far as a claim can look in a fraction of a second. The second condition of
                            -- a status is said so that a row is looked up by its id.
                            SELECT * FROM (
                                SELECT u.* FROM (SELECT front.* FROM generate_series(9, 0, -1) AS p (level) CROSS JOIN LATERAL (
                                        SELECT job.id, job.task FROM {schema}.job WHERE job.queue = this AND job.priority = p.level AND job.status = 'queued'
                                            AND job.concurrency_key IS NULL AND job.run_at <= clock
                                        ORDER BY job.run_at, job.id LIMIT 200000) AS front LIMIT 200000) AS near CROSS JOIN LATERAL (
                                    SELECT job.id, job.task, coalesce(job.units, 1)::integer AS units,
                                        (NOT has_any_rate OR age(job.xmin) >= coalesce((SELECT max(age(x::xid)) FROM pg_snapshot_xip(visible) AS x
                                        WHERE pg_visible_in_snapshot(x, pg_current_snapshot())), newest) OR age(job.xmin) < -1000000
                                        OR coalesce(job.xmin = own, false) OR newest IS NULL) AS sure FROM {schema}.job
                                    WHERE job.id = near.id AND job.status LIKE 'queued' AND job.concurrency_key IS NULL AND job.run_at <= clock AND job.queue = this
                                        AND ((age(job.xmin) > newest AND NOT job.xmin = ANY (unfinished)) OR age(job.xmin) < -1000000 OR job.xmin = own
                                            OR newest IS NULL) AND job.id <> ALL (but_ids) AND job.id <> ALL (picked) AND job.id <> ALL (skipped)
                                            FOR NO KEY UPDATE SKIP LOCKED) AS u
                                WHERE near.task <> ALL (away)
                                LIMIT CASE WHEN c.key = '' AND away <> '{}' THEN c.most ELSE 0 END) AS past_others
                            LIMIT c.most) AS d
                        LIMIT room) AS d;
                END IF;
                IF is_strict AND ids IS NOT NULL THEN
                    -- Under strict, the jobs of a key up to the first that is not among them: another transaction has locked it, this claim cannot see it yet, or
                    -- the worker skips it. Those behind it wait, and nothing tells when it is free: so the next claim looks soon.
                    SELECT array_agg(j.id ORDER BY j.number) FILTER (WHERE j.goes) AS ids, array_agg(j.place ORDER BY j.number) FILTER (WHERE j.goes) AS places,
                        array_agg(j.task ORDER BY j.number) FILTER (WHERE j.goes) AS tasks, array_agg(j.units ORDER BY j.number) FILTER (WHERE j.goes) AS units,
                        array_agg(j.sure ORDER BY j.number) FILTER (WHERE j.goes) AS sures, array_agg(DISTINCT j.place) FILTER (WHERE NOT j.goes) AS closed
                    INTO answer FROM (
                        SELECT f.*, NOT f.is_ordered OR bool_and((f.id = first.ids[f.rank]) IS TRUE) OVER (PARTITION BY f.place, f.is_ordered
                            ORDER BY f.rank) AS goes
                        FROM (
                            SELECT f.*, row_number() OVER (PARTITION BY f.place, f.is_ordered ORDER BY f.number) AS rank FROM (
                                SELECT f.*, keys[f.place] >= chr(2) COLLATE "C" AND (rule."strict" IS TRUE OR f.task = ANY (strict_tasks)) AS is_ordered
                                FROM unnest(ids, places, tasks, units, sures) WITH ORDINALITY AS f (id, place, task, units, sure, number)) AS f) AS f
                        LEFT JOIN (
                            SELECT p.place, ARRAY (
                                SELECT * FROM (
                                    SELECT job.id FROM {schema}.job
                                    WHERE job.concurrency_key = keys[p.place] AND job.concurrency_key IS NOT NULL
                                        AND (job.status = 'running' OR (job.status = 'queued' AND job.claims > 0)) AND job.status <> 'running'
                                        AND NOT job.run_at > GREATEST(job.created_at, job.ready_at) AND job.queue = this
                                        AND (rule."strict" IS TRUE OR job.task = ANY (strict_tasks)) AND job.id <> ALL (picked)
                                    ORDER BY (job.id + 0) LIMIT p.number) AS begun
                                UNION ALL
                                SELECT * FROM (
                                    SELECT job.id FROM {schema}.job
                                    WHERE job.queue = this AND job.concurrency_key = keys[p.place]
                                        AND ((- job.priority), job.run_at, job.id) >= (priorities[p.place], times[p.place], firsts[p.place])
                                        AND job.concurrency_key IS NOT NULL AND job.status = 'queued' AND job.run_at <= GREATEST(job.created_at, job.ready_at)
                                            AND job.claims = 0 AND (rule."strict" IS TRUE OR job.task = ANY (strict_tasks)) AND job.id <> ALL (picked)
                                    ORDER BY job.concurrency_key, (- job.priority), job.run_at, job.id LIMIT p.number) AS with_key) AS ids
                            FROM (SELECT f.place, count(*) AS number
                                FROM unnest(places) AS f (place) GROUP BY f.place) AS p) AS first ON first.place = f.place) AS j;
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
                IF further AND ids IS NOT NULL THEN
                    -- What further limits keep waiting waits with what is behind it in its key. Behind a job that waits for a rate of the queue, all wait.
                    SELECT * INTO answer FROM {schema}.further_waits(ids, picked, earlier, clock, shut);
                    shut := answer.shut; levels := answer.levels; rate_at := least(rate_at, answer.again_at); permit := permit OR answer.is_full;
                    IF 0 <> ANY (levels) THEN
                        held_back := '{}';
                        FOR n IN 1 .. cardinality(ids) LOOP
                            IF keys[places[n]] <> '' AND places[n] = ANY (held_back) THEN
                                levels[n] := -1;
                            END IF;
                            CONTINUE WHEN levels[n] = 0;
                            held_back := held_back || places[n];
                            -- Those behind it, and those that the next pass decides about, are not what the key lacks.
                            asked[places[n]] := asked[places[n]] - 1;
                            CONTINUE WHEN levels[n] = -1;
                            skipped := skipped || ids[n];
                            IF keys[places[n]] <> '' THEN
                                limits[places[n]] := 0;
                            END IF;
                            IF levels[n] = 2 THEN
                                late_tasks := late_tasks || tasks[n];
                            END IF;
                        END LOOP;
                        SELECT array_agg(j.id ORDER BY j.number), array_agg(j.place ORDER BY j.number), array_agg(j.task ORDER BY j.number),
                            array_agg(j.units ORDER BY j.number)
                        INTO ids, places, tasks, units
                        FROM unnest(ids, places, tasks, units, levels) WITH ORDINALITY AS j (id, place, task, units, level, number) WHERE j.level = 0;
                        FOR n IN 1 .. cardinality(keys) LOOP
                            rooms[n] := CASE WHEN ids IS NULL OR limits[n] = 0 THEN limits[n] - taken[n] ELSE rooms[n] END;
                        END LOOP;
                        IF 3 = ANY (levels) THEN
                            room := coalesce(cardinality(ids), 0);
                        END IF;
                        CONTINUE WHEN ids IS NULL;
                    END IF;
                END IF;
                CONTINUE WHEN ids IS NULL AND (by_id OR resumes);  -- they are locked, or skipped, or before: the next pass looks for all
                IF ids IS NULL AND by_time THEN
                    -- The keys that are charged least have none: the next pass asks the others.
                    FOR n IN 1 .. cardinality(keys) LOOP
                        rooms[n] := CASE WHEN asked[n] > 0 THEN 0 ELSE rooms[n] END;
                    END LOOP;
                    CONTINUE;
                END IF;
                EXIT WHEN ids IS NULL;
                -- 4. What rates and the limits of tasks leave of them.
                IF units_left IS NULL AND NOT has_rates AND NOT (tasks && task_names) THEN
                    picked := picked || ids;
                    room := room - cardinality(ids);
                ELSE
                    -- From the key's limits to the task's and the queue's: `..._has_room` is what a limit says of the job itself, `..._goes` whether it goes on.
                    -- Behind a job that has to wait, those of its key wait, too. A job of more units than the burst goes where all of the burst is left.
                    WITH found AS (
                        SELECT j.*, keys[j.place] AS key, keys[j.place] >= chr(2) COLLATE "C" AS is_key, array_position(task_names, j.task) AS task_place
                        FROM unnest(ids, places, tasks, units) WITH ORDINALITY AS j (id, place, task, units, number)),
                    said AS (
                        SELECT c.*, l.rate_burst AS burst, coalesce(own.rate_burst, rule.key_rate_burst) AS key_burst,
                            CASE WHEN c.is_key AND s.blocked_until > clock OR o.paused_at IS NOT NULL OR o.broken_until > clock
                                    OR l."strict" AND c.is_key AND (c.key = ANY (late_keys) OR EXISTS (SELECT FROM {schema}.job
                                        WHERE job.concurrency_key = c.key AND job.concurrency_key IS NOT NULL
                                            AND (job.status = 'running' OR (job.status = 'queued' AND job.claims > 0)) AND job.status <> 'running'
                                            AND (NOT job.run_at <= GREATEST(job.created_at, job.ready_at) OR job.queue <> this) AND job.task = c.task)) THEN 0
                                WHEN c.is_key AND coalesce(o.running, l.key_running, CASE WHEN o.broken_until IS NOT NULL THEN 1 END) IS NOT NULL THEN
                                    greatest((SELECT least(coalesce(o.running, l.key_running) - count(*), CASE WHEN o.broken_until IS NOT NULL
                                        THEN 1 - count(*) FILTER (WHERE job.claimed_at >= o.broken_until) END) FROM {schema}.job
                                        WHERE (job.concurrency_key, job.status <> 'queued', job.id) >= (c.key, true, 0) AND job.concurrency_key <= c.key
                                        AND job.concurrency_key IS NOT NULL AND (job.status = 'running' OR (job.status = 'queued' AND job.claims > 0))
                                        AND job.task = c.task)
                                        - (SELECT count(*) FROM unnest(all_keys, all_tasks) AS g (key, task) WHERE g.key = c.key AND g.task = c.task), 0)
                            END AS room_of_key,
                            w.burst AS burst_of_key,
                            CASE WHEN c.is_key AND w.count IS NOT NULL THEN
                                CASE WHEN w.owed IS NOT NULL THEN floor(w.burst - least(w.owed, w.burst) + 0.000001)::integer END
                                - (SELECT coalesce(sum(g.units), 0) FROM unnest(of_keys, of_tasks, of_units) AS g (key, task, units)
                                   WHERE g.key = c.key AND g.task = c.task)::integer
                            END AS units_of_key,
                            greatest(s.blocked_until, o.broken_until) AS blocked_until, w.owed AS owed_of_key, l.rate_seconds / l.rate_count AS step,
                            CASE WHEN own.rate_count IS NULL THEN rule.key_rate_seconds / rule.key_rate_count
                                ELSE own.rate_seconds / own.rate_count END AS key_step,
                            w.seconds / w.count AS step_of_key
                        FROM found AS c
                        LEFT JOIN LATERAL (SELECT * FROM {schema}.job_limit AS l
                            WHERE l.owner = 'task' AND l.name = c.task AND c.task = ANY (limited_tasks) OFFSET 0) AS l ON true
                        LEFT JOIN LATERAL (SELECT * FROM {schema}.job_key AS o
                            WHERE o.owner = 'task' AND o.name = c.task AND o.key = c.key AND l.name IS NOT NULL OFFSET 0) AS o ON true
                        LEFT JOIN LATERAL (SELECT * FROM {schema}.limit_state AS s
                            WHERE s.owner = 'task' AND s.name = c.task AND s.key = c.key AND c.key <> '' AND l.name IS NOT NULL OFFSET 0) AS s ON true
                        CROSS JOIN LATERAL (SELECT r.*, {schema}.rate_owed(s.free_at, s.owed_at, s.owed, clock, r.count, r.seconds) AS owed
                            FROM (SELECT coalesce(o.rate_count, l.key_rate_count) AS count,
                            CASE WHEN o.rate_count IS NULL THEN l.key_rate_seconds
                                ELSE o.rate_seconds END AS seconds, coalesce(o.rate_burst, l.key_rate_burst) AS burst) AS r) AS w
                        LEFT JOIN LATERAL (SELECT * FROM {schema}.job_key AS own
                            WHERE own.owner = 'queue' AND own.name = this AND own.key = c.key AND has_rates OFFSET 0) AS own ON true),
                    of_keys_limits AS (
                        SELECT r.*, (key_units[r.place] IS NULL OR sum(r.units) OVER of_place <= key_units[r.place]
                                    OR (taken[r.place] = 0 AND key_units[r.place] >= r.key_burst AND sum(r.units) OVER of_place = r.units))
                                AND (r.room_of_key IS NULL OR row_number() OVER of_both <= r.room_of_key)
                                AND (r.units_of_key IS NULL OR sum(r.units) OVER of_both <= r.units_of_key
                                    OR (r.units_of_key >= r.burst_of_key AND sum(r.units) OVER of_both = r.units)) AS key_has_room,
                            greatest(r.blocked_until, CASE WHEN r.key_step IS NOT NULL
                                THEN clock + greatest(least((key_owed[r.place] + coalesce((SELECT sum(g.units) FROM unnest(of_keys, of_units) AS g (key, units)
                                WHERE g.key = r.key), 0) + coalesce(sum(r.units) OVER of_place, 0) - r.units + least(r.units,
                                r.key_burst) - r.key_burst) * (r.key_step), 1e10), 0) * interval '1 second' END, CASE WHEN r.step_of_key IS NOT NULL
                                THEN clock + greatest(least((r.owed_of_key + coalesce((SELECT sum(g.units)
                                FROM unnest(of_keys, of_tasks, of_units) AS g (key, task, units) WHERE g.key = r.key AND g.task = r.task),
                                0) + coalesce(sum(r.units) OVER of_both, 0) - r.units + least(r.units, r.burst_of_key) - r.burst_of_key) * (r.step_of_key),
                                1e10), 0) * interval '1 second' END) AS key_again_at,
                            r.room_of_key <= 0 AS full
                        FROM said AS r WINDOW of_place AS (PARTITION BY r.place ORDER BY r.number),
                            of_both AS (PARTITION BY r.task, r.place ORDER BY r.number)),
                    of_keys_order AS (
                        SELECT h.*, CASE WHEN h.is_key THEN bool_and(h.key_has_room) OVER (PARTITION BY h.place ORDER BY h.number)
                            ELSE h.key_has_room END AS key_goes
                        FROM of_keys_limits AS h),
                    of_tasks_limits AS (
                        SELECT k.*, greatest(k.key_again_at, CASE WHEN k.step IS NOT NULL
                            THEN clock + greatest(least((task_owed[k.task_place] + coalesce((SELECT sum(g.units)
                            FROM unnest(all_tasks, all_units) AS g (task, units) WHERE g.task = k.task),
                            0) + coalesce(sum(k.units) FILTER (WHERE k.key_goes) OVER of_task, 0) - k.units + least(k.units, k.burst) - k.burst) * (k.step),
                            1e10), 0) * interval '1 second' END) AS task_again_at,
                            k.key_goes AND (k.task_place IS NULL OR (
                                count(*) FILTER (WHERE k.key_goes) OVER of_task <= task_rooms[k.task_place]
                                AND (task_units[k.task_place] IS NULL OR sum(k.units) FILTER (WHERE k.key_goes) OVER of_task <= task_units[k.task_place]
                                    OR (task_units[k.task_place] >= k.burst
                                        AND sum(k.units) FILTER (WHERE k.key_goes) OVER of_task = k.units)))) AS task_has_room
                        FROM of_keys_order AS k WINDOW of_task AS (PARTITION BY k.task ORDER BY k.number)),
                    of_tasks_order AS (
                        SELECT t.*, CASE WHEN t.is_key THEN bool_and(t.task_has_room) OVER (PARTITION BY t.place ORDER BY t.number)
                            ELSE t.task_has_room END AS task_goes
                        FROM of_tasks_limits AS t),
                    of_queue AS (
                        SELECT q.*, greatest(q.task_again_at, CASE WHEN rule.rate_seconds / rule.rate_count IS NOT NULL
                            THEN clock + greatest(least((queue_owed + coalesce((SELECT sum(u) FROM unnest(of_units) AS u),
                            0) + coalesce(sum(q.units) FILTER (WHERE q.task_goes) OVER in_order, 0) - q.units + least(q.units,
                            rule.rate_burst) - rule.rate_burst) * (rule.rate_seconds / rule.rate_count), 1e10), 0) * interval '1 second' END) AS again_at,
                            q.task_goes AND (units_left IS NULL OR sum(q.units) FILTER (WHERE q.task_goes) OVER in_order <= units_left
                                OR (units_left >= rule.rate_burst AND sum(q.units) FILTER (WHERE q.task_goes) OVER in_order = q.units)) AS goes
                        FROM of_tasks_order AS q WINDOW in_order AS (ORDER BY q.number))
                    SELECT array_agg(l.id ORDER BY l.number) FILTER (WHERE l.goes) AS ids, array_agg(l.place ORDER BY l.number) FILTER (WHERE l.goes) AS places,
                        array_agg(l.task ORDER BY l.number) FILTER (WHERE l.goes) AS tasks, array_agg(l.units ORDER BY l.number) FILTER (WHERE l.goes) AS units,
                        array_agg(l.id) FILTER (WHERE NOT l.goes) AS skipped,
                        count(*) FILTER (WHERE NOT l.goes AND l.key = '' AND NOT l.task_goes)::integer AS passed,
                        coalesce(array_agg(DISTINCT l.place) FILTER (WHERE NOT l.goes AND l.key <> ''), '{}') AS closed,
                        coalesce(bool_or(l.full), false) AS full, min(l.again_at) FILTER (WHERE NOT l.goes AND l.again_at > clock) AS again_at,
                        min(l.place) FILTER (WHERE l.task_goes AND NOT l.goes) AS short,
                        coalesce(array_agg(DISTINCT l.task) FILTER (WHERE l.key_goes AND NOT l.task_has_room), '{}') AS short_tasks
                    INTO answer FROM of_queue AS l;
                    -- What follows for the keys and tasks of which a job has to wait.
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
                    SELECT coalesce(array_agg(CASE WHEN w.name = ANY (answer.short_tasks) THEN least(w.unit, 0) ELSE w.unit END ORDER BY w.number), '{}')
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
                    task_rooms := coalesce(task_rooms, '{}'); task_units := coalesce(task_units, '{}');
                END IF;
                -- What the keys, and the next claim, have of it.
                IF units_left IS NOT NULL OR has_rates OR drops OR by_time OR cardinality(task_names) > 0 THEN
                    SELECT of_keys || array_agg(keys[p.place]), of_tasks || array_agg(p.task), of_units || array_agg(p.units)
                    INTO of_keys, of_tasks, of_units FROM unnest(places, tasks, units) AS p (place, task, units);
                    SELECT all_keys || array_agg(keys[p.place]), all_tasks || array_agg(p.task)
                    INTO all_keys, all_tasks FROM unnest(places, tasks) AS p (place, task);
                    all_units := all_units || units;
                END IF;
                -- Where no pass follows, nor a hint of a key, nobody asks for more than the last key.
                IF room > 0 OR short IS NOT NULL OR slow OR has_states THEN
                    FOR n IN 1 .. cardinality(ids) LOOP
                        total := places[n];
                        taken[total] := taken[total] + 1;
                        lows[total] := least(lows[total], ids[n]);
                        asked[total] := asked[total] - 1;
                        key_units[total] := key_units[total] - units[n];
                    END LOOP;
                END IF;
                total := places[cardinality(places)];
                IF room > 0 THEN
                    -- A key that got fewer than it was offered has no more.
                    FOR n IN 1 .. cardinality(keys) LOOP
                        rooms[n] := CASE WHEN asked[n] > 0 AND NOT (resumes OR by_id AND keys[n] <> '') THEN 0 ELSE limits[n] - taken[n] END;
                    END LOOP;
                END IF;
                -- The next claim goes on behind the last key that got a job, or with it while it has turns left.
                stopped := keys[total];
                turns := CASE WHEN by_time THEN 0 ELSE (cardinality(array_positions(places, total)) + CASE WHEN total = 1 THEN had ELSE 0 END)
                    % weights[total] END;
                IF short IS NOT NULL THEN
                    IF short > 1 AND taken[short] = 0 THEN
                        stopped := keys[short - 1]; turns := 0;
                    END IF;
                    EXIT;
                END IF;
            END LOOP;
            -- Where the first of a key's running jobs is, for the next claim.
            IF (slow OR has_states) AND rule.key_running IS NOT NULL THEN
                INSERT INTO {schema}.limit_state AS s (owner, name, key, lowest_id, version)
                SELECT 'queue', this, k.key, k.lowest, rule.version
                FROM unnest(keys, taken, lows, known_lows) AS k (key, taken, lowest, known)
                WHERE k.taken > 0 AND k.key >= chr(2) COLLATE "C" AND (k.lowest < k.known OR (slow AND random() < 0.2))
                ORDER BY k.key
                ON CONFLICT (owner, name, key) DO UPDATE SET lowest_id = excluded.lowest_id, version = excluded.version;
            END IF;
            EXIT WHEN short IS NOT NULL;
        END LOOP;
        IF short IS NULL AND room > 0 AND NOT circled AND visited IS NOT NULL THEN
            stopped := visited; turns := 0;
        END IF;
        -- 5. What is written, and told.
        -- Jobs that may not wait, in these keys and in the group of each task.
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
        -- What rates were used, and the lowest id that may run.
        IF cardinality(picked) > 0 THEN
            IF rule.rate_count IS NOT NULL OR rule.running IS NOT NULL THEN
                lowest := least(lowest, (SELECT min(p) FROM unnest(picked) AS p));
                queue_owed := queue_owed + (SELECT sum(u) FROM unnest(of_units) AS u);
                IF rule.rate_count IS NOT NULL OR state.lowest_id IS NULL OR lowest < state.lowest_id OR lowest > state.lowest_id + 10000 THEN
                    INSERT INTO {schema}.limit_state AS s (owner, name, key, free_at, owed_at, owed, lowest_id, version)
                    VALUES ('queue', this, '', CASE WHEN queue_owed IS NOT NULL
                        THEN clock + least(queue_owed * (rule.rate_seconds / rule.rate_count), 1e12) * interval '1 second' END, clock, queue_owed,
                        CASE WHEN rule.running IS NOT NULL THEN lowest END, rule.version)
                    ON CONFLICT (owner, name, key) DO UPDATE
                        SET lowest_id = excluded.lowest_id, version = excluded.version, free_at = excluded.free_at, owed_at = excluded.owed_at,
                        owed = excluded.owed;
                END IF;
            END IF;
        END IF;
        IF further AND picked <> '{}' THEN
            PERFORM {schema}.further_used(picked, clock);
            earlier := earlier || picked;
        END IF;
        IF cardinality(of_units) > 0 THEN
            INSERT INTO {schema}.limit_state AS l (owner, name, key, free_at, owed_at, owed)
            SELECT r.owner, r.name, r.key, CASE WHEN w.owed IS NOT NULL
                THEN clock + least(w.owed * (r.seconds / r.count), 1e12) * interval '1 second' END, clock, w.owed FROM (
                SELECT 'task' AS owner, l.name, '' AS key, g.units, l.rate_count AS count, l.rate_seconds AS seconds
                FROM (SELECT g.task, sum(g.units) AS units FROM unnest(of_tasks, of_units) AS g (task, units) GROUP BY g.task) AS g
                JOIN {schema}.job_limit AS l ON l.owner = 'task' AND l.name = g.task AND g.task = ANY (task_names)
                UNION ALL
                SELECT 'queue', this, g.key, g.units, coalesce(k.rate_count, rule.key_rate_count),
                    CASE WHEN k.rate_count IS NULL THEN rule.key_rate_seconds ELSE k.rate_seconds END
                FROM (SELECT g.key, sum(g.units) AS units FROM unnest(of_keys, of_units) AS g (key, units)
                    WHERE g.key >= chr(2) COLLATE "C" GROUP BY g.key) AS g
                LEFT JOIN LATERAL (SELECT * FROM {schema}.job_key AS k WHERE k.owner = 'queue' AND k.name = this AND k.key = g.key OFFSET 0) AS k ON true
                UNION ALL
                SELECT 'task', g.task, g.key, g.units, coalesce(k.rate_count, l.key_rate_count),
                    CASE WHEN k.rate_count IS NULL THEN l.key_rate_seconds ELSE k.rate_seconds END
                FROM (SELECT g.key, g.task, sum(g.units) AS units FROM unnest(of_keys, of_tasks, of_units) AS g (key, task, units)
                      WHERE g.key >= chr(2) COLLATE "C" AND g.task = ANY (task_names) GROUP BY g.key, g.task) AS g
                JOIN {schema}.job_limit AS l ON l.owner = 'task' AND l.name = g.task
                LEFT JOIN LATERAL (SELECT * FROM {schema}.job_key AS k WHERE k.owner = 'task' AND k.name = g.task AND k.key = g.key OFFSET 0) AS k ON true) AS r
            LEFT JOIN LATERAL (SELECT * FROM {schema}.limit_state AS s
                WHERE s.owner = r.owner AND s.name = r.name AND s.key = r.key OFFSET 0) AS s ON true
            CROSS JOIN LATERAL (SELECT {schema}.rate_owed(s.free_at, s.owed_at, s.owed, clock, r.count, r.seconds) + r.units AS owed) AS w
            WHERE r.count IS NOT NULL
            ORDER BY 1, 2, 3
            ON CONFLICT (owner, name, key) DO UPDATE SET free_at = excluded.free_at, owed_at = excluded.owed_at, owed = excluded.owed;
        END IF;
        IF rule.paused_at IS NULL THEN
            UPDATE {schema}.job SET ready_at = job.run_at WHERE job.id = ANY (ARRAY (
                SELECT job.id FROM {schema}.job WHERE job.queue = this AND job.concurrency_key IS NOT NULL AND job.status = 'queued'
                    AND job.run_at > GREATEST(job.created_at, job.ready_at) AND job.run_at <= clock
                ORDER BY job.run_at, job.id LIMIT 2000 FOR NO KEY UPDATE SKIP LOCKED));
            again := again OR FOUND;
            SELECT job.run_at INTO next_at FROM {schema}.job WHERE job.queue = this AND job.concurrency_key IS NOT NULL AND job.status = 'queued'
                AND job.run_at > GREATEST(job.created_at, job.ready_at) AND job.run_at > clock
            ORDER BY job.run_at, job.id LIMIT 1;
        END IF;
        WHILE away <> '{}' LOOP
            UPDATE {schema}.job SET concurrency_key = chr(1) || job.task, ready_at = job.run_at WHERE job.id = ANY (ARRAY (
                SELECT job.id FROM {schema}.job
                WHERE job.id = ANY (ARRAY (SELECT f.id FROM (SELECT front.* FROM generate_series(9, 0, -1) AS p (level) CROSS JOIN LATERAL (
                        SELECT job.id, job.task FROM {schema}.job WHERE job.queue = this AND job.priority = p.level AND job.status = 'queued'
                            AND job.concurrency_key IS NULL AND job.run_at <= clock AND job.id <> ALL (picked) AND job.id <> ALL (but_ids)
                        ORDER BY job.run_at, job.id LIMIT 2000) AS front LIMIT 2000) AS f
                        WHERE f.task = ANY (away) AND (SELECT f.task FROM (SELECT front.* FROM generate_series(9, 0, -1) AS p (level) CROSS JOIN LATERAL (
                            SELECT job.id, job.task FROM {schema}.job WHERE job.queue = this AND job.priority = p.level AND job.status = 'queued'
                                AND job.concurrency_key IS NULL AND job.run_at <= clock AND job.id <> ALL (picked) AND job.id <> ALL (but_ids)
                            ORDER BY job.run_at, job.id LIMIT 1) AS front LIMIT 1) AS f) = ANY (away)))
                    AND job.status LIKE 'queued' AND job.concurrency_key IS NULL AND job.run_at <= clock FOR NO KEY UPDATE SKIP LOCKED));
            again := again OR FOUND;
            -- Where nothing could be started, others may be too far behind to be seen.
            EXIT WHEN NOT FOUND OR picked <> '{}' OR clock_timestamp() > clock + interval '0.5 seconds';
        END LOOP;
        RETURN QUERY SELECT p, clock, NULL::text FROM unnest(picked) AS p;
        permit := permit AND cardinality(picked) < wanted[place];
        any_permit := any_permit OR permit;
        IF permit THEN
            -- A permit that became free after the count, and before this worker's gate is open, is told to nobody: look again then.
            cell := coalesce(pg_sequence_last_value(({name} || '.gate_limit')::regclass), 0);
            again := again OR cell / 10000000 <= extract(epoch FROM clock) OR cell % 10000000 NOT IN (opener, 0);
        END IF;
        RETURN QUERY SELECT NULL::bigint, clock,
            jsonb_build_object('queue', this, 'after', stopped, 'turns', turns, 'again', again, 'unseen', visits >= 1000 AND NOT circled,
            'permit', permit, 'keyed', keyed, 'picked', cardinality(picked), 'rate_in', CASE WHEN rate_at > clock THEN date_part('epoch', rate_at - clock) END,
            'due_in', date_part('epoch', next_at - clock), 'started', CASE WHEN by_time THEN coalesce((
                SELECT jsonb_agg(jsonb_build_array(p.id, p.key, coalesce(k.weight, 1))) FROM unnest(picked, of_keys) AS p (id, key)
                LEFT JOIN {schema}.job_key AS k ON k.owner = 'queue' AND k.name = this AND k.key = p.key), '[]') END)::text;
    END LOOP;
    -- A worker that waits for a permit of another's has opened the gate, and is told of permits that this one has freed.
    IF freed THEN
        PERFORM {schema}.permits_freed(opener);
    END IF;
    IF any_permit THEN
        cell := coalesce(pg_sequence_last_value(({name} || '.gate_limit')::regclass), 0);
        seconds := extract(epoch FROM clock_timestamp())::bigint;
        IF cell / 10000000 < seconds + 5 THEN
            PERFORM setval(({name} || '.gate_limit')::regclass, (seconds + 10) * 10000000 + opener);
        ELSIF cell % 10000000 NOT IN (opener, 0) THEN
            PERFORM setval(({name} || '.gate_limit')::regclass, cell / 10000000 * 10000000);
        END IF;
    END IF;
END
$body$;
