"""Up and down, once and twice, alone and at once, in any schema, through any driver."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, Integer, NullPool, Text, create_engine, func, literal, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import migrations
from sa_jobqueue.errors import ConfigurationError, JobQueueError, SchemaError
from sa_jobqueue.migrations import CURRENT, check_schema, current_version, downgrade_database, upgrade_database
from sa_jobqueue.models import Job, schema_function
from tests.migrations import catalog
from tests.support.databases import driver_url
from tests.support.nightly import nightly
from tests.support.waiting import wait_until

SCHEMAS = ["sa_jobqueue", "My Jobs", 'of "all" {kinds} :colons 100%s, it\'s']


@contextmanager
def operations(engine: Engine) -> Iterator[tuple[Connection, Operations]]:
    """A connection in a transaction, and what a revision that runs in it calls `op`."""
    with engine.connect() as connection:
        yield connection, Operations(MigrationContext.configure(connection))


def waiting_for_a_lock(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")) or 0


def everything(engine: Engine, schema: str = "sa_jobqueue") -> catalog.Definitions:
    with engine.connect() as connection:
        return catalog.everything(connection, schema)


@pytest.mark.parametrize("schema", [SCHEMAS[-1], *nightly(*SCHEMAS[:-1])])
def test_up_down_and_up_again_gives_the_same(empty_engine: Engine, schema: str) -> None:
    """A downgrade leaves nothing, the schema's name included, whatever that name is."""
    assert upgrade_database(empty_engine, schema=schema) == CURRENT
    first = everything(empty_engine, schema)
    with empty_engine.begin() as connection:
        make = schema_function(
            "make_archive_months", schema, func.array(select(func.now()).scalar_subquery()), of=Integer()
        )
        drop = schema_function("drop_archive_month", schema, literal(1), of=Text())
        assert connection.scalar(select(make)) == 1
        assert connection.scalar(select(drop)) is None

    assert downgrade_database(empty_engine, schema=schema) == 0
    with empty_engine.connect() as connection:
        assert current_version(connection, schema) is None
        assert schema not in connection.scalars(text("SELECT nspname FROM pg_namespace")).all()

    assert upgrade_database(empty_engine, schema=schema) == CURRENT
    assert everything(empty_engine, schema) == first
    assert {
        "table job",
        "table worker",
        "sequence gate_0",
        "sequence gate_15",
        "sequence gate_any",
        "trigger job_wake",
    } <= first.keys()


def test_every_version_can_be_reached_and_left(empty_engine: Engine) -> None:
    """One step at a time, up and down; going down comes by the schemas that going up came by."""
    seen = {}
    for version in range(1, CURRENT + 1):
        assert upgrade_database(empty_engine, to=version) == version
        seen[version] = everything(empty_engine)
    for version in range(CURRENT - 1, 0, -1):
        assert downgrade_database(empty_engine, to=version) == version
        assert everything(empty_engine) == seen[version]


def test_a_second_upgrade_does_nothing(empty_engine: Engine) -> None:
    """Also when it asks for less than is there."""
    upgrade_database(empty_engine)
    with empty_engine.begin() as connection:
        connection.execute(text("INSERT INTO sa_jobqueue.job (task) VALUES ('kept')"))
        applied = connection.execute(text("SELECT * FROM sa_jobqueue.schema_version")).all()

    upgrade_database(empty_engine)
    upgrade_database(empty_engine, to=1)

    with empty_engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM sa_jobqueue.job")) == 1
        assert connection.execute(text("SELECT * FROM sa_jobqueue.schema_version")).all() == applied


def test_a_second_downgrade_does_nothing(empty_engine: Engine) -> None:
    """Neither does one where we never were; a table of another's that bears our name is left alone."""
    assert downgrade_database(empty_engine) == 0
    with empty_engine.begin() as connection:
        connection.execute(text("CREATE TABLE public.schema_version (version integer)"))
    assert downgrade_database(empty_engine, schema="public") == 0
    with empty_engine.connect() as connection:
        assert connection.scalar(text("SELECT to_regclass('public.schema_version')")) is not None


def test_what_is_not_ours_stays_in_the_schema(empty_engine: Engine) -> None:
    """A table that the user put beside ours survives, and so does the schema around it."""
    upgrade_database(empty_engine)
    with empty_engine.begin() as connection:
        connection.execute(text("CREATE TABLE sa_jobqueue.theirs ()"))
    downgrade_database(empty_engine)
    assert everything(empty_engine).keys() == {"table theirs"}


def test_a_connection_of_the_caller_stays_in_its_transaction(empty_engine: Engine) -> None:
    """Given a Connection, the upgrade is the caller's to commit or roll back, and its settings are as before."""
    with empty_engine.connect() as connection:
        connection.execute(text("SET LOCAL search_path = public"))
        assert upgrade_database(connection) == CURRENT
        assert connection.scalar(text("SHOW lock_timeout")) == "0"
        assert connection.scalar(text("SHOW search_path")) == "public"
        connection.rollback()
        assert current_version(connection) is None


