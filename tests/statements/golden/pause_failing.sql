UPDATE sa_jobqueue.schedule
SET paused_at=now(),
    paused_by='failures',
    pause_reason=concat('its last ', sa_jobqueue.schedule.pause_after, ' jobs have failed')
WHERE sa_jobqueue.schedule.id = any(CAST(%(schedule_ids)s::VARCHAR AS BIGINT[]))
AND sa_jobqueue.schedule.paused_at IS NULL
RETURNING sa_jobqueue.schedule.name,
    sa_jobqueue.schedule.pause_after
