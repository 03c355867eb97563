SELECT sa_jobqueue.make_archive_months(array((
        SELECT least(greatest(coalesce(sa_jobqueue.job.finished_at, now()), to_timestamp(0)), now()) AS least_1
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.purge_at <= now()
        AND sa_jobqueue.job.purge_at >= to_timestamp(%(after)s)
        AND sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')
        ORDER BY sa_jobqueue.job.purge_at
        LIMIT %(page)s::INTEGER
    )
)) AS make_archive_months_1