def test_autocommit_is_no_trap(empty_engine: Engine) -> None:
    """On an AUTOCOMMIT engine, or connection, a step is still done wholly or not at all."""
    automatic = empty_engine.execution_options(isolation_level="AUTOCOMMIT")
    assert upgrade_database(automatic) == CURRENT
    with automatic.connect() as connection:
        assert downgrade_database(connection) == 0
        connection.execute(text("CREATE SCHEMA sa_jobqueue; CREATE SEQUENCE sa_jobqueue.gate_9"))
        with pytest.raises(JobQueueError):
            upgrade_database(connection)
        assert everything(empty_engine).keys() == {"sequence gate_9"}


def test_two_upgrades_at_once_do_the_work_once(empty_engine: Engine) -> None:
    """The second waits for the first, finds nothing left to do, and both succeed."""
    with ThreadPoolExecutor() as threads, empty_engine.connect() as first:
        upgrade_database(first)
        second = threads.submit(upgrade_database, empty_engine)
        wait_until(lambda: waiting_for_a_lock(empty_engine) == 1)
        first.commit()
        assert second.result() == CURRENT
    with empty_engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM sa_jobqueue.schema_version")) == CURRENT


def test_an_upgrade_that_waited_sees_what_was_done_meanwhile(empty_engine: Engine) -> None:
    """On an engine whose transactions see one snapshot, too."""
    repeatable = empty_engine.execution_options(isolation_level="REPEATABLE READ")
    with ThreadPoolExecutor() as threads, empty_engine.connect() as first:
        upgrade_database(first)
        second = threads.submit(upgrade_database, repeatable)
        wait_until(lambda: waiting_for_a_lock(empty_engine) == 1)
        first.commit()
        assert second.result() == CURRENT


def test_a_schema_can_be_upgraded_while_another_is(empty_engine: Engine) -> None:
    """The lock is the schema's, not the database's."""
    with empty_engine.connect() as first:
        upgrade_database(first, schema="one")
        upgrade_database(empty_engine, schema="two")


def test_waiting_too_long_is_said_in_one_line(empty_engine: Engine, empty_database_url: str) -> None:
    """The session's own lock_timeout is respected; the message says what was in the way and what to do."""
    hurried = create_engine(empty_database_url, poolclass=NullPool, connect_args={"options": "-c lock_timeout=50ms"})
    with empty_engine.connect() as first:
        upgrade_database(first)
        with pytest.raises(JobQueueError, match=r"'sa_jobqueue': .*lock timeout.*run it again") as caught:
            upgrade_database(hurried)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, DBAPIError)


def test_a_table_in_use_stops_a_downgrade(empty_engine: Engine, empty_database_url: str) -> None:
    """It neither waits for ever nor leaves half of it done."""
    upgrade_database(empty_engine)
    hurried = create_engine(empty_database_url, poolclass=NullPool, connect_args={"options": "-c lock_timeout=50ms"})
    before = everything(empty_engine)
    with empty_engine.connect() as reader:
        reader.execute(text("SELECT FROM sa_jobqueue.worker"))
        with pytest.raises(JobQueueError, match="a table is in use"):
            downgrade_database(hurried)
    assert everything(empty_engine) == before


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_an_upgrade_runs_over_any_sync_driver(empty_database_url: str, driver: str, role: str) -> None:
    """Its errors are understood there too."""
    engine = create_engine(driver_url(empty_database_url, driver), poolclass=NullPool)
    with engine.connect() as connection:
        connection.execute(text(f"SET LOCAL ROLE {role}"))
        with pytest.raises(JobQueueError, match="permission denied for database"):
            upgrade_database(connection)
    assert upgrade_database(engine, schema="100% of: {it}") == CURRENT
    assert downgrade_database(engine, schema="100% of: {it}") == 0


