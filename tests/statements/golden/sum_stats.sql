SELECT sa_jobqueue.stat.queue,
    sa_jobqueue.stat.task,
    CAST(coalesce(sum(sa_jobqueue.stat.completed), 0) AS BIGINT) AS completed,
    CAST(coalesce(sum(sa_jobqueue.stat.retried), 0) AS BIGINT) AS retried,
    CAST(coalesce(sum(sa_jobqueue.stat.failed), 0) AS BIGINT) AS failed,
    CAST(coalesce(sum(sa_jobqueue.stat.cancelled), 0) AS BIGINT) AS cancelled,
    CAST(coalesce(sum(sa_jobqueue.stat.snoozed), 0) AS BIGINT) AS snoozed,
    CAST(coalesce(sum(sa_jobqueue.stat.suspended), 0) AS BIGINT) AS suspended,
    CAST(coalesce(sum(sa_jobqueue.stat.released), 0) AS BIGINT) AS released,
    CAST(coalesce(sum(sa_jobqueue.stat.rescued), 0) AS BIGINT) AS rescued,
    CAST(coalesce(sum(sa_jobqueue.stat.lost), 0) AS BIGINT) AS lost,
    coalesce(sum(sa_jobqueue.stat.run_seconds), 0.0) AS run_seconds,
    coalesce(sum(sa_jobqueue.stat.wait_seconds), 0.0) AS wait_seconds,
    CAST(ARRAY[coalesce(sum(runs[1]), 0), coalesce(sum(runs[2]), 0), coalesce(sum(runs[3]), 0), coalesce(sum(runs[4]), 0), coalesce(sum(runs[5]), 0), coalesce(sum(runs[6]), 0), coalesce(sum(runs[7]), 0), coalesce(sum(runs[8]), 0), coalesce(sum(runs[9]), 0), coalesce(sum(runs[10]), 0), coalesce(sum(runs[11]), 0), coalesce(sum(runs[12]), 0), coalesce(sum(runs[13]), 0), coalesce(sum(runs[14]), 0), coalesce(sum(runs[15]), 0), coalesce(sum(runs[16]), 0), coalesce(sum(runs[17]), 0), coalesce(sum(runs[18]), 0), coalesce(sum(runs[19]), 0)] AS bigint[]) AS runs,
    CAST(ARRAY[coalesce(sum(waits[1]), 0), coalesce(sum(waits[2]), 0), coalesce(sum(waits[3]), 0), coalesce(sum(waits[4]), 0), coalesce(sum(waits[5]), 0), coalesce(sum(waits[6]), 0), coalesce(sum(waits[7]), 0), coalesce(sum(waits[8]), 0), coalesce(sum(waits[9]), 0), coalesce(sum(waits[10]), 0), coalesce(sum(waits[11]), 0), coalesce(sum(waits[12]), 0), coalesce(sum(waits[13]), 0), coalesce(sum(waits[14]), 0), coalesce(sum(waits[15]), 0), coalesce(sum(waits[16]), 0), coalesce(sum(waits[17]), 0), coalesce(sum(waits[18]), 0), coalesce(sum(waits[19]), 0)] AS bigint[]) AS waits
FROM sa_jobqueue.stat
WHERE sa_jobqueue.stat.seconds IN (60, 3600)
AND sa_jobqueue.stat.at >= date_trunc('minute', now() + %(since_seconds)s * interval '1 second')
GROUP BY 1,
    2
ORDER BY 1,
    2
