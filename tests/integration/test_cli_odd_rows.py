"""Rows that were written by plain SQL: every command that looks at jobs shows them, and their neighbours."""

from __future__ import annotations

import json

import pytest
from psycopg import sql
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from tests.support.cli import as_json, invoke, output
from tests.support.databases import connect
from tests.support.nightly import nightly

#: A description -> the columns that are set.
ODD = {
    "errors an object": "errors = '{\"a\": 1}'",
    "errors of anything": "errors = '[1, null, \"x\", [2], {}]'",
    "errors a text": "errors = '\"x\"'",
    "error entries of odd types": 'errors = \'[{"at": 7, "attempt": {}, "type": [], "message": null, "traceback": 5}]\'',
    "an error at no time": 'errors = \'[{"at": "yesterday"}]\'',
    "an error at a time without a zone": 'errors = \'[{"at": "2026-01-01T00:00:00"}]\'',
    "meta and arguments no objects": "meta = '\"x\"', args = '[null]'",
    "due never": "run_at = 'infinity'",
    "due since ever": "run_at = '-infinity'",
    "due before Christ": "run_at = '4000-01-01 BC'",
    "due after Python": "run_at = '20000-01-01'",
    "made at the end of time": "created_at = 'infinity'",
    "finished at the end of time": "status = 'completed', finished_at = 'infinity', purge_at = '-infinity'",
    "a number beyond all bounds": "args = ('{\"n\": 1' || repeat('0', 6000) || '}')::jsonb",
    "a result beyond all bounds": "status = 'completed', result = ('-1' || repeat('0', 6000))::jsonb",
    "names that move the cursor": "task = E'a\\x1b[31m\\nb', queue = E'q\\r\\u202e', worker = E'w\\x07\\n'",
    "a worker named at length": "status = 'running', worker = repeat('😀', 5000)",
    "running, and nothing else": "status = 'running'",
    "counters at their edges": "claims = -2147483648, attempt = -32768, rescues = 32767, max_attempts = 32767",
    "arguments of 5 MB": "args = jsonb_build_object('x', repeat('x', 5000000))",
    "the largest id": "id = 9223372036854775807",
    "the smallest id": "id = -9223372036854775808",
}


@pytest.fixture
def neighbour(engine: Engine) -> int:
    with engine.begin() as connection:
        return int(connection.scalar(text("INSERT INTO sa_jobqueue.job (task) VALUES ('neighbour') RETURNING id")))


def write(engine: Engine, odd: str) -> int:
    with engine.begin() as connection:
        id = connection.scalar(text("INSERT INTO sa_jobqueue.job (task) VALUES ('odd') RETURNING id"))
        told = connection.exec_driver_sql(f"UPDATE sa_jobqueue.job SET {ODD[odd]} WHERE id = {id} RETURNING id")
        return int(told.scalar_one())


def look(url: str, neighbour: int, ids: set[int]) -> str:
    """Read the jobs by `list`, `show`, `why`, `stats`, `top` and `doctor`; return what is for people."""
    assert {job["id"] for job in as_json("list", url=url)} == {neighbour, *ids}
    told = output("list", url=url)
    assert "neighbour" in told
    for id in ids:
        assert json.loads(output("show", "--json", "--", str(id), url=url))["id"] == id
        shown = output("show", "--", str(id), url=url)
        assert shown.startswith(f"job {id} ")
        reasons = invoke("why", "--", str(id), url=url)
        assert reasons.exit_code in {0, 1}
        assert reasons.stdout.startswith(f"job {id} ")
        assert json.loads(invoke("why", "--json", "--", str(id), url=url).stdout)["job_id"] == id
        told += shown + reasons.stdout
    assert "neighbour" not in (picture := output("top", "--once", url=url))  # it has not run
    assert all(line.isprintable() for line in picture.splitlines())
    assert "Infinity" not in output("stats", "--json", url=url)
    told += output("stats", url=url)
    assert invoke("doctor", url=url).exit_code in {0, 1}
    return told


def test_odd_rows_are_shown_and_hide_no_other(engine: Engine, url: str, neighbour: int) -> None:
    """For people and as JSON; what is shown cannot move a terminal's cursor."""
    told = look(url, neighbour, {write(engine, odd) for odd in ODD})
    assert not {"\x1b", "\r", "\x07", "\u202e"} & set(told)


@pytest.mark.nightly
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_row_is_shown_and_hides_no_other(engine: Engine, url: str, neighbour: int, odd: str) -> None:
    """Each alone."""
    told = look(url, neighbour, {write(engine, odd)})
    assert not {"\x1b", "\r", "\x07", "\u202e"} & set(told)


