-- What is done to whole workflows: cancelling, retrying, pausing.
--
-- Each takes the row of the workflow first, as `advance` does. A pause and a retry then wait for members that another transaction has locked,
-- lowest id first: what is left out of these would start, or stay failed. A cancel leaves such members to `advance`.

-- Members that are past one of these parents wait for it again where it has come back: queued ones, and those that wait for a later
-- parent, whose end may be read before the return. One that needs some of its parents had enough of them. Returns whether a queued one
-- is left, because it is locked.
CREATE FUNCTION {schema}.take_back_children(parents bigint[]) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $body$
DECLARE
    back bigint[] := ARRAY (SELECT p.id FROM {schema}.job AS p WHERE p.id = ANY ($1) AND p.status IN ('queued', 'blocked', 'running'));
    children bigint[] := ARRAY (
        SELECT q.id FROM {schema}.workflow_dependency AS d JOIN {schema}.job AS q ON q.id = d.child_id
        WHERE d.parent_id = ANY (back) AND d.policy <> 'count'
            AND (q.status = 'queued' OR q.status = 'blocked' AND (q.blocked_by > d.parent_id OR q.blocked_by = 0)));
BEGIN
    IF cardinality(children) = 0 THEN
        RETURN false;
    END IF;
    UPDATE {schema}.job SET status = 'blocked', blocked_by = (
        SELECT min(d.parent_id) FROM {schema}.workflow_dependency AS d
        WHERE d.child_id = job.id AND d.parent_id = ANY (back) AND d.policy <> 'count')
    WHERE job.status IN ('queued', 'blocked') AND job.id = ANY (ARRAY (
        SELECT q.id FROM {schema}.job AS q WHERE q.id = ANY (children) AND (q.status = 'queued' OR q.status = 'blocked' AND q.blocked_by >= 0)
        FOR NO KEY UPDATE SKIP LOCKED));
    RETURN EXISTS (SELECT FROM {schema}.job AS q WHERE q.id = ANY (children) AND q.status = 'queued');
END
$body$;

REVOKE ALL ON FUNCTION {schema}.take_back_children(bigint[]) FROM PUBLIC;

-- The members that wait are cancelled at once, except those that are locked: `advance` ends these, and those that are added meanwhile.
-- Returns the workflows that had not ended.
CREATE FUNCTION {schema}.cancel_workflows(workflows bigint[], reason text) RETURNS SETOF bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $body$
#variable_conflict use_column
DECLARE
    flow bigint;
BEGIN
    FOR flow IN SELECT w.id FROM {schema}.workflow AS w WHERE w.id = ANY ($1) AND w.finished_at IS NULL ORDER BY w.id FOR NO KEY UPDATE LOOP
        UPDATE {schema}.workflow AS w SET cancelled_at = coalesce(w.cancelled_at, clock_timestamp()), reason = coalesce(w.reason, $2) WHERE w.id = flow;
        PERFORM {schema}.cancel_members(ARRAY (
            SELECT job.id FROM {schema}.job WHERE job.workflow_id = flow AND job.status IN ('queued', 'blocked')), NULL, 'Cancelled', $2);
        UPDATE {schema}.job SET cancel_requested_at = {schema}.tell_workers(job.tableoid)
        WHERE job.status = 'running' AND job.cancel_requested_at IS NULL AND job.id = ANY (ARRAY (
            SELECT r.id FROM {schema}.job AS r WHERE r.status = 'running' AND r.workflow_id = flow FOR NO KEY UPDATE SKIP LOCKED));
        INSERT INTO {schema}.workflow_event (workflow_id, job_id) VALUES (flow, - flow);
        PERFORM {schema}.tell_workflows();
        RETURN NEXT flow;
    END LOOP;
    -- Of one that was deleted by hand, nobody would release what is blocked, or read what happens.
    FOR flow IN SELECT g.id FROM unnest($1) AS g (id) WHERE NOT EXISTS (SELECT FROM {schema}.workflow AS w WHERE w.id = g.id) ORDER BY g.id LOOP
        PERFORM {schema}.cancel_members(ARRAY (
            SELECT job.id FROM {schema}.job WHERE job.workflow_id = flow AND job.status = 'blocked'), NULL, 'Cancelled', $2);
        DELETE FROM {schema}.workflow_event AS event WHERE event.workflow_id = flow;
    END LOOP;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.cancel_workflows(bigint[], text) FROM PUBLIC;

-- Members that failed or were cancelled wait again for their parents. `from_node`: only this one, and those below it that were cancelled
-- because of others; what one of these still lacks cancels it again. Jobs that were cancelled because of others keep their due times. Returns
-- those that come back; one whose unique key another job has does not.
CREATE FUNCTION {schema}.retry_workflow(workflow bigint, from_node bigint) RETURNS SETOF bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $body$
#variable_conflict use_column
DECLARE
    back bigint[];
