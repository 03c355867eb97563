"""The environment, as the page about own tables has it."""

import os

from alembic import context
from lending import Base, Job
from sqlalchemy import NullPool, create_engine

from sa_jobqueue.migrations import OwnTable

own = OwnTable(Job)

with create_engine(os.environ["SA_JOBQUEUE_DATABASE_URL"], poolclass=NullPool).connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        include_schemas=True,
        include_object=own.include_object,
        process_revision_directives=own.process_revision_directives,
    )
    with context.begin_transaction():
        context.run_migrations()
