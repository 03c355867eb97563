-- Limits and fairness: what operators and code set, what the claims keep beside it, and the indexes by which keys take turns.
--
-- A permit is a running row: how many run is counted under a lock, by a statement that is younger than the lock. So no permit can leak, and there
-- is nothing beside the jobs that could drift. The turns of the keys are the order of an index; no row says whose turn it is.

-- `owner`: "queue" or "task". `key_...`: what holds for each key, unless `job_key` says otherwise. `rates`,
-- `key_rates`: rates of named units, {"unit", "count", "seconds", "burst"} each. `per`: by the name of a key that only limits, columns of `job_key`
-- for each of its values. `version` is a random number, new
-- with each change: a claim that knows other versions than there are takes nothing.
CREATE TABLE {schema}.job_limit (
    owner text NOT NULL,
    name text NOT NULL,
    running integer,
    rate_count integer,
    rate_seconds double precision,
    rate_burst integer,
    key_running integer,
    key_rate_count integer,
    key_rate_seconds double precision,
    key_rate_burst integer,
    strict boolean NOT NULL DEFAULT false,
    when_full text NOT NULL DEFAULT 'wait',
    max_waiting integer,
    rates jsonb,
    key_rates jsonb,
    per jsonb,
    share text NOT NULL DEFAULT 'starts',
    paused_at timestamptz,
    pause_reason text,
    broken_until timestamptz,
    held boolean NOT NULL DEFAULT false,
    declared jsonb,
    declared_at timestamptz,
    definitions text[],
    version bigint NOT NULL DEFAULT 0,
    CONSTRAINT job_limit_pkey PRIMARY KEY (owner, name),
    CONSTRAINT job_limit_owner_check CHECK (owner IN ('queue', 'task')),
    CONSTRAINT job_limit_name_check CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT job_limit_running_check CHECK (running >= 1),
    CONSTRAINT job_limit_rate_check CHECK (
        num_nulls(rate_count, rate_seconds, rate_burst) IN (0, 3)
        AND rate_count >= 1 AND rate_seconds >= 0.000001 AND rate_seconds <= 31557600 AND rate_burst >= 1),
    CONSTRAINT job_limit_key_running_check CHECK (key_running >= 1),
    CONSTRAINT job_limit_key_rate_check CHECK (
        num_nulls(key_rate_count, key_rate_seconds, key_rate_burst) IN (0, 3)
        AND key_rate_count >= 1 AND key_rate_seconds >= 0.000001 AND key_rate_seconds <= 31557600 AND key_rate_burst >= 1),
    CONSTRAINT job_limit_when_full_check
        CHECK (when_full IN ('wait', 'drop_newest', 'replace_oldest_waiting', 'cancel_running')),
    CONSTRAINT job_limit_max_waiting_check CHECK (max_waiting BETWEEN 0 AND 1000000),
    CONSTRAINT job_limit_rates_check CHECK (jsonb_typeof(rates) = 'array' AND jsonb_typeof(key_rates) = 'array'),
    CONSTRAINT job_limit_per_check CHECK (jsonb_typeof(per) = 'object'),
    CONSTRAINT job_limit_share_check CHECK (share IN ('starts', 'time'))
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000
);

-- What an operator has said of one key. The `owner` of a value of a key that only limits is as "queue:provider".
CREATE TABLE {schema}.job_key (
    owner text NOT NULL,
    name text NOT NULL,
    key text COLLATE "C" NOT NULL,
    running integer,
    rate_count integer,
    rate_seconds double precision,
    rate_burst integer,
    rates jsonb,
    weight smallint NOT NULL DEFAULT 1,
    paused_at timestamptz,
    pause_reason text,
    broken_until timestamptz,
    CONSTRAINT job_key_pkey PRIMARY KEY (owner, name, key),
    CONSTRAINT job_key_owner_check CHECK (split_part(owner, ':', 1) IN ('queue', 'task')),
    CONSTRAINT job_key_name_check CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT job_key_key_check CHECK (char_length(key) BETWEEN 1 AND 200),
    CONSTRAINT job_key_running_check CHECK (running >= 1),
    CONSTRAINT job_key_rate_check CHECK (
        num_nulls(rate_count, rate_seconds, rate_burst) IN (0, 3)
        AND rate_count >= 1 AND rate_seconds >= 0.000001 AND rate_seconds <= 31557600 AND rate_burst >= 1),
    CONSTRAINT job_key_rates_check CHECK (jsonb_typeof(rates) = 'array'),
    CONSTRAINT job_key_weight_check CHECK (weight BETWEEN 1 AND 1000)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000
);

