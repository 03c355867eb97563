-- The function that moves workflows on: it reads what has happened to their members, and releases or cancels those that waited.
--
-- It holds the row of each workflow that it works on, as nothing else does but what an operator does to a workflow; so each workflow is moved
-- by one at a time. Every statement after that lock has a snapshot that is younger than it, and sees all moves of those that had it before. A
-- member's end and its event commit together, and an event is deleted only under the lock: so whichever parent ends last, its event is read
-- after its end, and the child then waits for that parent, or for one before it. Nothing here waits for a lock.

-- What was to be enqueued when that happened. Only what is to be told of an end may be enqueued again, after a retry.
CREATE FUNCTION {schema}.fire_callbacks(workflows bigint[], happened text) RETURNS void LANGUAGE plpgsql STRICT
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $body$
BEGIN
    WITH fired AS (
        UPDATE {schema}.workflow_callback AS c SET fired_at = clock_timestamp()
        WHERE c.workflow_id = ANY ($1) AND c.event = $2 AND (c.fired_at IS NULL OR $2 = 'end')
        RETURNING c.*)
    INSERT INTO {schema}.job (task, args, queue, priority, max_attempts, meta, run_at, concurrency_key, units, subject_type, subject_id,
        extras)
    SELECT f.task, f.args, f.queue, f.priority, f.max_attempts, f.meta || jsonb_build_object('workflow_id', f.workflow_id),
        now() + coalesce(f.delay, 0) * interval '1 second', f.concurrency_key, f.units, f.subject_type, f.subject_id,
        f.extras
    FROM fired AS f ORDER BY f.workflow_id, f.number;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.fire_callbacks(bigint[], text) FROM PUBLIC;

-- The plan is made once, without the arrays' sizes: so by index, whatever the tables have been. A status is a literal, as the conditions of
-- the partial indexes need it.
CREATE FUNCTION {schema}.advance(
    workflows bigint[], after_ids bigint[], most integer,
    OUT again_ids bigint[], OUT busy_ids bigint[], OUT read_ids bigint[], OUT last_ids bigint[], OUT queues text[], OUT eaten integer
) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
DECLARE
    mine bigint[]; paused bigint[]; points bigint[]; seen integer; fast bigint[]; stopping bigint[]; joining boolean; stuck boolean := false;
    flows bigint[]; ended bigint[]; broken bigint[]; ended_flows bigint[]; broken_flows bigint[]; looks bigint[]; look_flows bigint[];
    hits bigint[]; extra bigint[]; anew bigint[]; hit integer := 0; done integer; page bigint[]; flow bigint;
    moved bigint[]; targets bigint[]; refused bigint[]; causes bigint[]; counted bigint[]; missings integer[]; spares integer[];
    gates bigint[]; failed bigint[]; ending bigint[]; succeeded bigint[]; over bigint[]; closing bigint[];
