-- How an INSERT wakes the workers that wait: gates, and the trigger that looks at them.

-- Wake-up gates; a queue's name is hashed to one.
-- No later than the year 5138, for any second of which there is a timestamp.
-- A gate is a sequence used as a cell outside transactions: the second of the epoch until which a worker wants
-- to be woken. A row would collect dead versions under a held snapshot and slow every enqueue.
CREATE SEQUENCE {schema}.gate_0 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_1 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_2 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_3 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_4 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_5 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_6 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_7 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_8 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_9 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_10 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_11 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_12 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_13 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_14 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

CREATE SEQUENCE {schema}.gate_15 AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

-- The latest of them all: while every worker is busy, it spares each enqueue the call of the trigger's function.
-- It is for all to read, because a WHEN is evaluated with the rights of the role that inserts.
CREATE SEQUENCE {schema}.gate_any AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

GRANT SELECT ON SEQUENCE {schema}.gate_any TO PUBLIC;

-- Silent unless a worker waits: a NOTIFY makes the commit take a lock that all notifying commits share.
-- SECURITY DEFINER: a role that may insert jobs need not be able to read the gates. A gate that is missing is closed: the
-- trigger never raises inside a caller's INSERT. A job that is due in ten seconds or less lets workers set a timer for it: they read when
-- jobs are due every five seconds. A statement that has set `run_at` may have done so for jobs that are due as soon.
CREATE FUNCTION {schema}.job_wake() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    clock timestamptz := clock_timestamp();
    gate regclass;
    due text;
    later boolean;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        PERFORM pg_notify('sa_jobqueue_' || TG_RELID, '(due)');
        RETURN NULL;
    END IF;
    -- A duplicate may have held back the job that has its key.
    FOR due, later IN SELECT queue, bool_and(run_at > now() AND duplicate_of IS NULL) FROM inserted
        WHERE (status = 'queued' AND run_at <= now() + interval '10 seconds') OR duplicate_of IS NOT NULL GROUP BY queue LOOP
        gate := to_regclass(quote_ident(TG_TABLE_SCHEMA) || '.gate_' || (hashtext(due) & 15));
        IF to_timestamp(pg_sequence_last_value(gate)) > clock THEN
            PERFORM pg_notify('sa_jobqueue_' || TG_RELID, CASE WHEN later THEN '(due)' ELSE due END);
        END IF;
    END LOOP;
    RETURN NULL;
END
$body$;

-- No other role may use it for a table of its own, whose types and casts would then run with the owner's rights. Inserting
-- a job needs no right to execute it.
REVOKE ALL ON FUNCTION {schema}.job_wake() FROM PUBLIC;

-- Called where a running job is asked to stop: the workers that listen look at once which of their jobs that is. It returns the
-- time, so that the UPDATE that stores the time calls it, and for running jobs alone. No queue has an empty name.
CREATE FUNCTION {schema}.tell_workers(job_table oid) RETURNS timestamptz LANGUAGE sql VOLATILE AS $body$
    SELECT pg_catalog.pg_notify('sa_jobqueue_' || $1, '');
    SELECT pg_catalog.statement_timestamp()
$body$;

-- Its WHEN is parsed and asked once per statement, for a third of what the function costs. Two strings with a line's
-- end between them are one constant, and a constant regclass is an oid: the sequence cannot be dropped alone. Where
-- the right to read it was lost, an INSERT is not to be refused: the function is called.
CREATE TRIGGER job_wake AFTER INSERT ON {schema}.job REFERENCING NEW TABLE AS inserted
FOR EACH STATEMENT WHEN (
    CASE WHEN has_sequence_privilege({name}
            '.gate_any'::regclass, 'SELECT')
        THEN to_timestamp(pg_sequence_last_value({name}
            '.gate_any'::regclass)) > clock_timestamp()
        ELSE true
    END
) EXECUTE FUNCTION {schema}.job_wake();

-- A job that goes back to the queue: claims and plain completions do not set `run_at`, and so do not ask.
CREATE TRIGGER job_due AFTER UPDATE OF run_at ON {schema}.job FOR EACH STATEMENT WHEN (
    CASE WHEN has_sequence_privilege({name}
            '.gate_any'::regclass, 'SELECT')
        THEN to_timestamp(pg_sequence_last_value({name}
            '.gate_any'::regclass)) > clock_timestamp()
        ELSE false
    END
) EXECUTE FUNCTION {schema}.job_wake();