CREATE INDEX job_key_broken_idx ON {schema}.job_key (name) WHERE broken_until IS NOT NULL;
CREATE INDEX job_key_further_idx ON {schema}.job_key (name) WHERE rates IS NOT NULL OR owner LIKE '%:%';

-- What claims keep: `free_at`, when a rate would be as if nothing had started (the theoretical arrival time of GCRA), and how many units
-- it `owed` at the last start, by which another rate can read the state; until when
-- nothing starts, because the other side has said so; when its last failures were that a breaker counts; and an id below which no job of the owner runs, as long as its limit has this
-- `version`. `key` is '' for all of them. The `owner` of the state of a further rate is as "queue tokens/60": with
-- the unit and the seconds behind it.
CREATE TABLE {schema}.limit_state (
    free_at timestamptz,
    blocked_until timestamptz,
    owed_at timestamptz,
    owed double precision,
    lowest_id bigint,
    version bigint,
    failed_at timestamptz[],
    owner text NOT NULL,
    name text NOT NULL,
    key text COLLATE "C" NOT NULL,
    CONSTRAINT limit_state_pkey PRIMARY KEY (owner, name, key)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000
);

-- A job is ready once it is due; one with a key that was enqueued for later, or comes back later, is made ready by a claim.
-- The ready jobs of each queue, key by key. That there is no key comes first in each condition: it is evaluated for each write of a
-- job, and nearly all jobs have none.
CREATE INDEX job_key_ready_idx ON {schema}.job (queue, concurrency_key, (- priority), run_at, id)
WHERE concurrency_key IS NOT NULL AND status = 'queued' AND run_at <= GREATEST(created_at, ready_at);

-- Those that are not ready: they are made so when they are due.
CREATE INDEX job_key_later_idx ON {schema}.job (queue, run_at, id)
WHERE concurrency_key IS NOT NULL AND status = 'queued' AND run_at > GREATEST(created_at, ready_at);

-- Those that run, or were claimed before and wait again: the jobs that may have a key's permits. Of those that wait there may be many.
CREATE INDEX job_key_begun_idx ON {schema}.job (concurrency_key, (status <> 'queued'), id)
WHERE concurrency_key IS NOT NULL AND (status = 'running' OR (status = 'queued' AND claims > 0));

-- A claim that knows other limits than there are ends with this error; the worker reads them, and claims again.
CREATE FUNCTION {schema}.limits_changed(found bigint) RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    RAISE EXCEPTION 'the limits have changed' USING ERRCODE = 'SJQ03';
END
$body$;

-- Workers that listen are told at the commit, and claim at once.
CREATE FUNCTION {schema}.limit_changed() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    PERFORM pg_notify('sa_jobqueue_' || ({name} || '.job')::regclass::oid, '(limits)');
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    IF TG_TABLE_NAME = 'job_key' AND split_part(NEW.owner, ':', 1) = 'task' THEN
        -- Workers know the tasks that have a row of their own; and where that is there, by its version that one of its keys is new.
        INSERT INTO {schema}.job_limit AS l (owner, name) VALUES ('task', NEW.name)
        ON CONFLICT (owner, name) DO UPDATE SET running = l.running WHERE TG_OP = 'INSERT';
    END IF;
    IF TG_TABLE_NAME = 'job_limit' THEN
        NEW.version := (random() * 4503599627370000)::bigint * 1024 + (random() * 1023)::bigint;
    END IF;
    RETURN NEW;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.limit_changed() FROM PUBLIC;