async def test_an_upgrade_runs_over_asyncpg(empty_database_url: str, role: str) -> None:
    """`await connection.run_sync(upgrade_database)` is all."""
    engine = create_async_engine(driver_url(empty_database_url, "asyncpg"), poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.execute(text(f"SET LOCAL ROLE {role}"))
        with pytest.raises(JobQueueError, match="permission denied for database"):
            await connection.run_sync(upgrade_database)
    async with engine.begin() as connection:
        assert await connection.run_sync(upgrade_database) == CURRENT
    await engine.dispose()


def test_without_the_right_to_create_a_schema_the_message_says_so(empty_engine: Engine, role: str) -> None:
    """A GRANT is named, and the role's transaction made nothing."""
    with empty_engine.connect() as connection:
        connection.execute(text(f"SET ROLE {role}"))
        with pytest.raises(JobQueueError, match=r"permission denied for database .*GRANT CREATE ON DATABASE"):
            upgrade_database(connection)
    assert everything(empty_engine) == {}


def test_a_schema_that_was_made_beforehand_is_enough(empty_engine: Engine, role: str) -> None:
    """A role that owns the schema, but may make none, can migrate; a downgrade leaves it the schema."""
    with empty_engine.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA sa_jobqueue AUTHORIZATION {role}; SET ROLE {role}"))
        for _ in range(2):
            assert upgrade_database(connection) == CURRENT
            assert downgrade_database(connection) == 0


def test_a_table_that_no_migration_made_is_not_taken_for_ours(empty_engine: Engine) -> None:
    """Tables made by `create_all`, say: the message says that something is in the way."""
    with empty_engine.connect() as connection:
        connection.execute(text("CREATE SCHEMA sa_jobqueue; CREATE TABLE sa_jobqueue.job ()"))
        with pytest.raises(JobQueueError, match=r'"job" already exists: .*no migration made'):
            upgrade_database(connection)


def test_names_in_the_search_path_do_not_stand_in_for_built_in_ones(empty_engine: Engine) -> None:
    """A role that may write to a schema of the path gains nothing when an owner migrates."""
    with empty_engine.connect() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql RETURN 'epoch'::timestamptz;"
                "CREATE FUNCTION public.to_regclass(text) RETURNS regclass LANGUAGE sql RETURN 'pg_class'::regclass;"
                "CREATE DOMAIN public.timestamptz AS text;"
                "SET LOCAL search_path = public, pg_catalog"
            )
        )
        upgrade_database(connection)
        connection.execute(text("SET LOCAL search_path = pg_catalog"))
        evil = catalog.everything(connection)
        connection.rollback()
    upgrade_database(empty_engine)
    with empty_engine.connect() as connection:
        connection.execute(text("SET LOCAL search_path = pg_catalog"))
        assert catalog.differences(evil, catalog.everything(connection)) == {}


def test_the_schema_can_be_said_once_by_the_translate_map(empty_engine: Engine) -> None:
    """Migration, check and the models follow the engine's map; nothing is made under the usual name."""
    mapped = empty_engine.execution_options(schema_translate_map={"sa_jobqueue": "My Jobs"})
    assert upgrade_database(mapped) == CURRENT
    with Session(mapped) as session:
        check_schema(session.connection())
        session.add(Job(task="there"))
        session.commit()
        assert session.scalars(select(Job.task)).all() == ["there"]
    with operations(mapped) as (connection, op):
        migrations.downgrade(op)
        migrations.upgrade(op, to=1)
        connection.commit()
    assert everything(empty_engine) == {}
    assert "table job" in everything(empty_engine, "My Jobs")


def test_a_translate_map_to_the_default_schema_is_followed(empty_engine: Engine) -> None:
    """None is SQLAlchemy's word for it. The schema `public` is not ours to drop."""
    mapped = empty_engine.execution_options(schema_translate_map={"sa_jobqueue": None})
    upgrade_database(mapped)
    assert "table job" in everything(empty_engine, "public")
    downgrade_database(mapped)
    assert everything(empty_engine, "public") == {}
    with empty_engine.connect() as connection:
        assert connection.scalar(text("SELECT to_regnamespace('public')")) is not None
    assert upgrade_database(mapped) == CURRENT


async def test_an_async_engine_is_refused_with_what_to_do() -> None:
    """As the engine of an async application is the one at hand."""
    engine = create_async_engine("postgresql+psycopg://nowhere/shop")
    with pytest.raises(
        ConfigurationError, match=r"await connection.run_sync\(upgrade_database\).* or give the URL, engine.url"
    ):
        upgrade_database(engine)  # type: ignore[arg-type]
    await engine.dispose()


@pytest.mark.parametrize("to", [0, -1, CURRENT + 1])
def test_a_version_that_does_not_exist_is_refused(empty_engine: Engine, to: int) -> None:
    """Before anything is done, and with those that exist."""
    with pytest.raises(ConfigurationError, match=f"no version {to} to upgrade to: this release knows 1 to {CURRENT}"):
        upgrade_database(empty_engine, to=to)
    assert everything(empty_engine) == {}


@pytest.mark.parametrize("schema", ["", "a\0b", "x" * 64, "ü" * 32])
def test_a_name_that_no_schema_can_have_is_refused(empty_engine: Engine, schema: str) -> None:
    """PostgreSQL would cut a long one, and then not find it."""
    with pytest.raises(ConfigurationError, match="cannot be the name of a schema"):
        upgrade_database(empty_engine, schema=schema)


