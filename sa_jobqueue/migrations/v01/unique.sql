-- Unique jobs: the keys that are taken, and the trigger that takes them.
--
-- A row of `unique_key` says which job holds a key. A job that finds its key taken is written as cancelled, and names the holder: so an
-- INSERT of any kind ends well, whatever other transactions do, and at every isolation level.

-- `keep`: seconds for which the key stays taken after its job has ended. `expires_at`: until when it is taken.
CREATE TABLE {schema}.unique_key (
    key text NOT NULL,
    job_id bigint NOT NULL,
    keep double precision,
    expires_at timestamptz,
    CONSTRAINT unique_key_pkey PRIMARY KEY (key)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000
);

CREATE INDEX unique_key_expires_idx ON {schema}.unique_key (expires_at) WHERE expires_at IS NOT NULL;

-- Whether a job still waits to be started; if so, it is locked until the caller's transaction ends, and no worker starts it
-- before. NULL: another transaction has it locked for long, so that is not known. Never waits for long: the other may be
-- waiting for a job that the caller has locked.
CREATE FUNCTION {schema}.hold_queued(id bigint, to_change boolean) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $body$
BEGIN
    IF to_change THEN
        PERFORM FROM {schema}.job WHERE job.id = $1 AND job.status IN ('queued', 'blocked') FOR NO KEY UPDATE;
    ELSE
        PERFORM FROM {schema}.job WHERE job.id = $1 AND job.status IN ('queued', 'blocked') FOR SHARE;
    END IF;
    RETURN FOUND;
EXCEPTION
    WHEN serialization_failure THEN
        RETURN false;  -- it has changed since this transaction's snapshot
    WHEN lock_not_available OR deadlock_detected THEN
        RETURN NULL;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.hold_queued(bigint, boolean) FROM PUBLIC;

-- SECURITY DEFINER: a role that may insert jobs need not be able to read or take keys by hand.
--
-- It waits only for a transaction that is taking the same key, or giving it back, and is not committed. At SERIALIZABLE the
-- holder is not read: that read would abort one transaction in five. The lock on a key that was not taken is given back with
-- a subtransaction: an end of the holder would leave a locked key behind.
CREATE FUNCTION {schema}.job_unique() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    rule jsonb := NEW.uniqueness;
    wanted text := rule ->> 'key';
    scope text := coalesce(rule ->> 'scope', 'started');
    clash text := coalesce(rule ->> 'on_clash', 'skip');
    parts jsonb := coalesce(rule -> 'replace', '["args", "run_at", "priority"]');
    period double precision;
    kept double precision;
    until timestamptz;
    level text := current_setting('transaction_isolation');
    held record;
    holder bigint;
    late bigint;
    queued boolean;
