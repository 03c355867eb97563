SELECT stray.workflows,
    stray.overdue
FROM sa_jobqueue.stray_workflows(%(page)s::INTEGER) AS stray(workflows, overdue)
