"""As projects write it that have mapped a job table. What a test varies comes through `config.attributes`."""

from alembic import context
from sqlalchemy import NullPool, create_engine

from sa_jobqueue.migrations import OwnTable
from tests.support.own_jobs import Base, Job

own = OwnTable(Job)
options = {
    "target_metadata": Base.metadata,
    "include_schemas": True,
    "include_object": own.include_object,
    "process_revision_directives": own.process_revision_directives,
}

if context.is_offline_mode():
    context.configure(url="postgresql://", **options)
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(context.config.attributes["url"], poolclass=NullPool).connect() as connection:
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()
