UPDATE sa_jobqueue.worker
SET wanted=jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, CASE WHEN ((sa_jobqueue.worker.wanted ? %(wanted_1)s::VARCHAR)) THEN CAST(%(param_1)s::JSONB AS JSONB) ELSE coalesce(sa_jobqueue.worker.wanted[%(wanted_2)s::TEXT], CAST(%(param_1)s::JSONB AS JSONB)) END || CAST(%(param_2)s::JSONB AS JSONB))
WHERE sa_jobqueue.worker.id IN (
    SELECT sa_jobqueue.worker.id
    FROM sa_jobqueue.worker
    WHERE sa_jobqueue.worker.drain_requested_at IS NULL
    AND sa_jobqueue.worker.host = %(host_1)s::VARCHAR
    ORDER BY sa_jobqueue.worker.id
    FOR UPDATE
)
RETURNING sa_jobqueue.worker.id
