SELECT CASE WHEN (octet_length(made.args) <= %(octet_length_1)s::INTEGER) THEN made.args END AS anon_1,
    CASE WHEN (octet_length(made.meta) <= %(octet_length_2)s::INTEGER) THEN made.meta END AS anon_2,
    octet_length(made.args) AS octet_length_3,
    octet_length(made.meta) AS octet_length_4
FROM (
    SELECT CAST(sa_jobqueue.job.args AS TEXT) AS args,
        CAST(sa_jobqueue.job.meta AS TEXT) AS meta
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = %(id_1)s::BIGINT
    LIMIT ALL OFFSET 0
) AS made