def test_another_database_than_postgresql_is_refused() -> None:
    """In a revision of a project that also runs on SQLite."""
    engine = create_engine("sqlite://")
    with operations(engine) as (_, op), pytest.raises(ConfigurationError, match="sqlite"):
        migrations.upgrade(op)
    engine.dispose()


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("PostgreSQL 15.2-YB-2025.1.0.0-b0 on x86_64-pc-linux-gnu", "YugabyteDB"),
        ("CockroachDB CCL v25.2.1 (x86_64-pc-linux-gnu, built 2025/06/04)", "CockroachDB"),
    ],
)
def test_a_server_that_only_speaks_like_postgresql_is_refused(empty_engine: Engine, version: str, name: str) -> None:
    """Also one whose version SQLAlchemy cannot read."""

    class Cursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            said = re.sub(r"(pg_catalog\.)?\bversion\(\)", f"'{version}'", query) if isinstance(query, str) else query
            return super().execute(said, *args, **options)

    engine = create_engine(empty_engine.url, connect_args={"cursor_factory": Cursor}, poolclass=NullPool)
    with pytest.raises(
        ConfigurationError, match=rf"needs PostgreSQL, and this server is {name}: .*{re.escape(version)}"
    ):
        upgrade_database(engine)
    assert everything(empty_engine) == {}


class TestCheckSchema:
    def test_a_missing_schema_is_named(self, empty_engine: Engine) -> None:
        """The error says the version that is needed and the command to run."""
        with empty_engine.connect() as connection, pytest.raises(SchemaError, match="sa-jobqueue migrate") as caught:
            check_schema(connection)
        assert (caught.value.found, caught.value.needed) == (None, CURRENT)

    def test_a_missing_schema_of_another_name_is_named(self, empty_engine: Engine) -> None:
        """The error names the schema that was looked for."""
        with empty_engine.connect() as connection, pytest.raises(SchemaError) as caught:
            check_schema(connection, "jobs")
        assert caught.value.schema == "jobs"

    def test_an_older_schema_is_refused(self, empty_engine: Engine) -> None:
        """The error says the version that was found and the one that is needed."""
        upgrade_database(empty_engine)
        with empty_engine.connect() as connection:
            connection.execute(text("UPDATE sa_jobqueue.schema_version SET version = version - 1"))
            with pytest.raises(SchemaError) as caught:
                check_schema(connection)
        assert (caught.value.found, caught.value.needed) == (CURRENT - 1, CURRENT)

    def test_the_right_schema_is_accepted(self, empty_engine: Engine) -> None:
        """Nothing is raised."""
        upgrade_database(empty_engine)
        with empty_engine.connect() as connection:
            check_schema(connection)

    def test_a_newer_schema_is_accepted(self, empty_engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
        """While a deployment rolls, the previous release goes on, and says what it found."""
        upgrade_database(empty_engine)
        with empty_engine.connect() as connection:
            connection.execute(text("INSERT INTO sa_jobqueue.schema_version VALUES (:new)"), {"new": CURRENT + 1})
            with caplog.at_level(logging.INFO, "sa_jobqueue"):
                check_schema(connection)
            assert current_version(connection) == CURRENT + 1
        (said,) = caplog.messages
        assert f"has version {CURRENT + 1}; this release knows version {CURRENT}" in said

    def test_a_schema_that_has_taken_away_what_this_release_needs(self, empty_engine: Engine) -> None:
        """It says so itself, and a later version that only adds does not take that back."""
        upgrade_database(empty_engine)
        with empty_engine.connect() as connection:
            for version, oldest in ((CURRENT + 2, CURRENT + 1), (CURRENT + 3, 1)):
                connection.execute(
                    text("INSERT INTO sa_jobqueue.schema_version (version, compatible_with) VALUES (:new, :oldest)"),
                    {"new": version, "oldest": oldest},
                )
                with pytest.raises(SchemaError, match="can no longer work with: upgrade the package") as caught:
                    check_schema(connection)
                assert (caught.value.found, caught.value.needed) == (version, CURRENT)

    def test_a_newer_schema_is_neither_upgraded_nor_downgraded(self, empty_engine: Engine) -> None:
        """What this release does not know it cannot undo."""
        upgrade_database(empty_engine)
        with empty_engine.connect() as connection:
            connection.execute(text("INSERT INTO sa_jobqueue.schema_version VALUES (:new)"), {"new": CURRENT + 1})
            assert upgrade_database(connection) == CURRENT + 1
            with pytest.raises(JobQueueError, match="newer than this release knows: downgrade with the release"):
                downgrade_database(connection)

    def test_a_role_without_rights_is_told_so(self, empty_engine: Engine, role: str) -> None:
        """The schema is there, so the error is about the rights."""
        upgrade_database(empty_engine)
        with empty_engine.connect() as connection:
            connection.execute(text(f"SET ROLE {role}"))
            with pytest.raises(JobQueueError, match="permission denied for schema"):
                check_schema(connection)
