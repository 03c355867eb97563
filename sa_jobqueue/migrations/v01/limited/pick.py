"""The function itself: its variables, its loops, and the order of its steps.

It goes once over each queue. There it walks the ring of keys until it has found as many jobs as are wanted or all keys have had their turn:
some keys at a time, and some jobs of each.
"""

from __future__ import annotations

from .jobs import ASKED, FOUND, TAKEN
from .keys import ALIKE, LOCKED_KEYS, NEXT_KEYS, NOTED, ROOMS
from .left import LEFT, WAITING
from .owners import LOCKS, QUEUE, TASKS
from .texts import inside
from .written import DROPPED, GATE, READIED, SAID, USED

__all__ = ["PICK"]

# fmt: off
# OFFSET 0 is a fence: what is looked up for each key is looked up by index, also by a plan that was made when there was nothing.
#
# The `concurrency_key` of a limited task's jobs that have no key is chr(1) and the task's name. All other keys are not below chr(2).
PICK = f"""
    CREATE FUNCTION {{schema}}.pick_limited(
        queue_names text[], wanted integer[], after_keys text[], had_turns integer[], limited_tasks text[], unknown_tasks text[], known bigint,
        but_ids bigint[], opener integer, freed boolean, visible pg_snapshot
    ) RETURNS TABLE (id bigint, at timestamptz, info text) LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
    SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
    #variable_conflict use_column
    DECLARE
        jobs regclass := ({{name}} || '.job')::regclass;
        owner_space integer := hashtext('sa_jobqueue owners ' || jobs::oid);
        key_space integer := hashtext('sa_jobqueue keys ' || jobs::oid);
        -- Of the caller's snapshot: the age of the first transaction that it knows nothing of, those that went on, and the caller's own.
        newest integer := age(pg_snapshot_xmax(visible)::xid);
        unfinished xid[] := ARRAY (SELECT x::xid FROM pg_snapshot_xip(visible) AS x);
        own xid := pg_current_xact_id_if_assigned()::xid;
        -- One time for all that is picked here, and for its claims.
        clock timestamptz;
        -- The limited tasks, side by side: what they may start, in all queues together.
        task_names text[] := '{{{{}}}}'; task_rooms integer[] := '{{{{}}}}'; task_units integer[] := '{{{{}}}}'; task_owed double precision[];
        by_key boolean := false; strict_tasks text[] := '{{{{}}}}'; drops boolean; any_permit boolean := false; tasks_at timestamptz;
        -- The queue: its limits, and what they leave.
        this text; rule record; state record; room integer; units_left integer; queue_owed double precision; lowest bigint; is_strict boolean;
        has_keys boolean; has_states boolean; alike boolean; late_keys text[]; behind text[]; away text[];
        -- Where the walk is.
        cursor_key text; inclusive boolean; from_key text; second_half boolean; circled boolean; bound integer; visits integer;
        visited text; seen text[];
        -- The keys that have a turn, side by side; the next three are of the first job of each.
        keys text[]; priorities smallint[]; times timestamptz[]; firsts bigint[]; weights integer[]; rooms integer[]; limits integer[];
        key_units integer[]; key_owed double precision[]; asked integer[]; taken integer[]; lows bigint[]; known_lows bigint[];
        has_rates boolean; has_any_rate boolean; began timestamptz; slow boolean; quantum integer; had integer;
        -- The jobs found for them, side by side, and the place of the first key that the queue's rate keeps waiting.
        ids bigint[]; places integer[]; tasks text[]; units integer[]; sures boolean[]; all_sure boolean; short integer;
        -- All that is picked: of this queue, and of all.
        picked bigint[]; of_keys text[]; of_tasks text[]; of_units integer[]; skipped bigint[];
        all_keys text[] := '{{{{}}}}'; all_tasks text[] := '{{{{}}}}'; all_units integer[] := '{{{{}}}}';
        -- What the worker is told.
        permit boolean; again boolean; rate_at timestamptz; next_at timestamptz; stopped text; turns integer;
        answer record; total integer; cell bigint; seconds bigint;
    BEGIN
        {inside(LOCKS, 8)}
        -- Another transaction may have a later time and come first: then a rate gives less, not more.
        clock := clock_timestamp();
        {inside(TASKS, 8)}
        drops := EXISTS (SELECT FROM {{schema}}.job_limit AS l WHERE (l.when_full <> 'wait' OR l.max_waiting IS NOT NULL)
            AND ((l.owner = 'queue' AND l.name = ANY (queue_names)) OR (l.owner = 'task' AND l.name = ANY (limited_tasks))));
        FOR place IN 1 .. cardinality(queue_names) LOOP
            this := queue_names[place];
            room := wanted[place];
            cursor_key := coalesce(after_keys[place], '');
            -- Whether the key at which the last claim stopped has turns left.
            inclusive := after_keys[place] IS NULL OR had_turns[place] > 0;
            stopped := cursor_key; turns := coalesce(had_turns[place], 0);
            visits := 0; again := false; permit := any_permit; rate_at := tasks_at; next_at := NULL; units_left := NULL; queue_owed := NULL; lowest := NULL;
            circled := false; visited := NULL; short := NULL;
            picked := '{{{{}}}}'; of_keys := '{{{{}}}}'; of_tasks := '{{{{}}}}'; of_units := '{{{{}}}}'; away := '{{{{}}}}'; skipped := '{{{{}}}}'; seen := '{{{{}}}}';
            {inside(QUEUE, 12)}
            from_key := cursor_key; second_half := false;
            WHILE room > 0 AND NOT circled AND visits < 1000 LOOP
                -- 1. The keys that have a turn next.
                {inside(NEXT_KEYS, 16)}
                CONTINUE WHEN cardinality(keys) = 0;
                visited := keys[cardinality(keys)];
                -- 2. How many jobs each may start.
                IF alike THEN
                    {inside(ALIKE, 20)}
                ELSE
                    {inside(LOCKED_KEYS, 20)}
                    {inside(ROOMS, 20)}
                END IF;
                taken := array_fill(0, ARRAY[cardinality(keys)]); short := NULL;
                has_any_rate := units_left IS NOT NULL OR has_rates OR by_key OR cardinality(array_remove(task_units, NULL)) > 0;
                -- 3. The jobs. Where some keys have fewer, the others get more.
                FOR pass IN 1 .. 6 LOOP
                    {inside(ASKED, 20)}
                    {inside(FOUND, 20)}
                    EXIT WHEN ids IS NULL;
                    -- 4. What rates and the limits of tasks leave of them.
                    IF units_left IS NULL AND NOT has_rates AND NOT (tasks && task_names) THEN
                        picked := picked || ids;
                        room := room - cardinality(ids);
                    ELSE
                        {inside(LEFT, 24)}
                        {inside(WAITING, 24)}
                    END IF;
                    {inside(TAKEN, 20)}
                END LOOP;
                {inside(NOTED, 16)}
                EXIT WHEN short IS NOT NULL;
            END LOOP;
            IF short IS NULL AND room > 0 AND NOT circled AND visited IS NOT NULL THEN
                stopped := visited; turns := 0;
            END IF;
            -- 5. What is written, and told.
            {inside(DROPPED, 12)}
            {inside(USED, 12)}
            {inside(READIED, 12)}
            {inside(SAID, 12)}
        END LOOP;
        {inside(GATE, 8)}
    END
    $body$
    """
# fmt: on