@pytest.mark.parametrize("place", ["the database", "PGDATESTYLE"])
@pytest.mark.parametrize("style", ["German, DMY", *nightly("SQL", "Postgres, MDY")])
def test_times_are_read_whatever_their_style(
    database_url: str, monkeypatch: pytest.MonkeyPatch, place: str, style: str
) -> None:
    """psycopg reads one style only."""
    with connect(database_url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.job (task, run_at) VALUES ('odd', '2030-02-01T12:00Z')")
        connection.execute(
            "INSERT INTO sa_jobqueue.worker (id, host, pid, queues, concurrency, version) "
            "VALUES (gen_random_uuid(), 'web', 7, '{default}', 1, '1')"
        )
        if place == "the database":
            name = sql.Identifier(connection.info.dbname)
            connection.execute(sql.SQL("ALTER DATABASE {} SET DateStyle = {}").format(name, sql.Literal(style)))
    if place == "PGDATESTYLE":
        monkeypatch.setenv("PGDATESTYLE", style)

    (job,) = as_json("list", url=database_url)
    assert job["run_at"] == "2030-02-01T12:00:00+00:00"
    assert "2030-02-01" in output("show", str(job["id"]), url=database_url)
    assert len(as_json("workers", url=database_url)) == 1
    assert invoke("doctor", url=database_url).exit_code in {0, 1}


@pytest.mark.parametrize(
    "setting",
    [
        "status = 'done'",
        "status = ''",
        "priority = 10",
        "priority = -1",
        "max_attempts = 0",
        "queue = ''",
        "task = repeat('x', 201)",
        "queue = repeat('ö', 201)",
        "args = NULL",
        "errors = NULL",
    ],
)
def test_what_no_worker_could_make_sense_of_is_refused(engine: Engine, neighbour: int, setting: str) -> None:
    """The table itself refuses it, whatever writes it."""
    with engine.connect() as connection, pytest.raises(IntegrityError):
        connection.exec_driver_sql(f"UPDATE sa_jobqueue.job SET {setting}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", str(2**63)),
        ("show", "1e3"),
        ("show", "--", "-" + "9" * 40),
        ("cancel", str(2**63)),
        ("retry", "٣" * 30),
        ("list", "--limit", str(2**63)),
        ("list", "--queue", "a\udcff"),
        ("list", "--older-than", "9" * 400),
        ("list", "--older-than", "99999999w"),
        ("enqueue", "x" * 201),
        ("enqueue", ""),
        ("enqueue", "a\udcff"),
        ("enqueue", "a", '{"x": NaN}'),
        ("enqueue", "a", '{"x": "\\u0000"}'),
        ("enqueue", "a", '{"x": "\\ud800"}'),
        ("enqueue", "a", "[" * 100_000),
        ("enqueue", "a", '{"x": 1' + "0" * 5_000 + "}"),
        ("enqueue", "a", '{"x": "' + "x" * 1_100_000 + '"}'),
        ("enqueue", "a", "{}", "--run-at", "0001-01-01T00:00+14:00"),
        ("enqueue", "a", "{}", "--run-at", "2030-01-01"),
        ("enqueue", "a", "{}", "--expires-at", "0001-01-01T00:00+14:00"),
        ("enqueue", "a", "{}", "--expires-at", "2030-01-01"),
        ("enqueue", "a", "{}", "--delay", "999999w"),
        ("enqueue", "a", "{}", "--max-attempts", "40000"),
        ("enqueue", "a", "{}", "--priority", "10"),
        ("enqueue", "a", "{}", "--tag", ""),
        ("enqueue", "a", "{}", "--meta", "[]"),
        ("work", "--queue", "default=0"),
        ("work", "--queue", "=5"),
        ("work", "--queue", "a=" + "9" * 5_000),
        ("discard", "1", "--reason", "a\udcff\x00"),
    ],
    ids=lambda one: " ".join(one)[:60].encode("ascii", "backslashreplace").decode(),
)
def test_odd_arguments_are_refused_in_one_line_or_harmless(url: str, arguments: tuple[str, ...]) -> None:
    """Never a traceback, and nothing is enqueued."""
    ended = invoke(*arguments, url=url)
    assert ended.exit_code in {0, 1, 2}
    assert ended.exit_code != 0 or arguments[0] != "enqueue"
    assert "Traceback" not in ended.stderr
    if ended.exit_code == 2:
        assert ended.stderr.splitlines()[-1].startswith("error: ")
    assert as_json("list", url=url) == []
