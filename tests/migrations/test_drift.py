"""What the migrations made is what the models say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, text

from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.models import Base
from tests.migrations import catalog


@pytest.fixture
def connection(empty_engine: Engine) -> Iterator[Connection]:
    """One schema made by migrations, another, `by_models`, by `create_all`."""
    upgrade_database(empty_engine)
    with empty_engine.connect() as connection:
        connection.execute(text("CREATE SCHEMA by_models"))
        Base.metadata.create_all(
            connection.execution_options(schema_translate_map={"sa_jobqueue": "by_models"}), checkfirst=False
        )
        yield connection.execution_options(schema_translate_map=None)


def drift(connection: Connection) -> set[str]:
    return set(catalog.differences(catalog.tables(connection), catalog.tables(connection, "by_models")))


def test_the_models_and_the_migrations_agree(connection: Connection) -> None:
    """Columns, types, defaults and identity, constraints, indexes, storage options."""
    assert catalog.differences(catalog.tables(connection), catalog.tables(connection, "by_models")) == {}


#: Changes of one side, and the difference that each of them makes.
CHANGES = [
    ("ALTER TABLE sa_jobqueue.job ALTER priority SET DEFAULT 5", "column job.priority"),
    ("ALTER TABLE sa_jobqueue.job ALTER priority TYPE integer", "column job.priority"),
    ("ALTER TABLE sa_jobqueue.job ALTER meta DROP NOT NULL", "column job.meta"),
    ("ALTER TABLE sa_jobqueue.job ALTER id SET GENERATED ALWAYS", "column job.id"),
    ("ALTER TABLE sa_jobqueue.job ADD extra text", "column job.extra"),
    ("ALTER TABLE sa_jobqueue.job DROP result", "columns of job"),
    ("ALTER TABLE sa_jobqueue.job RESET (fillfactor)", "table job"),
    ("ALTER TABLE sa_jobqueue.job DROP CONSTRAINT job_priority_check", "constraint job_priority_check"),
    (
        """
        ALTER TABLE sa_jobqueue.job DROP CONSTRAINT job_priority_check;
        ALTER TABLE sa_jobqueue.job ADD CONSTRAINT job_priority_check CHECK (priority BETWEEN 0 AND 8)
        """,
        "constraint job_priority_check",
    ),
    ("ALTER INDEX sa_jobqueue.job_claim_idx SET (fillfactor = 70)", "index job_claim_idx"),
    ("ALTER INDEX sa_jobqueue.job_pkey RESET (fillfactor)", "index job_pkey"),
    (
        """
        DROP INDEX sa_jobqueue.job_running_idx;
        CREATE INDEX job_running_idx ON sa_jobqueue.job (id) WHERE status = 'queued'
        """,
        "index job_running_idx",
    ),
    ("CREATE TABLE sa_jobqueue.extra ()", "table extra"),
]


def test_a_change_on_one_side_alone_is_seen(connection: Connection) -> None:
    """The comparison above can fail: each of these makes it."""
    unseen = []
    for change, difference in CHANGES:
        with connection.begin_nested() as savepoint:
            connection.execute(text(change))
            if difference not in drift(connection):
                unseen.append(change)
            savepoint.rollback()
    assert not unseen


def test_alembic_sees_no_difference_either(connection: Connection) -> None:
    """Its comparison misses CHECKs, predicates and options, but reads types and defaults in its own way.

    Except for two defaults, which the models leave to the DDL: an INSERT would return them.
    """
    connection.execute(text("DROP SCHEMA by_models CASCADE"))
    context = MigrationContext.configure(
        connection,
        opts={
            "include_schemas": True,
            "include_name": lambda name, type_, _: type_ != "schema" or name == "sa_jobqueue",
            "compare_type": True,
            "compare_server_default": True,
        },
    )
    ((_, _, *errors_default), (_, _, *status_default)) = sorted(
        (change for (change,) in compare_metadata(context, Base.metadata)), key=lambda change: change[3]
    )
    assert (errors_default[:2], status_default[:2]) == (["job", "errors"], ["job", "status"])
