SELECT sa_jobqueue.drop_archive_month(%(kept)s::INTEGER) AS drop_archive_month_1