BEGIN
    PERFORM FROM {schema}.workflow AS w WHERE w.id = $1 FOR NO KEY UPDATE;
    IF $2 IS NULL THEN
        SELECT array_agg(l.id) INTO back FROM (
            SELECT job.id FROM {schema}.job WHERE job.workflow_id = $1 AND job.status IN ('failed', 'cancelled') ORDER BY job.id FOR NO KEY UPDATE) AS l;
    ELSE
        SELECT array_agg(l.id) INTO back FROM (
            WITH RECURSIVE below (id) AS (
                SELECT $2
                UNION
                SELECT d.child_id FROM below JOIN {schema}.workflow_dependency AS d ON d.parent_id = below.id
                JOIN {schema}.job ON job.id = d.child_id AND job.status = 'cancelled' AND job.errors -> -1 ->> 'failed_id' IS NOT NULL)
            SELECT job.id FROM {schema}.job
            WHERE job.workflow_id = $1 AND job.status IN ('failed', 'cancelled') AND job.id IN (SELECT below.id FROM below)
            ORDER BY job.id FOR NO KEY UPDATE) AS l;
    END IF;
    back := ARRAY (
        SELECT job.id FROM {schema}.job WHERE job.id = ANY (back) AND job.status IN ('failed', 'cancelled')
            AND (job.uniqueness IS NULL OR job.uniqueness ->> 'scope' = 'window' OR {schema}.take_key(job.id, job.uniqueness))
        ORDER BY job.id);
    IF cardinality(back) = 0 THEN
        RETURN;
    END IF;
    UPDATE {schema}.job SET status = 'blocked', blocked_by = - $1, attempt = 0, rescues = 0, finished_at = NULL, purge_at = NULL,
        cancel_requested_at = NULL, lease_expires_at = NULL, result = NULL, duplicate_of = NULL,
        run_at = CASE WHEN job.errors -> -1 ->> 'failed_id' IS NULL THEN least(job.run_at, now()) ELSE job.run_at END,
        expires_at = CASE WHEN job.expires_at > now() THEN job.expires_at END,
        deadline_at = CASE WHEN job.deadline_at > now() THEN job.deadline_at END
    WHERE job.id = ANY (back);
    UPDATE {schema}.workflow AS w SET finished_at = NULL, purge_at = NULL, status = 'running', cancelled_at = NULL, reason = NULL,
        watched_id = 9223372036854775807, deadline_at = CASE WHEN w.deadline_at > now() THEN w.deadline_at END
    WHERE w.id = $1;
    -- Those that go on may depend on one that comes back.
    INSERT INTO {schema}.workflow_event (workflow_id, job_id) SELECT $1, - $1
    UNION ALL SELECT $1, b.id FROM unnest(back) AS b (id)
    WHERE EXISTS (
        SELECT FROM {schema}.workflow_dependency AS d JOIN {schema}.job ON job.id = d.child_id AND job.status IN ('blocked', 'queued')
        WHERE d.parent_id = b.id AND job.id <> ALL (back));
    PERFORM {schema}.take_back_children(back);
    PERFORM {schema}.tell_workflows();
    RETURN QUERY SELECT unnest(back);
END
$body$;

REVOKE ALL ON FUNCTION {schema}.retry_workflow(bigint, bigint) FROM PUBLIC;

-- Nothing more is started; what runs goes on, with its attempts. Returns the workflows that were not paused before.
CREATE FUNCTION {schema}.pause_workflows(workflows bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $body$
#variable_conflict use_column
DECLARE
    -- FOR UPDATE waits for those that add members, which see whether it is paused.
    flows bigint[] := ARRAY (
        SELECT w.id FROM {schema}.workflow AS w WHERE w.id = ANY ($1) AND w.finished_at IS NULL AND w.paused_at IS NULL ORDER BY w.id FOR UPDATE);
BEGIN
    UPDATE {schema}.workflow AS w SET paused_at = clock_timestamp() WHERE w.id = ANY (flows);
    UPDATE {schema}.job SET status = 'blocked', blocked_by = - job.workflow_id
    WHERE job.status = 'queued' AND job.id = ANY (ARRAY (
        SELECT q.id FROM {schema}.job AS q WHERE q.workflow_id = ANY (flows) AND q.status = 'queued' ORDER BY q.id FOR NO KEY UPDATE));
    RETURN QUERY SELECT unnest(flows);
END
$body$;

REVOKE ALL ON FUNCTION {schema}.pause_workflows(bigint[]) FROM PUBLIC;

CREATE FUNCTION {schema}.resume_workflows(workflows bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $body$
#variable_conflict use_column
DECLARE
    flow bigint;
BEGIN
    FOR flow IN SELECT w.id FROM {schema}.workflow AS w WHERE w.id = ANY ($1) AND w.paused_at IS NOT NULL ORDER BY w.id FOR NO KEY UPDATE LOOP
        UPDATE {schema}.workflow AS w SET paused_at = NULL WHERE w.id = flow;
        INSERT INTO {schema}.workflow_event (workflow_id, job_id) VALUES (flow, - flow);
        PERFORM {schema}.tell_workflows();
        RETURN NEXT flow;
    END LOOP;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.resume_workflows(bigint[]) FROM PUBLIC;
