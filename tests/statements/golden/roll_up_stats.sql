WITH "old" AS MATERIALIZED (
    SELECT sa_jobqueue.stat.seconds AS seconds,
        sa_jobqueue.stat.at AS at,
        sa_jobqueue.stat.queue AS queue,
        sa_jobqueue.stat.task AS task
    FROM sa_jobqueue.stat
    WHERE sa_jobqueue.stat.seconds = 60
    AND sa_jobqueue.stat.at < now() + %(keep_seconds)s * interval '1 second'
    ORDER BY sa_jobqueue.stat.seconds,
        sa_jobqueue.stat.at,
        sa_jobqueue.stat.queue,
        sa_jobqueue.stat.task
    LIMIT %(page)s::INTEGER
    FOR UPDATE SKIP LOCKED
),
    moved AS (
    DELETE
    FROM sa_jobqueue.stat
    USING "old"
    WHERE sa_jobqueue.stat.seconds = "old".seconds
    AND sa_jobqueue.stat.at = "old".at
    AND sa_jobqueue.stat.queue = "old".queue
    AND sa_jobqueue.stat.task = "old".task
    RETURNING sa_jobqueue.stat.seconds,
        sa_jobqueue.stat.at,
        sa_jobqueue.stat.queue,
        sa_jobqueue.stat.task,
        sa_jobqueue.stat.completed,
        sa_jobqueue.stat.retried,
        sa_jobqueue.stat.failed,
        sa_jobqueue.stat.cancelled,
        sa_jobqueue.stat.snoozed,
        sa_jobqueue.stat.suspended,
        sa_jobqueue.stat.released,
        sa_jobqueue.stat.rescued,
        sa_jobqueue.stat.lost,
        sa_jobqueue.stat.run_seconds,
        sa_jobqueue.stat.wait_seconds,
        sa_jobqueue.stat.runs,
        sa_jobqueue.stat.waits
),
    added AS (INSERT INTO sa_jobqueue.stat (seconds, at, queue, task, completed, retried, failed, cancelled, snoozed, suspended, released, rescued, lost, run_seconds, wait_seconds, runs, waits) SELECT 3600, date_trunc('hour', moved.at, 'UTC') AS date_trunc_1, moved.queue AS queue, moved.task AS task, CAST(coalesce(sum(moved.completed), 0) AS BIGINT) AS completed, CAST(coalesce(sum(moved.retried), 0) AS BIGINT) AS retried, CAST(coalesce(sum(moved.failed), 0) AS BIGINT) AS failed, CAST(coalesce(sum(moved.cancelled), 0) AS BIGINT) AS cancelled, CAST(coalesce(sum(moved.snoozed), 0) AS BIGINT) AS snoozed, CAST(coalesce(sum(moved.suspended), 0) AS BIGINT) AS suspended, CAST(coalesce(sum(moved.released), 0) AS BIGINT) AS released, CAST(coalesce(sum(moved.rescued), 0) AS BIGINT) AS rescued, CAST(coalesce(sum(moved.lost), 0) AS BIGINT) AS lost, coalesce(sum(moved.run_seconds), 0.0) AS run_seconds, coalesce(sum(moved.wait_seconds), 0.0) AS wait_seconds, CAST(ARRAY[coalesce(sum(runs[1]), 0), coalesce(sum(runs[2]), 0), coalesce(sum(runs[3]), 0), coalesce(sum(runs[4]), 0), coalesce(sum(runs[5]), 0), coalesce(sum(runs[6]), 0), coalesce(sum(runs[7]), 0), coalesce(sum(runs[8]), 0), coalesce(sum(runs[9]), 0), coalesce(sum(runs[10]), 0), coalesce(sum(runs[11]), 0), coalesce(sum(runs[12]), 0), coalesce(sum(runs[13]), 0), coalesce(sum(runs[14]), 0), coalesce(sum(runs[15]), 0), coalesce(sum(runs[16]), 0), coalesce(sum(runs[17]), 0), coalesce(sum(runs[18]), 0), coalesce(sum(runs[19]), 0)] AS bigint[]) AS runs, CAST(ARRAY[coalesce(sum(waits[1]), 0), coalesce(sum(waits[2]), 0), coalesce(sum(waits[3]), 0), coalesce(sum(waits[4]), 0), coalesce(sum(waits[5]), 0), coalesce(sum(waits[6]), 0), coalesce(sum(waits[7]), 0), coalesce(sum(waits[8]), 0), coalesce(sum(waits[9]), 0), coalesce(sum(waits[10]), 0), coalesce(sum(waits[11]), 0), coalesce(sum(waits[12]), 0), coalesce(sum(waits[13]), 0), coalesce(sum(waits[14]), 0), coalesce(sum(waits[15]), 0), coalesce(sum(waits[16]), 0), coalesce(sum(waits[17]), 0), coalesce(sum(waits[18]), 0), coalesce(sum(waits[19]), 0)] AS bigint[]) AS waits FROM moved GROUP BY date_trunc('hour', moved.at, 'UTC'), moved.queue, moved.task ORDER BY date_trunc('hour', moved.at, 'UTC'), moved.queue, moved.task ON CONFLICT (seconds, at, queue, task) DO UPDATE SET completed = (sa_jobqueue.stat.completed + excluded.completed), retried = (sa_jobqueue.stat.retried + excluded.retried), failed = (sa_jobqueue.stat.failed + excluded.failed), cancelled = (sa_jobqueue.stat.cancelled + excluded.cancelled), snoozed = (sa_jobqueue.stat.snoozed + excluded.snoozed), suspended = (sa_jobqueue.stat.suspended + excluded.suspended), released = (sa_jobqueue.stat.released + excluded.released), rescued = (sa_jobqueue.stat.rescued + excluded.rescued), lost = (sa_jobqueue.stat.lost + excluded.lost), run_seconds = (sa_jobqueue.stat.run_seconds + excluded.run_seconds), wait_seconds = (sa_jobqueue.stat.wait_seconds + excluded.wait_seconds), runs = ARRAY[sa_jobqueue.stat.runs[1] + excluded.runs[1], sa_jobqueue.stat.runs[2] + excluded.runs[2], sa_jobqueue.stat.runs[3] + excluded.runs[3], sa_jobqueue.stat.runs[4] + excluded.runs[4], sa_jobqueue.stat.runs[5] + excluded.runs[5], sa_jobqueue.stat.runs[6] + excluded.runs[6], sa_jobqueue.stat.runs[7] + excluded.runs[7], sa_jobqueue.stat.runs[8] + excluded.runs[8], sa_jobqueue.stat.runs[9] + excluded.runs[9], sa_jobqueue.stat.runs[10] + excluded.runs[10], sa_jobqueue.stat.runs[11] + excluded.runs[11], sa_jobqueue.stat.runs[12] + excluded.runs[12], sa_jobqueue.stat.runs[13] + excluded.runs[13], sa_jobqueue.stat.runs[14] + excluded.runs[14], sa_jobqueue.stat.runs[15] + excluded.runs[15], sa_jobqueue.stat.runs[16] + excluded.runs[16], sa_jobqueue.stat.runs[17] + excluded.runs[17], sa_jobqueue.stat.runs[18] + excluded.runs[18], sa_jobqueue.stat.runs[19] + excluded.runs[19]], waits = ARRAY[sa_jobqueue.stat.waits[1] + excluded.waits[1], sa_jobqueue.stat.waits[2] + excluded.waits[2], sa_jobqueue.stat.waits[3] + excluded.waits[3], sa_jobqueue.stat.waits[4] + excluded.waits[4], sa_jobqueue.stat.waits[5] + excluded.waits[5], sa_jobqueue.stat.waits[6] + excluded.waits[6], sa_jobqueue.stat.waits[7] + excluded.waits[7], sa_jobqueue.stat.waits[8] + excluded.waits[8], sa_jobqueue.stat.waits[9] + excluded.waits[9], sa_jobqueue.stat.waits[10] + excluded.waits[10], sa_jobqueue.stat.waits[11] + excluded.waits[11], sa_jobqueue.stat.waits[12] + excluded.waits[12], sa_jobqueue.stat.waits[13] + excluded.waits[13], sa_jobqueue.stat.waits[14] + excluded.waits[14], sa_jobqueue.stat.waits[15] + excluded.waits[15], sa_jobqueue.stat.waits[16] + excluded.waits[16], sa_jobqueue.stat.waits[17] + excluded.waits[17], sa_jobqueue.stat.waits[18] + excluded.waits[18], sa_jobqueue.stat.waits[19] + excluded.waits[19]] RETURNING sa_jobqueue.stat.seconds)
SELECT count(*) AS count_1
FROM moved
