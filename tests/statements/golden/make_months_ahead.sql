SELECT sa_jobqueue.make_archive_months(ARRAY[now(), now() + interval '1 month']) AS make_archive_months_1
