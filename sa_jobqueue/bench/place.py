"""The place of a measurement: our tables in a schema that exists for the measurement only."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateSchema, CreateTable

from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.scratch import drop_scratch, only_one, scratch_engine

__all__ = ["SCHEMA", "Place", "open_engine", "place"]

SCHEMA = "sa_jobqueue_bench"

#: A table that marks the schema as ours.
_MARK = sa.Table("made_by_sa_jobqueue_bench", sa.MetaData(schema=SCHEMA), sa.Column("n", sa.Integer))


@dataclass(frozen=True)
class Place:
    """A database with empty job tables in the schema of the measurement."""

    url: sa.URL
    engine: sa.Engine

    @property
    def address(self) -> str:
        """The URL for another process."""
        return self.url.render_as_string(hide_password=False)

    @contextmanager
    def looking(self) -> Generator[sa.Connection]:
        """A connection in autocommit whose queries use indexes."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            # The planner's own choice would be to scan the table, beside what is measured.
            scans = ("enable_seqscan", "enable_bitmapscan")
            connection.execute(sa.select(*(sa.func.set_config(name, "off", False) for name in scans)))
            yield connection

    def settle(self) -> None:
        """Vacuum and analyze now, as autovacuum would later."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text(f"VACUUM ANALYZE {SCHEMA}.job"))


def open_engine(url: str | sa.URL, **options: Any) -> sa.Engine:
    """An engine that finds our tables in the schema of the measurement."""
    return scratch_engine(url, SCHEMA, **options)


@contextmanager
def place(url: sa.URL) -> Generator[Place]:
    """Make the schema, and drop it at the end, also after an error.

    Raises JobQueueError where another measurement runs in this database, or the schema is there and was not made here.
    """
    engine = open_engine(url)
    try:
        with only_one("benchmark", url, SCHEMA), _ending_in_order():
            _make(engine)
            try:
                upgrade_database(engine, schema=SCHEMA)
                yield Place(url, engine)
            finally:
                with engine.begin() as connection:
                    drop_scratch(connection, SCHEMA)
    finally:
        engine.dispose()


def _make(engine: sa.Engine) -> None:
    """Create the schema. One that a killed run has left is dropped first; any other is left alone."""
    with engine.begin() as connection:
        there = sa.select(
            sa.func.to_regnamespace(SCHEMA).is_not(None), sa.func.to_regclass(_MARK.fullname).is_not(None)
        )
        exists, ours = connection.execute(there).one()
        if exists and not ours:
            raise JobQueueError(
                f"the schema {SCHEMA!r} exists in this database and was not made by this command, so it is left alone: "
                "rename it, or give another database with --database-url"
            )
        drop_scratch(connection, SCHEMA)
        connection.execute(CreateSchema(SCHEMA))
        connection.execute(CreateTable(_MARK))


@contextmanager
def _ending_in_order() -> Generator[None]:
    """Let SIGTERM raise an exception, as Ctrl-C does, so that everything is cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