CREATE TRIGGER job_limit_changed BEFORE INSERT OR DELETE OR UPDATE OF running, rate_count, rate_seconds, rate_burst,
    key_running, key_rate_count, key_rate_seconds, key_rate_burst, strict, when_full, max_waiting, rates, key_rates, per, share, paused_at, broken_until
ON {schema}.job_limit FOR EACH ROW EXECUTE FUNCTION {schema}.limit_changed();

-- A worker's role may write what code declares of a limit, also beside an operator's values. Who may hold a limit is an operator.
CREATE TRIGGER job_limit_held BEFORE UPDATE OF running, rate_count, rate_seconds, rate_burst,
    key_running, key_rate_count, key_rate_seconds, key_rate_burst, strict, when_full, max_waiting, rates, key_rates, per, share ON {schema}.job_limit FOR EACH ROW
WHEN (OLD.held AND NOT pg_catalog.has_column_privilege(OLD.tableoid, 'held', 'UPDATE'))
EXECUTE FUNCTION {schema}.only_operators('change the limits of %L, which are held');

CREATE TRIGGER job_limit_kept BEFORE DELETE ON {schema}.job_limit FOR EACH ROW
WHEN ((OLD.held OR OLD.paused_at IS NOT NULL) AND NOT pg_catalog.has_column_privilege(OLD.tableoid, 'held', 'UPDATE'))
EXECUTE FUNCTION {schema}.only_operators('delete the limits of %L, which are held or paused');

-- What an operator has said of a task's keys holds on when the limits of the task itself go.
CREATE FUNCTION {schema}.limit_gone() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    INSERT INTO {schema}.job_limit (owner, name)
    SELECT OLD.owner, OLD.name WHERE EXISTS (SELECT FROM {schema}.job_key AS k WHERE split_part(k.owner, ':', 1) = OLD.owner AND k.name = OLD.name)
    ON CONFLICT (owner, name) DO NOTHING;
    RETURN NULL;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.limit_gone() FROM PUBLIC;

CREATE TRIGGER job_limit_gone AFTER DELETE ON {schema}.job_limit FOR EACH ROW
WHEN (OLD.owner = 'task') EXECUTE FUNCTION {schema}.limit_gone();

CREATE TRIGGER job_key_changed BEFORE INSERT OR DELETE OR UPDATE ON {schema}.job_key
FOR EACH ROW EXECUTE FUNCTION {schema}.limit_changed();

-- So that an operator who ends a wait tells them, too.
CREATE TRIGGER limit_state_lifted AFTER UPDATE OF blocked_until ON {schema}.limit_state
FOR EACH ROW WHEN (NEW.blocked_until < OLD.blocked_until) EXECUTE FUNCTION {schema}.limit_changed();