BEGIN
    -- Not in the trigger's condition, which each INSERT of a plain job reads.
    IF NEW.status IN ('completed', 'failed', 'cancelled') THEN
        RETURN NEW;
    END IF;
    IF jsonb_typeof(rule -> 'period') = 'number' THEN
        IF (rule -> 'period')::numeric BETWEEN 0 AND 3155760000 THEN
            period := (rule -> 'period')::double precision;
        END IF;
    END IF;
    IF jsonb_typeof(rule -> 'key') IS DISTINCT FROM 'string' OR char_length(wanted) NOT BETWEEN 1 AND 500
            OR scope NOT IN ('queued', 'started', 'finished', 'window') OR clash NOT IN ('skip', 'replace', 'raise')
            OR (scope IN ('finished', 'window')) <> (period IS NOT NULL) OR (period IS NULL AND rule ->> 'period' IS NOT NULL)
            OR jsonb_typeof(parts) <> 'array' OR NOT parts <@ '["args", "run_at", "priority"]'
            OR (clash = 'replace' AND rule ? 'max_wait' AND CASE jsonb_typeof(rule -> 'max_wait') WHEN 'number'
                THEN (rule -> 'max_wait')::numeric NOT BETWEEN 0 AND 3155760000 ELSE true END) THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'job.uniqueness must have a key of 1 to 500 characters, perhaps a scope (queued, started, finished, window), for '
            'the last two a period in seconds, up to 100 years, perhaps on_clash (skip, replace, raise), and for replace a '
            'list of args, run_at and priority, and perhaps a max_wait in seconds, not %s', left(rule::text, 1000));
    END IF;
    IF scope = 'finished' THEN
        kept := period;
    ELSIF scope = 'window' THEN
        until := clock_timestamp() + period * interval '1 second';
    END IF;
    -- Nearly all keys are taken here. No failure can come, so no row of a large INSERT needs a subtransaction.
    IF level = 'read committed' THEN
        INSERT INTO {schema}.unique_key (key, job_id, keep, expires_at) VALUES (wanted, NEW.id, kept, until)
        ON CONFLICT (key) DO NOTHING;
        IF FOUND THEN
            RETURN NEW;
        END IF;
    END IF;
    FOR attempt IN 1 .. 8 LOOP
        holder := NULL;
        BEGIN
            IF attempt > 1 OR level <> 'read committed' THEN
                INSERT INTO {schema}.unique_key (key, job_id, keep, expires_at) VALUES (wanted, NEW.id, kept, until)
                ON CONFLICT (key) DO NOTHING;
                IF FOUND THEN
                    RETURN NEW;
                END IF;
            END IF;
            IF level = 'serializable' THEN
                IF period IS NULL THEN
                    EXIT;
                END IF;
                INSERT INTO {schema}.unique_key AS taken (key, job_id, keep, expires_at)
                VALUES (wanted, NEW.id, kept, until)
                ON CONFLICT (key) DO UPDATE
                SET job_id = excluded.job_id, keep = excluded.keep, expires_at = excluded.expires_at
                WHERE taken.expires_at <= clock_timestamp();
                IF FOUND THEN
                    RETURN NEW;
                END IF;
                RAISE SQLSTATE 'SJQ02';
            END IF;
            SELECT key.job_id, key.xmin AS version,
                CASE WHEN key.expires_at IS NOT NULL THEN key.expires_at <= clock_timestamp()
                    -- Ended or deleted by hand, or started, and its key is not free yet.
                    ELSE key.keep IS NULL AND (job.id IS NULL OR job.status IN ('completed', 'failed', 'cancelled')
                        OR (job.status = 'running' AND job.uniqueness ->> 'scope' = 'queued')) END AS is_over,
                -- It still waits, and its time is over: it will not be run.
                key.expires_at IS NULL AND key.keep IS NULL AND job.status IN ('queued', 'blocked')
                    AND (job.deadline_at <= clock_timestamp()
                        OR (job.expires_at <= clock_timestamp() AND job.attempt = 0 AND job.rescues = 0)) AS is_late
            INTO held
            FROM {schema}.unique_key AS key LEFT JOIN {schema}.job AS job ON job.id = key.job_id
            WHERE key.key = wanted;
            CONTINUE WHEN NOT FOUND;  -- it was given back just now
            holder := held.job_id;
            IF held.is_late AND late IS DISTINCT FROM holder THEN
                -- Looked at once more when it is locked: it may have been started just now.
                queued := {schema}.hold_queued(holder, true);
                IF queued THEN
                    late := holder;
                END IF;
                CONTINUE WHEN queued IS NOT NULL;
            END IF;
            IF held.is_over OR (held.is_late AND late = holder) THEN
                UPDATE {schema}.unique_key AS key SET job_id = NEW.id, keep = kept, expires_at = until
                WHERE key.key = wanted AND key.xmin = held.version;
                IF FOUND THEN
                    RETURN NEW;
                END IF;
                CONTINUE;
            END IF;
            IF scope <> 'queued' THEN
                EXIT;
            END IF;
            -- What it is to see of this transaction is not committed yet. So it is not to be started before.
            queued := {schema}.hold_queued(holder, clash = 'replace');
            EXIT WHEN queued IS DISTINCT FROM false;
            PERFORM pg_sleep(0.005 * (attempt - 1));  -- it was started: its key will soon be free
        EXCEPTION
            WHEN serialization_failure THEN
                EXIT WHEN holder IS NULL;  -- the key is held by a job that this snapshot cannot see
                -- Else it was taken or given back just now.
            WHEN SQLSTATE 'SJQ02' THEN
                EXIT;
        END;
    END LOOP;
    IF clash = 'replace' THEN
        BEGIN
            -- Not one of another task, which would not understand these arguments. Nor one that is being claimed, or is locked by
            -- another, just now: it is not waited for.
            UPDATE {schema}.job AS job
            SET args = CASE WHEN parts ? 'args' THEN NEW.args ELSE job.args END,
                subject_type = CASE WHEN parts ? 'args' THEN NEW.subject_type ELSE job.subject_type END,
                subject_id = CASE WHEN parts ? 'args' THEN NEW.subject_id ELSE job.subject_id END,
                extras = CASE WHEN parts ? 'args' THEN NEW.extras ELSE job.extras END,
                run_at = CASE WHEN parts ? 'run_at'
                    THEN least(NEW.run_at, job.created_at + (rule -> 'max_wait')::double precision * interval '1 second')
                    ELSE job.run_at END,
                priority = CASE WHEN parts ? 'priority' THEN NEW.priority ELSE job.priority END
            WHERE job.id = (
                SELECT waiting.id FROM {schema}.unique_key AS key
                JOIN {schema}.job AS waiting ON waiting.id = key.job_id
                WHERE key.key = wanted AND waiting.status = 'queued' AND waiting.task = NEW.task
                FOR NO KEY UPDATE OF waiting SKIP LOCKED
            ) AND job.status = 'queued'
            RETURNING job.id INTO held;
            holder := coalesce(held.id, holder);
        EXCEPTION WHEN serialization_failure THEN
            NULL;
        END;
    END IF;
    IF clash = 'raise' THEN
        RAISE unique_violation USING MESSAGE = format('the unique key %L is held by job %s', wanted,
            coalesce(holder::text, '(not visible in this transaction)')), TABLE = 'unique_key', SCHEMA = TG_TABLE_SCHEMA,
            CONSTRAINT = 'unique_key_pkey';
    END IF;
    NEW.duplicate_of := coalesce(holder, 0);
    NEW.status := 'cancelled';
    -- All that the mapped class knows of a duplicate after the flush, without reading the row: as its `created_at`, by now().
    NEW.finished_at := now();
    NEW.purge_at := now() + interval '1 day';
    IF NEW.workflow_id IS NOT NULL THEN
        -- It stays as long as its workflow, and has ended without one of the statements that say so.
        NEW.purge_at := NULL;
        NEW.blocked_by := NULL;
        INSERT INTO {schema}.workflow_event (workflow_id, job_id, completed) VALUES (NEW.workflow_id, NEW.id, false);
    END IF;
    NEW.errors := jsonb_build_array(jsonb_build_object('at', now(), 'attempt', 0, 'type', 'Duplicate',
        'message', format('the unique key ''%s'' was held by %s', wanted, coalesce('job ' || holder, 'another job')),
        'traceback', ''));
    RETURN NEW;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.job_unique() FROM PUBLIC;

CREATE TRIGGER job_unique BEFORE INSERT ON {schema}.job
FOR EACH ROW WHEN (NEW.uniqueness IS NOT NULL)
EXECUTE FUNCTION {schema}.job_unique();

-- For an operator who brings a finished job back. It does not wait for long: keys are taken in the order of job ids here, and
-- by producers in another order.
CREATE FUNCTION {schema}.take_key(id bigint, uniqueness jsonb) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' AS $body$
BEGIN
    INSERT INTO {schema}.unique_key AS held (key, job_id, keep, expires_at)
    VALUES ($2 ->> 'key', $1, CASE $2 ->> 'scope' WHEN 'finished' THEN ($2 ->> 'period')::double precision END, NULL)
    ON CONFLICT (key) DO UPDATE
    SET job_id = excluded.job_id, keep = excluded.keep, expires_at = NULL
    WHERE held.job_id = $1 OR held.expires_at <= clock_timestamp();
    IF FOUND THEN
        RETURN true;
    END IF;
    RAISE SQLSTATE 'SJQ02';  -- gives the lock on the other's key back
EXCEPTION WHEN lock_not_available OR serialization_failure OR SQLSTATE 'SJQ02' THEN
    RETURN false;
END
$body$;
