"""Unique jobs: the keys that are taken, and the trigger that takes them.

A row of `unique_key` says which job holds a key. A job that finds its key taken is written as cancelled, and names the holder: so an
INSERT of any kind ends well, whatever other transactions do, and at every isolation level.
"""

from __future__ import annotations

__all__ = ["DOWN", "UP"]

UP = (
    # `keep`: seconds for which the key stays taken after its job has ended. `expires_at`: until when it is taken.
    """
    CREATE TABLE {schema}.unique_key (
        key text NOT NULL,
        job_id bigint NOT NULL,
        keep double precision,
        expires_at timestamptz,
        CONSTRAINT unique_key_pkey PRIMARY KEY (key)
    ) WITH (
        autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 5000
    )
    """,
    "CREATE INDEX unique_key_expires_idx ON {schema}.unique_key (expires_at) WHERE expires_at IS NOT NULL",
    # SECURITY DEFINER: who may insert a job need not be able to read or take keys by hand.
    #
    # Nothing here waits for another transaction's job: only for one that has just taken the same key and is not committed. The
    # holder is not read at SERIALIZABLE, where that read would abort one transaction in five; nor is a held key locked, for which
    # its job's end would have to wait.
    """
    CREATE FUNCTION {schema}.job_unique() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $body$
    DECLARE
        rule jsonb := NEW.uniqueness;
        wanted text := rule ->> 'key';
        scope text := coalesce(rule ->> 'scope', 'started');
        clash text := coalesce(rule ->> 'on_clash', 'skip');
        period double precision := rule ->> 'period';
        keeps boolean := scope IN ('finished', 'window');
        holder bigint;
        replaced bigint;
        over boolean := false;
    BEGIN
        IF wanted IS NULL OR scope NOT IN ('queued', 'started', 'finished', 'window')
                OR clash NOT IN ('skip', 'replace', 'raise') OR keeps <> (period IS NOT NULL) THEN
            RAISE invalid_parameter_value USING MESSAGE = format(
                'job.uniqueness must have a key, perhaps a scope (queued, started, finished, window), for the last two a '
                'period in seconds, and perhaps on_clash (skip, replace, raise), not %s', rule);
        END IF;
        BEGIN
            INSERT INTO {schema}.unique_key (key, job_id, keep, expires_at)
            VALUES (wanted, NEW.id, CASE scope WHEN 'finished' THEN period END,
                    CASE scope WHEN 'window' THEN clock_timestamp() + period * interval '1 second' END)
            ON CONFLICT (key) DO NOTHING;
            IF FOUND THEN
                RETURN NEW;
            END IF;
            IF current_setting('transaction_isolation') <> 'serializable' THEN
                SELECT held.job_id, held.expires_at <= clock_timestamp() INTO holder, over
                FROM {schema}.unique_key AS held WHERE held.key = wanted;
            ELSE
                over := keeps;
            END IF;
            IF over THEN
                INSERT INTO {schema}.unique_key AS held (key, job_id, keep, expires_at)
                VALUES (wanted, NEW.id, CASE scope WHEN 'finished' THEN period END,
                        CASE scope WHEN 'window' THEN clock_timestamp() + period * interval '1 second' END)
                ON CONFLICT (key) DO UPDATE
                SET job_id = excluded.job_id, keep = excluded.keep, expires_at = excluded.expires_at
                WHERE held.expires_at <= clock_timestamp();
                IF FOUND THEN
                    RETURN NEW;
                END IF;
            END IF;
            IF clash = 'replace' THEN
                -- Not one that is being claimed, or is locked by another, just now: it is not waited for.
                UPDATE {schema}.job AS queued
                SET args = CASE WHEN rule -> 'replace' ? 'args' THEN NEW.args ELSE queued.args END,
                    run_at = CASE WHEN rule -> 'replace' ? 'run_at' THEN NEW.run_at ELSE queued.run_at END,
                    priority = CASE WHEN rule -> 'replace' ? 'priority' THEN NEW.priority ELSE queued.priority END
                WHERE queued.id = (
                    SELECT waiting.id FROM {schema}.unique_key AS held
                    JOIN {schema}.job AS waiting ON waiting.id = held.job_id
                    WHERE held.key = wanted AND waiting.status = 'queued'
                    FOR NO KEY UPDATE OF waiting SKIP LOCKED
                ) AND queued.status = 'queued'
                RETURNING queued.id INTO replaced;
                holder := coalesce(replaced, holder);
            END IF;
        EXCEPTION WHEN serialization_failure THEN
            NULL;  -- the key is held by a job that this snapshot cannot see
        END;
        IF clash = 'raise' THEN
            RAISE unique_violation USING MESSAGE = format('the unique key %L is held by job %s', wanted,
                coalesce(holder::text, '(not visible in this transaction)')), TABLE = 'unique_key', SCHEMA = TG_TABLE_SCHEMA,
                CONSTRAINT = 'unique_key_pkey';
        END IF;
        NEW.duplicate_of := coalesce(holder, 0);
        NEW.status := 'cancelled';
        NEW.finished_at := statement_timestamp();
        NEW.purge_at := statement_timestamp() + interval '1 day';
        NEW.errors := jsonb_build_array(jsonb_build_object('at', statement_timestamp(), 'attempt', 0, 'type', 'Duplicate',
            'message', format('the unique key %L was held by %s', wanted, coalesce('job ' || holder, 'another job')),
            'traceback', ''));
        RETURN NEW;
    END
    $body$
    """,
    "REVOKE ALL ON FUNCTION {schema}.job_unique() FROM PUBLIC",
    """
    CREATE TRIGGER job_unique BEFORE INSERT ON {schema}.job
    FOR EACH ROW WHEN (NEW.uniqueness IS NOT NULL) EXECUTE FUNCTION {schema}.job_unique()
    """,
    # For an operator who brings a finished job back. It does not wait for long: keys are taken in the order of job ids here, and
    # by producers in another order.
    """
    CREATE FUNCTION {schema}.take_key(id bigint, uniqueness jsonb) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' AS $body$
    BEGIN
        INSERT INTO {schema}.unique_key AS held (key, job_id, keep, expires_at)
        VALUES ($2 ->> 'key', $1, CASE $2 ->> 'scope' WHEN 'finished' THEN ($2 ->> 'period')::double precision END, NULL)
        ON CONFLICT (key) DO UPDATE
        SET job_id = excluded.job_id, keep = excluded.keep, expires_at = NULL
        WHERE held.job_id = $1 OR held.expires_at <= clock_timestamp();
        RETURN FOUND;
    EXCEPTION WHEN lock_not_available OR serialization_failure THEN
        RETURN false;
    END
    $body$
    """,
)

DOWN = (
    "DROP TRIGGER job_unique ON {schema}.job",
    "DROP FUNCTION {schema}.job_unique()",
    "DROP FUNCTION {schema}.take_key(bigint, jsonb)",
    "DROP TABLE {schema}.unique_key",
)
