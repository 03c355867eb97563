SELECT sa_jobqueue.make_archive_months(array((
        SELECT least(greatest(coalesce(sa_jobqueue.job.finished_at, now()), to_timestamp(0)), now()) AS least_1
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.workflow_id = %(of_workflow)s::BIGINT
        AND sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')
        ORDER BY sa_jobqueue.job.id
        LIMIT %(page)s::INTEGER
    )
)) AS make_archive_months_1
