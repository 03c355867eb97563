-- The functions that the statements call.

-- How a producer's delay becomes a time by the database's clock. A plain SQL expression, so that it is inlined.
CREATE FUNCTION {schema}.due_at(given text) RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN pg_catalog.starts_with(given, '+') THEN pg_catalog.now() + given::pg_catalog.interval
            ELSE given::pg_catalog.timestamptz END;

-- What `enqueue_select` calls for a row whose value cannot be an argument.
CREATE FUNCTION {schema}.refuse_argument(message text) RETURNS jsonb LANGUAGE plpgsql PARALLEL SAFE AS $body$
BEGIN
    RAISE invalid_parameter_value USING MESSAGE = message;
END
$body$;

-- Called with a job that has completed or failed: enqueues its follow-up, if its `extras` have one for this end. SECURITY DEFINER: a worker may
-- insert no jobs but these. What was written into `extras` by hand, or a trigger or policy of the application that refuses the row, must not
-- keep the job from ending. An error that may pass undoes the end, which is tried again.
CREATE FUNCTION {schema}.follow_up(id bigint) RETURNS bigint LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $body$
#variable_conflict use_column
DECLARE
    done record;
    given jsonb;
BEGIN
    SELECT job.task, job.status, job.args, job.result, job.extras, job.errors -> -1 ->> 'type' AS kind, job.errors -> -1 ->> 'message' AS message
    INTO done FROM {schema}.job WHERE job.id = $1;
    given := done.extras -> CASE done.status WHEN 'completed' THEN 'on_success' WHEN 'failed' THEN 'on_failure' END;
    IF jsonb_typeof(given) IS DISTINCT FROM 'object' THEN
        RETURN $1;
    END IF;
    INSERT INTO {schema}.job (task, args, queue, priority, max_attempts, meta, run_at, concurrency_key, units, extras)
    SELECT given ->> 'task', (
            SELECT coalesce(jsonb_object_agg(filled.name, filled.value), '{}') FROM (VALUES
                ('job_id', to_jsonb($1)), ('task', to_jsonb(done.task)), ('args', done.args), ('result', coalesce(done.result, 'null')),
                ('error', to_jsonb(concat(done.kind, ': ' || nullif(done.message, ''))))) AS filled (name, value)
            WHERE given -> 'takes' ? filled.name),
        given ->> 'queue', (given ->> 'priority')::smallint, (given ->> 'max_attempts')::smallint,
        coalesce(given -> 'meta', '{}') || jsonb_build_object('follow_up_of', $1),
        now() + coalesce((given ->> 'delay')::double precision, 0) * interval '1 second',
        given ->> 'key', (given ->> 'units')::smallint, given -> 'extras';
    RETURN $1;
EXCEPTION
WHEN transaction_rollback OR insufficient_resources OR object_not_in_prerequisite_state OR operator_intervention OR system_error
        OR internal_error THEN
    RAISE;
WHEN OTHERS THEN
    RAISE WARNING 'job %: its follow-up cannot be enqueued: %', $1, SQLERRM;
    RETURN $1;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.follow_up(bigint) FROM PUBLIC;

-- What triggers call where a role changes what only an operator may: column grants cannot tell rows apart. It raises for every row, so
-- each trigger says in its WHEN which changes those are, and whose.
CREATE FUNCTION {schema}.only_operators() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    RAISE insufficient_privilege USING MESSAGE = format('permission denied: only an operator may ' || TG_ARGV[0], OLD.name);
END
$body$;

REVOKE ALL ON FUNCTION {schema}.only_operators() FROM PUBLIC;

-- How a handler's transaction completes its job. It raises where the claim is no longer valid, so that the COMMIT that comes
-- in the same message is not executed. The server keeps its plan, which without the SET would be to read the whole table
-- where that was one page when it was made. Parameters by number: no column is ever meant by them.
CREATE FUNCTION {schema}.complete_job(id bigint, claim_token bigint, retain double precision) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $body$
BEGIN
    UPDATE {schema}.job AS held
    SET status = 'completed',
        lease_expires_at = NULL,
        finished_at = statement_timestamp(),
        purge_at = statement_timestamp() + $3 * interval '1 second',
        result = NULL
    WHERE held.id = $1 AND held.claim_token = $2 AND held.status = 'running';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job %: its claim was lost', $1 USING ERRCODE = 'SJQ01';
    END IF;
    IF {schema}.any_awaited() THEN
        PERFORM {schema}.tell_ended(ARRAY[$1]);
    END IF;
END
$body$;

-- Of a task that records what its handlers return.
CREATE FUNCTION {schema}.complete_job(id bigint, claim_token bigint, retain double precision, result jsonb) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $body$
BEGIN
    UPDATE {schema}.job AS held
    SET status = 'completed',
        lease_expires_at = NULL,
        finished_at = statement_timestamp(),
        purge_at = statement_timestamp() + $3 * interval '1 second',
        result = $4
    WHERE held.id = $1 AND held.claim_token = $2 AND held.status = 'running';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job %: its claim was lost', $1 USING ERRCODE = 'SJQ01';
    END IF;
    IF {schema}.any_awaited() THEN
        PERFORM {schema}.tell_ended(ARRAY[$1]);
    END IF;
END
$body$;

-- Of a job in a workflow: its end is an event.
CREATE FUNCTION {schema}.complete_member(id bigint, claim_token bigint, retain double precision) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $body$
DECLARE
    flow bigint;
BEGIN
    UPDATE {schema}.job AS held
    SET status = 'completed',
        lease_expires_at = NULL,
        finished_at = statement_timestamp(),
        purge_at = statement_timestamp() + $3 * interval '1 second',
        result = NULL
    WHERE held.id = $1 AND held.claim_token = $2 AND held.status = 'running'
    RETURNING held.workflow_id INTO flow;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job %: its claim was lost', $1 USING ERRCODE = 'SJQ01';
    END IF;
    IF flow IS NOT NULL THEN
        INSERT INTO {schema}.workflow_event (workflow_id, job_id, completed) VALUES (flow, $1, true);
    END IF;
    IF {schema}.any_awaited() THEN
        PERFORM {schema}.tell_ended(ARRAY[$1]);
    END IF;
END
$body$;

CREATE FUNCTION {schema}.complete_member(id bigint, claim_token bigint, retain double precision, result jsonb) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $body$
DECLARE
    flow bigint;
BEGIN
    UPDATE {schema}.job AS held
    SET status = 'completed',
        lease_expires_at = NULL,
        finished_at = statement_timestamp(),
        purge_at = statement_timestamp() + $3 * interval '1 second',
        result = $4
    WHERE held.id = $1 AND held.claim_token = $2 AND held.status = 'running'
    RETURNING held.workflow_id INTO flow;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job %: its claim was lost', $1 USING ERRCODE = 'SJQ01';
    END IF;
    IF flow IS NOT NULL THEN
        INSERT INTO {schema}.workflow_event (workflow_id, job_id, completed) VALUES (flow, $1, true);
    END IF;
    IF {schema}.any_awaited() THEN
        PERFORM {schema}.tell_ended(ARRAY[$1]);
    END IF;
END
$body$;