BEGIN
    again_ids := '{}'; eaten := 0;
    -- 1. The workflows that no other moves just now. What happens in a paused one is read when it goes on.
    SELECT array_agg(l.id) FILTER (WHERE l.moves), array_agg(l.point) FILTER (WHERE l.moves), count(*),
        array_agg(l.id) FILTER (WHERE l.fail_fast AND l.cancelled_at IS NULL),
            array_agg(l.id) FILTER (WHERE l.cancelled_at IS NOT NULL AND l.finished_at IS NULL),
        array_agg(l.id) FILTER (WHERE NOT l.moves)
    INTO mine, points, seen, fast, stopping, paused FROM (
        SELECT w.id, g.point, w.fail_fast, w.cancelled_at, w.finished_at, w.paused_at IS NULL OR w.cancelled_at IS NOT NULL AS moves
        FROM unnest(workflows, after_ids) AS g (id, point) JOIN {schema}.workflow AS w ON w.id = g.id
        FOR NO KEY UPDATE OF w SKIP LOCKED) AS l;
    IF seen < cardinality(workflows) THEN
        busy_ids := ARRAY (SELECT w.id FROM {schema}.workflow AS w WHERE w.id = ANY (workflows) AND w.id <> ALL (coalesce(mine, '{}')) AND w.paused_at IS NULL);
        -- A workflow that was deleted by hand has no row to lock: cancel its waiting members and delete its events here.
        PERFORM {schema}.cancel_workflows(ARRAY (
            SELECT g.id FROM unnest(workflows) AS g (id) WHERE NOT EXISTS (SELECT FROM {schema}.workflow AS w WHERE w.id = g.id)), 'its workflow was deleted');
    END IF;
    IF paused IS NOT NULL THEN
        -- A member that was running at the pause did not see it, and has added others since.
        UPDATE {schema}.job SET status = 'blocked', blocked_by = - job.workflow_id
        WHERE job.status = 'queued' AND job.id = ANY (ARRAY (
            SELECT q.id FROM unnest(paused) AS p (id) JOIN {schema}.job AS q ON q.workflow_id = p.id AND q.status = 'queued'
            WHERE EXISTS (SELECT FROM {schema}.workflow_event AS event WHERE event.workflow_id = p.id AND event.job_id = - p.id)
            FOR NO KEY UPDATE OF q SKIP LOCKED));
    END IF;
    IF mine IS NULL THEN
        RETURN;
    END IF;
    -- 2. What has happened, of each workflow in the order in which they are given: one with many events may leave no room for others.
    WITH taken AS MATERIALIZED (
        SELECT e.place FROM unnest(mine, points) AS g (id, point) CROSS JOIN LATERAL (
            SELECT event.ctid AS place FROM {schema}.workflow_event AS event
            WHERE event.workflow_id = g.id AND event.id > g.point ORDER BY event.workflow_id, event.id LIMIT most) AS e
        LIMIT most),
    gone AS (
        DELETE FROM {schema}.workflow_event AS event WHERE event.ctid = ANY (ARRAY (SELECT taken.place FROM taken))
        RETURNING event.workflow_id, event.id, event.job_id, event.completed)
    SELECT count(*), array_agg(gone.workflow_id), array_agg(gone.id),
        array_agg(gone.job_id) FILTER (WHERE gone.completed IS NOT NULL), array_agg(gone.workflow_id) FILTER (WHERE gone.completed IS NOT NULL),
        array_agg(gone.job_id) FILTER (WHERE NOT gone.completed), array_agg(gone.workflow_id) FILTER (WHERE NOT gone.completed),
        array_agg(gone.job_id) FILTER (WHERE gone.completed IS NULL), array_agg(gone.workflow_id) FILTER (WHERE gone.completed IS NULL)
    INTO eaten, flows, last_ids, ended, ended_flows, broken, broken_flows, looks, look_flows FROM gone;
    SELECT array_agg(l.flow), array_agg(l.last) INTO read_ids, last_ids
    FROM (SELECT e.flow, max(e.id) AS last FROM unnest(flows, last_ids) AS e (flow, id) GROUP BY e.flow) AS l;
    IF eaten >= most THEN
        again_ids := mine;
    END IF;
    joining := EXISTS (SELECT FROM {schema}.workflow_join AS j WHERE j.workflow_id = ANY (mine));
    -- 3. Who is to be looked at: those that wait for one that has ended, or for a look;
    SELECT array_agg(w.id) INTO hits FROM (
        SELECT job.id FROM {schema}.job
        WHERE job.status = 'blocked' AND job.blocked_by IS NOT NULL AND job.blocked_by = ANY (ended || looks) LIMIT most) AS w;
    hit := cardinality(hits);
    --    those that depend on one that did not complete, whatever they wait for;
    IF broken IS NOT NULL THEN
        SELECT array_agg(c.child_id) INTO extra FROM (
            SELECT d.child_id FROM unnest(broken) AS b (id) JOIN {schema}.workflow_dependency AS d ON d.parent_id = b.id AND d.policy = 'cancel'
            JOIN {schema}.job ON job.id = d.child_id AND job.status = 'blocked' AND job.blocked_by IS NOT NULL
            LIMIT most) AS c;
        hit := greatest(hit, cardinality(extra));
    END IF;
    IF looks IS NOT NULL THEN
        stuck := {schema}.take_back_children(looks);
        IF stuck THEN
            INSERT INTO {schema}.workflow_event (workflow_id, job_id) SELECT DISTINCT e.flow, e.id FROM unnest(look_flows, looks) AS e (flow, id)
                WHERE e.id > 0;
        END IF;
        --    those that were added, or have come back, and the children of these: also such as were past them;
        anew := ARRAY (
            SELECT c.id FROM unnest(looks) AS b (id) JOIN {schema}.workflow_dependency AS d ON d.parent_id = b.id
            CROSS JOIN LATERAL (
                SELECT job.id FROM {schema}.job
                WHERE job.id = d.child_id AND job.status = 'blocked' AND (job.blocked_by > b.id OR job.blocked_by = 0) OFFSET 0) AS c
            UNION ALL SELECT job.id FROM {schema}.job WHERE job.id = ANY (looks) AND job.status = 'blocked');
        extra := extra || anew;
        UPDATE {schema}.workflow_join AS j SET missing = 0, spare = 0 WHERE joining AND j.workflow_id = ANY (look_flows);
    END IF;
    --    and those that need some of their parents, where these may suffice now, or cannot any more.
    IF joining AND ended IS NOT NULL THEN
        WITH counts AS MATERIALIZED (
            SELECT d.child_id, count(*) FILTER (WHERE e.id <> ALL (coalesce(broken, '{}'))) AS completed, count(*) FILTER (WHERE e.id = ANY (broken)) AS failed
            FROM unnest(ended) AS e (id) JOIN {schema}.workflow_dependency AS d ON d.parent_id = e.id AND d.policy = 'count'
            GROUP BY d.child_id),
        kept AS (
            UPDATE {schema}.workflow_join AS j SET missing = j.missing - c.completed, spare = j.spare - c.failed
            FROM counts AS c WHERE j.job_id = c.child_id RETURNING j.job_id, j.missing, j.spare)
        SELECT extra || array_agg(kept.job_id) INTO extra FROM kept WHERE kept.missing <= 0 OR kept.spare < 0;
    END IF;
    IF cardinality(extra) > 0 THEN
        hits := ARRAY (SELECT DISTINCT h.id FROM unnest(hits || extra) AS h (id) JOIN {schema}.job ON job.id = h.id AND job.status = 'blocked');
    END IF;
    -- 4. What becomes of each: it waits for its first parent, from the one on that it waited for, that has not ended; it is cancelled
    -- because of one that did not complete; or it is released. The parents before had completed, or need not. Of one that comes
    -- back, the children are looked at.
    IF cardinality(hits) > 0 THEN
        IF broken IS NULL AND looks IS NULL AND NOT joining THEN
            -- As below, for nearly all: a parent has completed.
            WITH candidate AS MATERIALIZED (
                SELECT job.id, job.blocked_by, job.blocked_by AS point FROM {schema}.job
                WHERE job.id = ANY (hits) AND job.status = 'blocked' AND job.blocked_by IS NOT NULL
                FOR NO KEY UPDATE SKIP LOCKED),
            verdict AS MATERIALIZED (
                SELECT c.id, c.blocked_by, next.parent_id, next.cause, next.parent_id IS DISTINCT FROM c.blocked_by AND next.cause IS NULL AS moves
                FROM candidate AS c
                LEFT JOIN LATERAL (
                    SELECT CASE WHEN p.status IN ('queued', 'blocked', 'running') THEN d.parent_id END AS parent_id,
                        CASE WHEN p.status IN ('queued', 'blocked', 'running') THEN NULL ELSE CASE WHEN p.status = 'cancelled'
                            THEN coalesce((p.errors -> -1 ->> 'failed_id')::bigint, d.parent_id) ELSE d.parent_id END END AS cause
                    FROM {schema}.workflow_dependency AS d LEFT JOIN {schema}.job AS p ON p.id = d.parent_id
                    WHERE d.child_id = c.id AND d.parent_id >= c.point AND d.policy <> 'count'
                        AND (p.status IN ('queued', 'blocked', 'running') OR d.policy = 'cancel' AND (p.id IS NULL OR p.status IN ('failed', 'cancelled')))
                    ORDER BY d.child_id, d.parent_id LIMIT 1) AS next ON true)
            SELECT count(*), array_agg(v.id) FILTER (WHERE v.moves), array_agg(v.parent_id) FILTER (WHERE v.moves),
                array_agg(v.id) FILTER (WHERE v.cause IS NOT NULL), array_agg(v.cause) FILTER (WHERE v.cause IS NOT NULL)
            INTO done, moved, targets, refused, causes FROM verdict AS v;
        ELSE
            -- Parents of one that needs some of them may each add a node before it, while the others still run; and what was given its
            -- id first may commit last. Such a node is younger than the child, so the search begins there at the latest.
            WITH candidate AS MATERIALIZED (
                SELECT job.id, job.blocked_by, CASE WHEN job.id = ANY (anew) THEN 0
                    WHEN joining AND job.blocked_by > job.id AND EXISTS (SELECT FROM {schema}.workflow_join AS j WHERE j.job_id = job.id) THEN job.id
                    ELSE greatest(job.blocked_by, 0) END AS point
                FROM {schema}.job WHERE job.id = ANY (hits) AND job.status = 'blocked' AND job.blocked_by IS NOT NULL
                FOR NO KEY UPDATE SKIP LOCKED),
            verdict AS MATERIALIZED (
                SELECT c.id, c.blocked_by, coalesce(early.cause, next.cause, part.cause) AS cause, next.parent_id,
                    early.cause IS NULL AND next.parent_id IS NULL AND next.cause IS NULL AND (part.needed IS NULL OR part.completed >= part.needed) AS free,
                    part.needed - part.completed AS missing, part.completed + part.live - part.needed AS spare
                FROM candidate AS c
                LEFT JOIN LATERAL (
                    SELECT CASE WHEN p.status = 'cancelled' THEN coalesce((p.errors -> -1 ->> 'failed_id')::bigint, d.parent_id) ELSE d.parent_id END AS cause
                        FROM {schema}.workflow_dependency AS d JOIN {schema}.job AS p ON p.id = d.parent_id
                    WHERE broken IS NOT NULL AND d.child_id = c.id AND d.parent_id = ANY (broken) AND d.policy = 'cancel'
                        AND p.status IN ('failed', 'cancelled')
                    UNION ALL
                    SELECT CASE WHEN p.status = 'cancelled' THEN coalesce((p.errors -> -1 ->> 'failed_id')::bigint, d.parent_id) ELSE d.parent_id END AS cause
                        FROM {schema}.workflow_dependency AS d JOIN {schema}.job AS p ON p.id = d.parent_id
                    WHERE c.blocked_by < 0 AND d.child_id = c.id AND d.policy = 'cancel' AND p.status IN ('failed', 'cancelled')
                    LIMIT 1) AS early ON true
                LEFT JOIN LATERAL (
                    SELECT CASE WHEN p.status IN ('queued', 'blocked', 'running') THEN d.parent_id END AS parent_id,
                        CASE WHEN p.status IN ('queued', 'blocked', 'running') THEN NULL ELSE CASE WHEN p.status = 'cancelled'
                            THEN coalesce((p.errors -> -1 ->> 'failed_id')::bigint, d.parent_id) ELSE d.parent_id END END AS cause
                    FROM {schema}.workflow_dependency AS d LEFT JOIN {schema}.job AS p ON p.id = d.parent_id
                    WHERE d.child_id = c.id AND d.parent_id >= c.point AND d.policy <> 'count'
                        AND (p.status IN ('queued', 'blocked', 'running') OR d.policy = 'cancel' AND (p.id IS NULL OR p.status IN ('failed', 'cancelled')))
                    ORDER BY d.child_id, d.parent_id LIMIT 1) AS next ON true
                LEFT JOIN LATERAL (
                    SELECT j.needed, count(*) FILTER (WHERE p.status = 'completed') AS completed,
                        count(*) FILTER (WHERE p.status IN ('queued', 'blocked', 'running')) AS live,
                        CASE WHEN count(*) FILTER (WHERE p.status = 'completed' OR p.status IN ('queued', 'blocked', 'running')) < j.needed
                            THEN coalesce(min(CASE WHEN p.status = 'cancelled' THEN coalesce((p.errors -> -1 ->> 'failed_id')::bigint, d.parent_id)
                                ELSE d.parent_id END) FILTER (WHERE p.status IN ('failed', 'cancelled')), min(d.parent_id)) END AS cause
                    FROM {schema}.workflow_join AS j JOIN {schema}.workflow_dependency AS d ON d.child_id = j.job_id AND d.policy = 'count'
                    LEFT JOIN {schema}.job AS p ON p.id = d.parent_id
                    WHERE j.job_id = c.id AND next.parent_id IS NULL AND next.cause IS NULL GROUP BY j.needed) AS part ON joining),
            ruled AS MATERIALIZED (
                SELECT v.*, v.cause IS NULL AND (v.free OR v.blocked_by IS DISTINCT FROM coalesce(v.parent_id, 0)) AS moves,
                    v.cause IS NULL AND NOT v.free AND v.parent_id IS NULL AS counts
                FROM verdict AS v)
            SELECT count(*), array_agg(v.id) FILTER (WHERE v.moves),
                array_agg(CASE WHEN v.free THEN NULL ELSE coalesce(v.parent_id, 0) END) FILTER (WHERE v.moves),
                array_agg(v.id) FILTER (WHERE v.cause IS NOT NULL), array_agg(v.cause) FILTER (WHERE v.cause IS NOT NULL),
                array_agg(v.id) FILTER (WHERE v.counts), array_agg(v.missing) FILTER (WHERE v.counts), array_agg(v.spare) FILTER (WHERE v.counts)
            INTO done, moved, targets, refused, causes, counted, missings, spares FROM ruled AS v;
        END IF;
        IF moved IS NOT NULL THEN
            WITH moved_on AS (
                UPDATE {schema}.job SET blocked_by = m.target,
                    status = CASE WHEN m.target IS NOT NULL THEN 'blocked' WHEN job.task = '(gate)' THEN 'completed' ELSE 'queued' END,
                    run_at = CASE WHEN m.target IS NULL THEN greatest(job.run_at, now()) ELSE job.run_at END,
                    finished_at = CASE WHEN m.target IS NULL AND job.task = '(gate)' THEN clock_timestamp() END
                FROM unnest(moved, targets) AS m (id, target) WHERE job.id = m.id AND job.status = 'blocked'
                RETURNING job.id, job.workflow_id, job.status, job.queue, job.run_at),
            passed AS (
                INSERT INTO {schema}.workflow_event (workflow_id, job_id, completed)
                SELECT o.workflow_id, o.id, true FROM moved_on AS o WHERE o.status = 'completed')
            SELECT array_agg(DISTINCT o.queue) FILTER (WHERE o.status = 'queued' AND o.run_at <= now()),
                again_ids || array_agg(o.workflow_id) FILTER (WHERE o.status = 'completed'), array_agg(o.id) FILTER (WHERE o.status = 'completed')
            INTO queues, again_ids, gates FROM moved_on AS o;
            IF gates IS NOT NULL AND {schema}.any_awaited() THEN
                PERFORM {schema}.tell_ended(gates);
            END IF;
            PERFORM {schema}.wake_queues(queues);
        END IF;
        IF counted IS NOT NULL THEN
            UPDATE {schema}.workflow_join AS j SET missing = m.missing, spare = m.spare
            FROM unnest(counted, missings, spares) AS m (id, missing, spare) WHERE j.job_id = m.id;
        END IF;
        IF refused IS NOT NULL THEN
            -- With all that are below them: a long chain would otherwise take a round for each.
            WITH RECURSIVE below (id, cause) AS (
                SELECT r.id, r.cause FROM unnest(refused, causes) AS r (id, cause)
                UNION SELECT d.child_id, b.cause FROM below AS b CROSS JOIN LATERAL (
                    SELECT d.child_id FROM {schema}.workflow_dependency AS d WHERE d.parent_id = b.id AND d.policy = 'cancel' OFFSET 0) AS d
                CROSS JOIN LATERAL (
                    SELECT FROM {schema}.job WHERE job.id = d.child_id AND job.status = 'blocked' AND job.blocked_by IS NOT NULL OFFSET 0) AS child)
            SELECT array_agg(f.id), array_agg(f.cause) INTO refused, causes
            FROM (SELECT l.id, min(l.cause) AS cause
                FROM (SELECT b.id, b.cause FROM below AS b LIMIT greatest(most, cardinality(refused))) AS l GROUP BY l.id) AS f;
            PERFORM {schema}.cancel_members(refused, causes, 'ParentNotCompleted', 'it depends on job %s, which did not complete');
            again_ids := again_ids || flows;
        END IF;
        -- There was more than a page, or one was locked by another: what was read is kept for those.
        stuck := stuck OR done < cardinality(hits);
        IF hit >= most OR stuck THEN
            INSERT INTO {schema}.workflow_event (workflow_id, job_id, completed)
            SELECT DISTINCT e.flow, e.id, e.id <> ALL (coalesce(broken, '{}')) FROM unnest(ended_flows, ended) AS e (flow, id)
            WHERE (SELECT true FROM {schema}.job WHERE job.status = 'blocked' AND job.blocked_by IS NOT NULL AND job.blocked_by = e.id LIMIT 1)
                    AND (SELECT p.status NOT IN ('queued', 'blocked', 'running') FROM {schema}.job AS p WHERE p.id = e.id) IS NOT FALSE
                OR e.id = ANY (broken) AND (SELECT p.status IN ('failed', 'cancelled') FROM {schema}.job AS p WHERE p.id = e.id) AND (
                    SELECT true FROM {schema}.workflow_dependency AS d CROSS JOIN LATERAL (
                        SELECT FROM {schema}.job WHERE job.id = d.child_id AND job.status = 'blocked' AND job.blocked_by IS NOT NULL OFFSET 0) AS child
                    WHERE d.parent_id = e.id AND d.policy = 'cancel' LIMIT 1)
                OR joining AND stuck AND (
                    SELECT true FROM {schema}.workflow_dependency AS d CROSS JOIN LATERAL (
                        SELECT FROM {schema}.job WHERE job.id = d.child_id AND job.status = 'blocked' OFFSET 0) AS child
                    WHERE d.parent_id = e.id AND d.policy = 'count' LIMIT 1);
            INSERT INTO {schema}.workflow_event (workflow_id, job_id)
            SELECT DISTINCT e.flow, e.id FROM unnest(look_flows, looks) AS e (flow, id)
            WHERE stuck AND e.id > 0
                OR e.id < 0 AND (SELECT true FROM {schema}.job WHERE job.status = 'blocked' AND job.blocked_by IS NOT NULL AND job.blocked_by = e.id LIMIT 1);
            again_ids := again_ids || flows;
        END IF;
    END IF;
    -- 5. The workflows themselves. One that was looked at may have come back, or have new members.
    IF looks IS NOT NULL THEN
        UPDATE {schema}.workflow AS w SET watched_id = 9223372036854775807, is_broken = true, finished_at = NULL, purge_at = NULL, status = 'running'
        WHERE w.id = ANY (look_flows) AND (w.finished_at IS NULL
            OR EXISTS (SELECT FROM unnest(look_flows, looks) AS e (flow, id) WHERE e.flow = w.id AND e.id > 0)
            OR EXISTS (SELECT FROM {schema}.job WHERE job.workflow_id = w.id AND job.status IN ('queued', 'blocked', 'running')));
    END IF;
    IF broken IS NOT NULL THEN
        UPDATE {schema}.workflow AS w SET is_broken = true WHERE w.id = ANY (broken_flows) AND NOT w.is_broken;
        SELECT array_agg(DISTINCT job.workflow_id) INTO failed FROM {schema}.job WHERE job.id = ANY (broken) AND job.status = 'failed';
        PERFORM {schema}.fire_callbacks(failed, 'failure');
        IF failed && fast THEN
            UPDATE {schema}.workflow AS w SET cancelled_at = clock_timestamp(), reason = format('job %s failed, and the workflow is to fail fast', (
                SELECT min(job.id) FROM {schema}.job WHERE job.id = ANY (broken) AND job.workflow_id = w.id AND job.status = 'failed'))
            WHERE w.id = ANY (fast) AND w.id = ANY (failed) AND w.finished_at IS NULL;
            look_flows := look_flows || failed;
            stopping := stopping || failed;
        END IF;
    END IF;
    IF stopping && look_flows THEN
        FOR flow IN SELECT w.id FROM {schema}.workflow AS w WHERE w.id = ANY (stopping) AND w.id = ANY (look_flows) AND w.cancelled_at IS NOT NULL LOOP
            page := ARRAY (
                SELECT job.id FROM {schema}.job WHERE job.workflow_id = flow AND job.status IN ('queued', 'blocked')
                ORDER BY job.workflow_id DESC, job.id DESC LIMIT most);
            IF cardinality(page) > 0 THEN
                done := coalesce(cardinality({schema}.cancel_members(page, NULL, 'Cancelled', (SELECT w.reason FROM {schema}.workflow AS w WHERE w.id = flow))),
                    0);
                stuck := stuck OR done < cardinality(page);
                again_ids := again_ids || flow;
                IF cardinality(page) >= most OR done < cardinality(page) THEN
                    INSERT INTO {schema}.workflow_event (workflow_id, job_id) VALUES (flow, - flow);
                END IF;
            END IF;
        END LOOP;
        UPDATE {schema}.job SET cancel_requested_at = {schema}.tell_workers(job.tableoid)
        WHERE job.status = 'running' AND job.cancel_requested_at IS NULL AND job.id = ANY (ARRAY (
            SELECT r.id FROM {schema}.job AS r JOIN {schema}.workflow AS w ON w.id = r.workflow_id AND w.cancelled_at IS NOT NULL
            WHERE r.status = 'running' AND r.workflow_id = ANY (stopping) AND r.workflow_id = ANY (look_flows)
            FOR NO KEY UPDATE OF r SKIP LOCKED));
    END IF;
    IF stuck THEN
        busy_ids := busy_ids || flows;
    END IF;
    -- Where the member that was watched has ended, the next one below it is watched, or all have ended.
    WITH due AS MATERIALIZED (
        SELECT w.id, (
            SELECT job.id FROM {schema}.job WHERE job.workflow_id = w.id AND job.id <= w.watched_id AND job.status IN ('queued', 'blocked', 'running')
            ORDER BY job.workflow_id DESC, job.id DESC LIMIT 1) AS live
        FROM {schema}.workflow AS w
        WHERE w.id = ANY (mine) AND w.finished_at IS NULL
            AND NOT EXISTS (SELECT FROM {schema}.job WHERE job.id = w.watched_id AND job.status IN ('queued', 'blocked', 'running'))),
    watched AS (
        UPDATE {schema}.workflow AS w SET watched_id = due.live FROM due WHERE w.id = due.id AND due.live IS NOT NULL)
    SELECT array_agg(due.id) FILTER (WHERE due.live IS NULL) INTO over FROM due;
    IF over IS NULL THEN
        RETURN;
    END IF;
    -- What adds members from outside holds FOR KEY SHARE until its transaction ends, and the workflow ends after it. The statement after
    -- this lock sees what was added before; and what is not read yet may be of a member that did not complete.
    closing := ARRAY (SELECT w.id FROM {schema}.workflow AS w WHERE w.id = ANY (over) FOR UPDATE SKIP LOCKED);
    busy_ids := busy_ids || ARRAY (SELECT o.id FROM unnest(over) AS o (id) WHERE o.id <> ALL (closing));
    WITH changed AS (
        UPDATE {schema}.workflow AS w
        SET finished_at = clock_timestamp(),
            status = CASE WHEN w.cancelled_at >= w.deadline_at THEN 'failed'
                WHEN NOT w.is_broken THEN 'completed'
                WHEN EXISTS (SELECT FROM {schema}.job WHERE job.workflow_id = w.id AND job.status = 'failed') THEN 'failed'
                WHEN EXISTS (SELECT FROM {schema}.job WHERE job.workflow_id = w.id AND job.status = 'cancelled') THEN 'cancelled'
                ELSE 'completed' END
        WHERE w.id = ANY (closing) AND w.finished_at IS NULL
            AND NOT EXISTS (SELECT FROM {schema}.workflow_event AS event WHERE event.workflow_id = w.id)
        RETURNING w.id, w.status)
    SELECT array_agg(c.id), array_agg(c.id) FILTER (WHERE c.status = 'completed'), array_agg(c.id) FILTER (WHERE c.status = 'failed')
    INTO ending, succeeded, failed FROM changed AS c;
    IF ending IS NOT NULL THEN
        -- What failed stays for 30 days at least, to be retried.
        UPDATE {schema}.workflow AS w SET purge_at = w.finished_at + interval '1 second' *
            CASE w.status WHEN 'failed' THEN greatest(w.retain, 2592000) ELSE w.retain END
        WHERE w.id = ANY (ending) AND w.retain IS NOT NULL;
        PERFORM {schema}.fire_callbacks(succeeded, 'success');
        -- One whose deadline is over has failed without a job that has.
        PERFORM {schema}.fire_callbacks(failed, 'failure');
        PERFORM {schema}.fire_callbacks(ending, 'end');
    END IF;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.advance(bigint[], bigint[], integer) FROM PUBLIC;
