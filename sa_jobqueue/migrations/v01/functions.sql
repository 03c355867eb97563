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
