"""Indexes that are built while the table is in use: outside of transactions, and once more where a build broke off.

No version has one yet, so one is made up here.
"""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, text

from sa_jobqueue import migrations
from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.migrations import CURRENT, VERSIONS, current_version, downgrade_database, steps, upgrade_database

NEXT = SimpleNamespace(
    COMPATIBLE_WITH=VERSIONS[CURRENT].COMPATIBLE_WITH,
    UP=("ALTER TABLE {schema}.job ADD COLUMN shard integer",),
    BUILT_ALONE={
        "job_shard_idx": "CREATE INDEX CONCURRENTLY IF NOT EXISTS job_shard_idx ON {schema}.job (shard) "
        "WHERE status = 'queued'"
    },
    DOWN=("ALTER TABLE {schema}.job DROP COLUMN shard",),
)


@pytest.fixture(autouse=True)
def next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "VERSIONS", MappingProxyType({**VERSIONS, CURRENT + 1: NEXT}))
    monkeypatch.setattr(steps, "CURRENT", CURRENT + 1)


@pytest.fixture
def current(empty_engine: Engine) -> Engine:
    """An engine on a database with the version before it."""
    upgrade_database(empty_engine, to=CURRENT)
    return empty_engine


def indexes(connection: Connection, schema: str = "sa_jobqueue") -> dict[str, bool]:
    """Those of the made-up version, and whether they are valid."""
    found = connection.execute(
        text(
            "SELECT relname, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
            "WHERE relname = 'job_shard_idx' AND relnamespace = to_regnamespace(:schema)"
        ),
        {"schema": f'"{schema}"'},
    )
    return {row.relname: row.indisvalid for row in found}


def invalidate(engine: Engine) -> None:
    """As an interrupted build leaves it."""
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'sa_jobqueue.job_shard_idx'::regclass")
        )


@pytest.mark.parametrize("schema", ["sa_jobqueue", "My Jobs"])
def test_an_index_is_built_and_goes_again(empty_engine: Engine, schema: str) -> None:
    """From nothing, and a second time without doing anything."""
    for _ in range(2):
        assert upgrade_database(empty_engine, to=CURRENT + 1, schema=schema) == CURRENT + 1
        with empty_engine.connect() as connection:
            assert indexes(connection, schema) == {"job_shard_idx": True}
    assert downgrade_database(empty_engine, schema=schema) == 0


def test_an_index_is_built_beside_an_open_transaction_that_reads(current: Engine, empty_database_url: str) -> None:
    """No lock that a reader or an INSERT would wait for is taken, and the URL is enough."""
    with current.connect() as reader:
        reader.execute(text("SELECT pg_advisory_xact_lock(1)"))
        assert upgrade_database(empty_database_url, to=CURRENT + 1) == CURRENT + 1
        assert indexes(reader) == {"job_shard_idx": True}


def test_an_interrupted_build_is_done_again(current: Engine) -> None:
    """The version is there already, its index is INVALID or missing: the next upgrade mends that."""
    upgrade_database(current, to=CURRENT + 1)
    invalidate(current)
    upgrade_database(current, to=CURRENT + 1)
    with current.begin() as connection:
        assert indexes(connection) == {"job_shard_idx": True}
        connection.execute(text("DROP INDEX sa_jobqueue.job_shard_idx"))
    upgrade_database(current, to=CURRENT + 1)
    with current.connect() as connection:
        assert indexes(connection) == {"job_shard_idx": True}


def test_a_revision_of_alembics_commits_and_goes_on(current: Engine) -> None:
    """By the transaction that Alembic has for that; what comes after the index is in another one."""
    with current.connect() as connection:
        context = MigrationContext.configure(connection)
        with context.begin_transaction():
            migrations.upgrade(Operations(context), to=CURRENT + 1)
            connection.execute(text("CREATE TABLE public.after ()"))
        assert indexes(connection) == {"job_shard_idx": True}
        assert connection.scalar(text("SELECT to_regclass('public.after')")) is not None


def test_a_transaction_of_the_callers_is_not_committed(current: Engine) -> None:
    """The index cannot be built in it, which is said; where nothing is to build it is joined as ever."""
    with current.connect() as connection:
        connection.execute(text("CREATE TABLE public.mine ()"))
        with pytest.raises(ConfigurationError, match="give upgrade_database\\(\\) an engine or a URL"):
            upgrade_database(connection, to=CURRENT + 1)
        connection.rollback()
        assert current_version(connection) == CURRENT
        assert connection.scalar(text("SELECT to_regclass('public.mine')")) is None

    automatic: Any = current.execution_options(isolation_level="AUTOCOMMIT")
    with automatic.connect() as connection:
        assert upgrade_database(connection, to=CURRENT + 1) == CURRENT + 1
    with current.connect() as connection:
        assert upgrade_database(connection, to=CURRENT + 1) == CURRENT + 1
        assert indexes(connection) == {"job_shard_idx": True}


@pytest.mark.parametrize("source", ["sql", "alembic"])
def test_a_script_commits_before_the_index(current: Engine, source: str) -> None:
    """And begins again; it may be run twice."""
    if source == "sql":
        script = migrations.sql(CURRENT + 1)
    else:
        lines: list[str] = []
        buffer = SimpleNamespace(write=lines.append, flush=lambda: None)
        context = MigrationContext.configure(dialect_name="postgresql", opts={"as_sql": True, "output_buffer": buffer})
        with context.begin_transaction():
            migrations.upgrade(Operations(context), to=CURRENT + 1)
        script = "".join(lines)

    before, _, rest = script.partition("CREATE INDEX CONCURRENTLY")
    assert before.rstrip().endswith("COMMIT;")
    assert rest.partition(";")[2].strip().startswith("BEGIN;")
    statements = [one for one in script.split(";\n\n") if one.strip()]
    with current.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        cursor = connection.connection.cursor()
        for statement in statements * 2:
            cursor.execute(statement.strip())
        assert indexes(connection) == {"job_shard_idx": True}
