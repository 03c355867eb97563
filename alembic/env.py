"""Alembic's way into a database from a clone of this project: `alembic upgrade head`, `alembic downgrade base`.

The database is `-x url=…`, else `SA_JOBQUEUE_DATABASE_URL`, else the embedded server. The revisions only call
`sa_jobqueue.migrations`; Alembic's version table lies in the same schema as the rest.
"""

import logging
import os

from alembic import context
from alembic.operations import Operations
from alembic.util import CommandError
from sqlalchemy import URL, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import migrations
from sa_jobqueue.embedded import embedded_url
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.util.urls import database_url, mask_passwords


def main() -> None:
    if context.is_offline_mode():
        # No metadata: nothing is generated from the models, the DDL is frozen.
        context.configure(
            dialect_name="postgresql", target_metadata=None, version_table_schema=migrations.DEFAULT_SCHEMA
        )
        run()
    else:
        with create_engine(url(), poolclass=NullPool).connect() as connection:
            context.configure(
                connection=connection, target_metadata=None, version_table_schema=migrations.DEFAULT_SCHEMA
            )
            run()


def run() -> None:
    with context.begin_transaction():
        # Alembic makes its version table before it runs the first revision. Two that come at once are kept in line by
        # this too, because the lock is held until the transaction ends.
        migrations.create_schema(Operations(context.get_context()))
        context.run_migrations()


def url() -> URL:
    given = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get("SA_JOBQUEUE_DATABASE_URL")
    return database_url(given or embedded_url())


if not logging.getLogger().handlers:
    logging.basicConfig(format="%(message)s")
    logging.getLogger("alembic.runtime.migration").setLevel(logging.INFO)

try:
    main()
except (JobQueueError, DBAPIError) as error:  # a CommandError is what Alembic prints as one line
    reason = error.orig if isinstance(error, DBAPIError) else error
    raise CommandError(" ".join(mask_passwords(str(reason)).split())) from error
