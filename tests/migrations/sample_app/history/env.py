"""As projects write it. What a test varies comes through `config.attributes`."""

from alembic import context
from sqlalchemy import NullPool, create_engine

from tests.migrations.sample_app.shop import Base

given = context.config.attributes
options = {"target_metadata": Base.metadata, "compare_server_default": True, **given["options"]}

if context.is_offline_mode():
    context.configure(url="postgresql://", **options)
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(given["url"], poolclass=NullPool).connect() as connection:
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()
