SELECT stock.place,
    stock.number
FROM stock
WHERE EXISTS (
    SELECT 1
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.subject_type = %(param_1)s::VARCHAR
    AND sa_jobqueue.job.subject_id = CAST(jsonb_build_array(CAST(stock.place AS TEXT), stock.number) AS TEXT)
    AND sa_jobqueue.job.task = %(task_1)s::VARCHAR
)
