"""Commands that try the queue out, each in a schema that it makes for itself, so that nothing of the user's is touched."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import DropSchema

from ..errors import JobQueueError
from ..util.schema import SCHEMA
from ..worker.connections.pool import refuse_pooler


def scratch_engine(url: str | sa.URL, schema: str, **options: Any) -> sa.Engine:
    """An engine that finds our tables in `schema`."""
    return sa.create_engine(url, execution_options={"schema_translate_map": {SCHEMA: schema}}, **options)


@contextmanager
def only_one(what: str, url: sa.URL, schema: str) -> Generator[None]:
    """Keep a second process, called `what` in the message, from using `schema` meanwhile.

    Raises JobQueueError if another run already uses it.
    """
    lock = sa.select(sa.func.pg_try_advisory_lock(sa.func.hashtext(schema)))
    with sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT").connect() as connection:
        refuse_pooler(connection)
        if not connection.scalar(lock):
            raise JobQueueError(
                f"another {what} is running in this database: wait for its end, or give another with --database-url"
            )
        yield


def drop_scratch(connection: sa.Connection, schema: str) -> None:
    """Drop `schema` with all that is in it. A killed worker's server process may keep locks there for a moment."""
    connection.execute(sa.text("SET LOCAL lock_timeout = '20s'"))
    connection.execute(DropSchema(schema, cascade=True, if_exists=True))
