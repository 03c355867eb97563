"""`alembic upgrade head` and `alembic downgrade base` from a clone, as real processes; and the script for `psql`."""

from __future__ import annotations

import io
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, text

from sa_jobqueue import migrations
from sa_jobqueue.migrations import CURRENT, upgrade_database
from tests.migrations import catalog
from tests.support.commands import ROOT, run_command
from tests.support.databases import connect
from tests.support.nightly import nightly, nightly_sets
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not (ROOT / "alembic" / "env.py").exists(), reason="alembic/ is not in the wheel")

ALEMBIC = (str(Path(sys.executable).with_name("alembic")),)


def alembic(*arguments: str, url: str) -> str:
    result = run_command(*arguments, url=url, command=ALEMBIC)
    assert result.returncode == 0, result.stderr
    return result.stdout


def everything(engine: Engine) -> catalog.Definitions:
    with engine.connect() as connection:
        return catalog.everything(connection)


@pytest.mark.usefixtures("measured")
def test_up_and_down_from_a_clone(empty_database_url: str, empty_engine: Engine) -> None:
    """What it makes is what `upgrade_database` makes; going down leaves Alembic's own table, empty, and no more."""
    alembic("upgrade", "head", url=empty_database_url)
    made = everything(empty_engine)
    alembic("downgrade", "base", url=empty_database_url)

    assert everything(empty_engine).keys() == {
        "table alembic_version",
        "column alembic_version.version_num",
        "columns of alembic_version",
        "constraint alembic_version_pkc",
        "index alembic_version_pkc",
    } | {name for name in made if name == "constraint alembic_version_version_num_not_null"}
    with empty_engine.begin() as connection:
        assert connection.scalar(text("SELECT count(*) FROM sa_jobqueue.alembic_version")) == 0
        connection.execute(text("DROP SCHEMA sa_jobqueue CASCADE"))

    upgrade_database(empty_engine)
    without_alembics = {name: made[name] for name in made if "alembic_version" not in name}
    assert everything(empty_engine) == without_alembics

    assert alembic("upgrade", "head", url=empty_database_url) == ""
    assert everything(empty_engine) == made


def test_an_url_on_the_command_line_comes_first(empty_database_url: str, empty_engine: Engine) -> None:
    """`-x url=…` wins over the environment; a plain `postgresql://` means psycopg 3."""
    plain = empty_database_url.replace("postgresql+psycopg://", "postgresql://")
    alembic("-x", f"url={plain}", "upgrade", "head", url="postgresql://nobody@127.0.0.1:1/nowhere")
    assert "table job" in everything(empty_engine)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://me:secret@127.0.0.1:1/nowhere", 'connection to server at "127.0.0.1", port 1 failed'),
        *nightly_sets(("mysql://me:secret@db.example/shop", "is not a PostgreSQL URL")),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line_without_its_password(url: str, reason: str) -> None:
    """As Alembic says what failed: a line on stdout, the same in its log on stderr."""
    result = run_command("upgrade", "head", url=url, command=ALEMBIC)
    assert result.returncode != 0
    assert "secret" not in result.stdout + result.stderr
    for said in (result.stdout, result.stderr):
        (line,) = said.strip().splitlines()
        assert reason in line


def test_two_at_once_both_succeed(empty_database_url: str, empty_engine: Engine) -> None:
    """Two deployments' processes: one works, the other waits and finds nothing to do."""
    with ThreadPoolExecutor() as threads, empty_engine.connect() as first:
        migrations.create_schema(Operations(MigrationContext.configure(first)))
        both = [threads.submit(alembic, "upgrade", "head", url=empty_database_url) for _ in range(2)]
        with connect(empty_database_url) as observer:
            wait_until(lambda: count_waiting(observer) == 2)
        first.rollback()
        for one in both:
            one.result()
    with empty_engine.connect() as connection:
        assert connection.scalars(text("SELECT version FROM sa_jobqueue.schema_version")).all() == [CURRENT]
        assert connection.scalar(text("SELECT count(*) FROM sa_jobqueue.alembic_version")) == 1


def count_waiting(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.nightly
def test_the_script_from_a_clone_gives_the_same_schema(empty_database_url: str, empty_engine: Engine) -> None:
    """`alembic upgrade head --sql` needs no server, `psql` runs what it writes; down likewise."""
    script = alembic("upgrade", "head", "--sql", url="postgresql://nobody@127.0.0.1:1/nowhere")
    with connect(empty_database_url) as connection:
        connection.execute(script.encode())
    by_script = everything(empty_engine)

    down = alembic("downgrade", "head:base", "--sql", url="postgresql://nobody@127.0.0.1:1/nowhere")
    with connect(empty_database_url) as connection:
        connection.execute(down.encode())
    assert "table job" not in everything(empty_engine)

    alembic("upgrade", "head", url=empty_database_url)
    assert catalog.differences(by_script, everything(empty_engine)) == {}


@pytest.mark.parametrize("schema", ['My "Jobs": 100%', *nightly("sa_jobqueue")])
def test_the_script_without_alembic_may_run_on_any_older_version(
    empty_database_url: str, empty_engine: Engine, schema: str
) -> None:
    """`sa-jobqueue migrate --sql`: run twice it does nothing more."""
    with connect(empty_database_url) as connection:
        for _ in range(2):
            connection.execute(migrations.sql(schema=schema).encode())
    with empty_engine.begin() as connection:
        by_script = catalog.everything(connection, schema)
        connection.execute(text(f'DROP SCHEMA "{schema.replace(chr(34), chr(34) * 2)}" CASCADE'.replace(":", r"\:")))
    upgrade_database(empty_engine, schema=schema)
    with empty_engine.connect() as connection:
        assert catalog.differences(by_script, catalog.everything(connection, schema)) == {}


@pytest.mark.parametrize("schema", ["sa_jobqueue", "100% :of {it}"])
def test_a_revision_offline_writes_the_same_script(schema: str) -> None:
    """Word for word, whatever the project's `env.py` says of parameter styles."""
    written = io.StringIO()
    offline = MigrationContext.configure(dialect_name="postgresql", opts={"as_sql": True, "output_buffer": written})
    migrations.upgrade(Operations(offline), schema=schema)
    assert migrations.sql(schema=schema) == f"BEGIN;\n\n{written.getvalue()}COMMIT;\n"


def test_the_revisions_of_a_clone_only_call_us() -> None:
    """Each leads to one version; together they lead to the newest."""
    sources = [file.read_text() for file in sorted((ROOT / "alembic" / "versions").glob("*.py"))]
    assert len(sources) == CURRENT
    for version, source in enumerate(sources, 1):
        assert f"migrations.upgrade(op, to={version})" in source
        assert f"migrations.downgrade(op, to={version - 1})" in source