-- Have these queues claimed from under limits: those that have none get a row that limits nothing. It does not wait for an
-- operator whose transaction is making such a row: if that is rolled back, `ForgetStates` makes it. The names are in order.
CREATE FUNCTION {schema}.limit_queues(names text[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $body$
BEGIN
    FOR place IN 1 .. cardinality(names) LOOP
        -- Each INSERT would fire the trigger, which tells all workers, also where the row is there.
        CONTINUE WHEN EXISTS (SELECT FROM {schema}.job_limit AS l WHERE l.owner = 'queue' AND l.name = names[place]);
        BEGIN
            INSERT INTO {schema}.job_limit (owner, name) VALUES ('queue', names[place]) ON CONFLICT (owner, name) DO NOTHING;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END LOOP;
END
$body$;

-- Breakers: `broken_until` of a task, or of one of its keys. NULL: closed. Before that time nothing starts; from then on one job at a time,
-- the probe, which was claimed after that time. So a probe whose worker died counts no more once it is rescued. Transactions that write the
-- breakers of a task come one after the other: each may write several rows, and the trigger of a key's row the task's.
CREATE FUNCTION {schema}.lock_breakers(tasks text[]) RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_advisory_xact_lock(hashtext('sa_jobqueue breakers ' || ({name} || '.job')::regclass::oid), t.place)
    FROM (SELECT DISTINCT hashtext(t.task) AS place FROM unnest($1) AS t (task) ORDER BY 1) AS t;
END;

REVOKE ALL ON FUNCTION {schema}.lock_breakers(text[]) FROM PUBLIC;

-- Opens a breaker for these seconds; NULL closes it. Returns whether that changed anything, which the audit notes unless `who` is ''.
CREATE FUNCTION {schema}.set_breaker(task text, key text, seconds double precision, who text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $body$
#variable_conflict use_column
BEGIN
    PERFORM {schema}.lock_breakers(ARRAY[$1]);
    IF $3 IS NOT NULL AND $2 IS NULL THEN
        INSERT INTO {schema}.job_limit AS l (owner, name, broken_until) VALUES ('task', $1, clock_timestamp() + $3 * interval '1 second')
        ON CONFLICT (owner, name) DO UPDATE SET broken_until = excluded.broken_until;
    ELSIF $3 IS NOT NULL THEN
        INSERT INTO {schema}.job_key AS k (owner, name, key, broken_until) VALUES ('task', $1, $2, clock_timestamp() + $3 * interval '1 second')
        ON CONFLICT (owner, name, key) DO UPDATE SET broken_until = excluded.broken_until;
        UPDATE {schema}.job_limit AS l SET running = l.running WHERE l.owner = 'task' AND l.name = $1;  -- so that workers read the limits
    ELSIF $2 IS NULL THEN
        UPDATE {schema}.job_limit AS l SET broken_until = NULL WHERE l.owner = 'task' AND l.name = $1 AND l.broken_until IS NOT NULL;
    ELSE
        UPDATE {schema}.job_key AS k SET broken_until = NULL WHERE k.owner = 'task' AND k.name = $1 AND k.key = $2 AND k.broken_until IS NOT NULL;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF $3 IS NULL THEN
        -- A row that says nothing more goes.
        DELETE FROM {schema}.job_key AS k WHERE k.owner = 'task' AND k.name = $1 AND k.key = $2
            AND num_nonnulls(k.running, k.rate_count, k.rates, k.paused_at, k.broken_until) = 0 AND k.weight = 1;
        DELETE FROM {schema}.job_limit AS l WHERE l.owner = 'task' AND l.name = $1
            AND num_nonnulls(l.running, l.rate_count, l.rates, l.key_running, l.key_rate_count, l.key_rates, l.per, l.max_waiting, l.paused_at,
                l.broken_until, l.declared) = 0
            AND NOT l.strict AND NOT l.held AND l.when_full = 'wait' AND l.share = 'starts';
    END IF;
    UPDATE {schema}.limit_state AS s SET failed_at = NULL
    WHERE s.owner = 'task' AND s.name = $1 AND s.key = coalesce($2, '') AND s.failed_at IS NOT NULL;
    INSERT INTO {schema}.audit (count, action, who, target) SELECT 1, CASE WHEN $3 IS NULL THEN 'close_breaker' ELSE 'open_breaker' END, $4,
        jsonb_strip_nulls(jsonb_build_object('task', jsonb_build_array($1), 'key', CASE WHEN $2 IS NOT NULL THEN jsonb_build_array($2) END,
            'seconds', CASE WHEN $3 IS NOT NULL THEN jsonb_build_array($3::text) END))
    WHERE $4 <> '';
    RETURN true;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.set_breaker(text, text, double precision, text) FROM PUBLIC;

-- What the ends of these jobs say to the breakers of their tasks, in the transaction that has written them: `failed`, with a failure that
-- counts, or not, which only a probe says.
CREATE FUNCTION {schema}.tell_breakers(
    ids bigint[], failed boolean[], by_key boolean[], failures integer[], per double precision[], rest double precision[]
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $body$
#variable_conflict use_column
DECLARE
    said record;
    until timestamptz;
    times timestamptz[];
BEGIN
    PERFORM {schema}.lock_breakers(ARRAY (SELECT job.task FROM {schema}.job WHERE job.id = ANY ($1)));
    FOR said IN
        -- A job probes the breaker of its task and that of its key, either of which an operator may have opened. It counts for one of them.
        SELECT job.task, job.claimed_at, b.key, g.failed, g.failures, g.per, g.rest,
            (b.key IS NOT NULL) = (g.by_key AND (job.concurrency_key >= chr(2) COLLATE "C") IS TRUE) AS counts
        FROM unnest($1, $2, $3, $4, $5, $6) AS g (id, failed, by_key, failures, per, rest) JOIN {schema}.job ON job.id = g.id
        CROSS JOIN LATERAL (
            SELECT NULL::text AS key
            UNION SELECT CASE WHEN job.concurrency_key >= chr(2) COLLATE "C" THEN job.concurrency_key END) AS b
        ORDER BY job.task, b.key NULLS FIRST, g.id
    LOOP
        IF said.key IS NULL THEN
            SELECT l.broken_until INTO until FROM {schema}.job_limit AS l WHERE l.owner = 'task' AND l.name = said.task;
        ELSE
            SELECT k.broken_until INTO until FROM {schema}.job_key AS k WHERE k.owner = 'task' AND k.name = said.task AND k.key = said.key;
        END IF;
        IF until IS NOT NULL THEN
            -- Jobs that were claimed before it opened say nothing.
            IF until <= least(clock_timestamp(), said.claimed_at) THEN
                PERFORM {schema}.set_breaker(said.task, said.key, CASE WHEN said.failed THEN said.rest END, 'the probe');
            END IF;
        ELSIF said.failed AND said.counts THEN
            INSERT INTO {schema}.limit_state AS s (owner, name, key, failed_at)
            VALUES ('task', said.task, coalesce(said.key, ''), ARRAY[clock_timestamp()])
            ON CONFLICT (owner, name, key) DO UPDATE SET failed_at = trim_array(excluded.failed_at || s.failed_at,
                greatest(cardinality(s.failed_at) + 1 - said.failures, 0))
            RETURNING s.failed_at INTO times;
            IF cardinality(times) >= said.failures AND times[said.failures] > clock_timestamp() - said.per * interval '1 second' THEN
                PERFORM {schema}.set_breaker(said.task, said.key, said.rest, 'a worker');
            END IF;
        END IF;
    END LOOP;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.tell_breakers(bigint[], boolean[], boolean[], integer[], double precision[], double precision[]) FROM PUBLIC;

-- Closes breakers whose rest has been over for a day, and that no job probes: of tasks that are no longer in the code, and of keys without
-- jobs. While a breaker is not closed, all workers claim under limits. Returns how many were closed.
CREATE FUNCTION {schema}.forget_breakers() RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    of_task text;
    closed integer := 0;
BEGIN
    FOR of_task IN
        SELECT l.name FROM {schema}.job_limit AS l WHERE l.owner = 'task' AND l.broken_until < clock_timestamp() - interval '1 day'
        UNION SELECT k.name FROM {schema}.job_key AS k WHERE k.broken_until < clock_timestamp() - interval '1 day'
    LOOP
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtext('sa_jobqueue breakers ' || ({name} || '.job')::regclass::oid), hashtext(of_task));
        closed := closed + (SELECT count(*) FROM (
            SELECT b.key FROM (
                SELECT NULL::text AS key, l.broken_until FROM {schema}.job_limit AS l WHERE l.owner = 'task' AND l.name = of_task
                UNION ALL SELECT k.key, k.broken_until FROM {schema}.job_key AS k WHERE k.owner = 'task' AND k.name = of_task) AS b
            WHERE b.broken_until < clock_timestamp() - interval '1 day' AND NOT EXISTS (SELECT FROM {schema}.job WHERE job.status = 'running'
                AND job.task = of_task AND job.claimed_at >= b.broken_until AND (b.key IS NULL OR job.concurrency_key = b.key))
            LIMIT 1000) AS gone WHERE {schema}.set_breaker(of_task, gone.key, NULL, 'a worker'));
    END LOOP;
    RETURN closed;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.forget_breakers() FROM PUBLIC;

-- A gate, as those of `waking`: the second until which a worker waits for a permit of another.
CREATE SEQUENCE {schema}.gate_limit AS bigint MINVALUE 0 START WITH 0 NO CYCLE CACHE 1;
