SELECT count(*) AS count_1
FROM (
    SELECT sa_jobqueue.limit_state.owner AS owner
    FROM sa_jobqueue.limit_state
    ORDER BY sa_jobqueue.limit_state.owner,
        sa_jobqueue.limit_state.name,
        sa_jobqueue.limit_state.key
    LIMIT %(cap)s::INTEGER
) AS page
