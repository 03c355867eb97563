SELECT sa_jobqueue.make_archive_months(ARRAY[now(), (date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC']) AS make_archive_months_1
