INSERT INTO sa_jobqueue.backlog (at, due, running, more, queue) VALUES (date_trunc('minute', now() + -30 * interval '1 second'), 0, 0, false, '') ON CONFLICT DO NOTHING
RETURNING (
    SELECT count(*) AS count_1
    FROM sa_jobqueue.backlog AS last
    WHERE last.at = (
        SELECT max(newest.at) AS max_1
        FROM sa_jobqueue.backlog AS newest
    )
    AND last.due >= %(due_1)s::INTEGER
) AS anon_1
