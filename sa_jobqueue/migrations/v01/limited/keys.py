"""The keys that get a turn, and what their limits leave."""

from __future__ import annotations

from .texts import BEGUN_AND_LATER, HAS_STATES, next_at, owed_of, room_of, running_of_key

__all__ = ["ALIKE", "LOCKED_KEYS", "NEXT_KEYS", "NOTED", "ROOMS"]

_LOWEST = "coalesce(CASE WHEN s.version = rule.version AND rule.key_running IS NOT NULL THEN s.lowest_id END, 0)"

# fmt: off
# The next keys with ready jobs: those behind the one at which the last claim stopped, then those up to it. The jobs
# without a key are one of them, ''.
NEXT_KEYS = """
bound := least(room + room / 8 + 8, 256);
keys := '{{}}'; priorities := '{{}}'; times := '{{}}'; firsts := '{{}}';
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
""".strip()

# Where nothing is said of any key, each may start as many as there is room for.
ALIKE = """
weights := array_fill(1, ARRAY[cardinality(keys)]); rooms := array_fill(1000000, ARRAY[cardinality(keys)]);
limits := rooms; key_units := array_fill(NULL::integer, ARRAY[cardinality(keys)]); key_owed := NULL; lows := NULL;
has_rates := false; slow := false;
""".strip()

# Which of them may start jobs at all. Those with limits of their own are locked, and none is waited for.
LOCKED_KEYS = """
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
""".strip()

# How many each may start. This statement is younger than the locks, so it sees all that runs.
ROOMS = f"""
began := clock_timestamp();
has_states := {HAS_STATES};
SELECT array_agg(r.room) AS rooms, array_agg(r.units) AS units,
    array_agg(r.lowest) AS lowest, array_agg(r.lowest_id) AS known_lowest,
    array_agg(r.owed) AS owed,
    coalesce(bool_or(r.full), false) AS full, min(r.again_at) FILTER (WHERE r.again_at > clock) AS again_at
INTO answer FROM (
    SELECT c.number, c.running <= n.runs AS full, n.lowest, o.owed, CASE WHEN s.version = rule.version AND rule.key_running IS NOT NULL THEN s.lowest_id END AS lowest_id,
        CASE WHEN s.blocked_until > clock
                -- A job that waits to be tried again keeps its key closed, and so does one that is due and not yet among the ready ones.
                OR rule."strict" AND c.key >= chr(2) COLLATE "C" AND (c.key = ANY (late_keys) OR EXISTS (SELECT FROM {{schema}}.job
                    WHERE job.concurrency_key = c.key AND {BEGUN_AND_LATER} AND job.queue = this)) THEN 0
            WHEN c.running IS NULL THEN 1000000 ELSE greatest(c.running - n.runs, 0) END AS room,
        {room_of("o.owed", "c.burst")} AS units,
        greatest(s.blocked_until, {next_at("o.owed", "c.")}) AS again_at
    FROM unnest(keys, answer.running, answer.counts, answer.spans, answer.bursts) WITH ORDINALITY
        AS c (key, running, count, seconds, burst, number)
    LEFT JOIN LATERAL (SELECT * FROM {{schema}}.limit_state AS s
        WHERE s.owner = 'queue' AND s.name = this AND s.key = c.key AND c.key <> '' AND has_states OFFSET 0) AS s ON true
    CROSS JOIN LATERAL (SELECT {owed_of("s", "c.count", "c.seconds")} AS owed) AS o
    CROSS JOIN LATERAL (SELECT count(*) AS runs, min(o.id) AS lowest FROM (SELECT job.id FROM {{schema}}.job
        WHERE c.running IS NOT NULL AND job.queue = this AND {running_of_key("c.key", _LOWEST)}) AS o) AS n
    ORDER BY c.number) AS r;
-- Behind the entries of jobs that are done, which an old snapshot keeps, it pays to note where those that run begin.
slow := clock_timestamp() - began > interval '1 ms' + cardinality(keys) * interval '15 microseconds';
rooms := answer.rooms; limits := rooms; key_units := answer.units; lows := answer.lowest; known_lows := answer.known_lowest; key_owed := answer.owed;
permit := permit OR answer.full;
rate_at := least(rate_at, answer.again_at);
""".strip()

# Where the first of a key's running jobs is, for the next claim.
NOTED = """
IF (slow OR has_states) AND rule.key_running IS NOT NULL THEN
    INSERT INTO {schema}.limit_state AS s (owner, name, key, lowest_id, version)
    SELECT 'queue', this, k.key, k.lowest, rule.version
    FROM unnest(keys, taken, lows, known_lows) AS k (key, taken, lowest, known)
    WHERE k.taken > 0 AND k.key >= chr(2) COLLATE "C" AND (k.lowest < k.known OR (slow AND random() < 0.2))
    ORDER BY k.key
    ON CONFLICT (owner, name, key) DO UPDATE SET lowest_id = excluded.lowest_id, version = excluded.version;
END IF;
""".strip()
# fmt: on
