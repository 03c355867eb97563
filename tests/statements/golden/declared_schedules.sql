SELECT sa_jobqueue.schedule.name,
    sa_jobqueue.schedule.definitions[cardinality(sa_jobqueue.schedule.definitions)] AS current,
    date_part('epoch', now()) - date_part('epoch', sa_jobqueue.schedule.declared_at) AS age,
    sa_jobqueue.schedule.paused_by = 'undeclared' AS undeclared
FROM sa_jobqueue.schedule
WHERE sa_jobqueue.schedule.name = any(CAST(%(schedule_names)s::VARCHAR AS TEXT[]))
