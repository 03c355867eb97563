"""`migrate`, `enqueue`, `embedded`."""

from __future__ import annotations

import ast
import json
import re
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url, select
from sqlalchemy.orm import Session
from typer.testing import Result

from sa_jobqueue import Schedule
from sa_jobqueue.models.limits import LimitRow
from tests.support import pooler
from tests.support.cli import as_json, invoke, notes, output, refused
from tests.support.commands import run_command
from tests.support.databases import connect
from tests.support.factory import row

TASKS = """
import uuid
from datetime import date
from sa_jobqueue import Registry, task

mine = Registry()

@task(queue="mail", max_attempts=3, priority=7, name="shop.send")
def send(order: uuid.UUID, on: date = date(2030, 1, 1)) -> None: ...

@task(name="shop.other", queue="slow", registry=mine)
def other(n: int) -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory to import an application from; what was imported there is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("sa_jobqueue.tasks.registry.default_registry._tasks", {})
    from sa_jobqueue.tasks.registry import default_registry

    monkeypatch.setattr(default_registry, "get", default_registry._tasks.get)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def database_url(database_url: str) -> str:
    """The same for this test alone: past a pooler, what is set on a database is seen at once."""
    return pooler.direct(database_url)


# ---- migrate


def test_migrate_makes_the_tables_once(empty_database_url: str) -> None:
    """Repeated, it has nothing to do."""
    assert output("migrate", url=empty_database_url) == "schema sa_jobqueue: version 1 (new)\n"
    assert output("migrate", url=empty_database_url) == "schema sa_jobqueue: version 1, nothing to do\n"


def test_migrate_names_its_database_on_stderr_as_every_command_does(empty_database_url: str) -> None:
    """Tables made in the wrong database are noticed at once."""
    result = invoke("migrate", url=empty_database_url)
    assert result.stderr.startswith(f"database: {make_url(empty_database_url).database} on ")


def test_going_down_needs_a_yes(empty_database_url: str) -> None:
    """With version 0 all jobs go."""
    url = empty_database_url
    output("migrate", "--to", "1", url=url)
    assert "with all its jobs: add --yes" in refused("migrate", "--to", "0", url=url)
    assert output("migrate", "--to", "0", "--yes", url=url) == "schema sa_jobqueue: removed (was version 1)\n"
    assert output("migrate", "--to", "0", url=url) == "schema sa_jobqueue: does not exist\n"


def test_a_newer_schema_is_left_alone(database_url: str) -> None:
    """The previous release goes on while a deployment rolls; to go down, its own release is needed."""
    with connect(database_url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.schema_version VALUES (99)")
    assert output("migrate", url=database_url) == "schema sa_jobqueue: version 99, nothing to do\n"
    assert "upgrade the package" in refused("migrate", "--to", "0", "--yes", url=database_url)


def test_migrate_to_an_unknown_version_is_refused(url: str) -> None:
    """Before anything is changed."""
    assert "there is no version 9" in refused("migrate", "--to", "9", url=url)


def test_migrate_prints_scripts_without_a_database(empty_database_url: str) -> None:
    """The SQL for psql and the revision for Alembic make the tables, and remove them."""
    nowhere = "postgresql://nobody@127.0.0.1:1/nowhere"
    script = output("migrate", "--sql", "--schema", "jobs", url=nowhere)
    with connect(empty_database_url) as connection:
        connection.execute(script.encode())
    assert as_json("list", "--schema", "jobs", url=empty_database_url) == []
    removal = output("migrate", "--sql", "--to", "0", "--schema", "jobs", url=nowhere)
    with connect(empty_database_url) as connection:
        for _ in range(2):
            connection.execute(removal.encode())
            assert connection.execute("SELECT to_regnamespace('jobs')").fetchone() == (None,)
    revision = output("migrate", "--revision", "--down-revision", "1a2b3c", url=nowhere)
    assert 'down_revision = "1a2b3c"' in revision
    ast.parse(revision)
    assert "give one of them" in refused("migrate", "--sql", "--revision")
    assert "goes with --revision" in refused("migrate", "--down-revision", "1a2b3c")


# ---- enqueue


def test_a_job_is_enqueued_by_name(engine: Engine, url: str) -> None:
    """The id is all that is printed."""
    number = output(
        "enqueue", "shop.send", '{"order": 7}', "--queue", "mail", "--priority", "9", "--delay", "2h", "--max-attempts",
        "2", "--tag", "vip", "--tag", "new", "--meta", '{"trace": "abc"}', "--key", "42", "--units", "3", url=url,
    )  # fmt: skip
    with engine.begin() as connection:
        job = row(connection, int(number))
    assert number == f"{job.id}\n"
    assert (job.task, job.args, job.queue, job.priority, job.max_attempts) == ("shop.send", {"order": 7}, "mail", 9, 2)
    assert job.meta == {"trace": "abc", "tags": ["vip", "new"]}
    assert job.run_at - job.created_at == timedelta(hours=2)
    assert (job.concurrency_key, job.units) == ("42", 3)


def test_what_was_enqueued_is_said_beside_its_id(url: str) -> None:
    """The id alone is on stdout, for scripts; JSON has the rest, too."""
    options = ("--priority", "9", "--delay", "2h", "--tag", "vip", "--tag", "new", "--queue", "mail")
    result = invoke("enqueue", "shop.send", "{}", *options, url=url)
    assert result.stdout.strip().isdigit()
    assert re.fullmatch(r"shop.send · queue mail · priority 9 · due .* \(in 2h\) · tags vip, new\n", notes(result))
    assert notes(invoke("enqueue", "a", url=url)) == "a · queue default · priority 4 · due now\n"
    made = as_json("enqueue", "shop.send", "{}", *options, url=url)
    assert (made["priority"], made["tags"], made["max_attempts"]) == (9, ["vip", "new"], 10)
    assert (made["key"], made["units"]) == (None, None)
    keyed = invoke("enqueue", "a", "--key", "tenant\n42", url=url)
    assert notes(keyed) == "a · queue default · key tenant\\n42 · priority 4 · due now\n"
    assert "key must have 1 to 200 characters, not 0" in refused("enqueue", "a", "--key", "", url=url)
    assert datetime.fromisoformat(made["run_at"]) > datetime.now(UTC) + timedelta(hours=1)


def test_run_at_needs_a_time_zone(engine: Engine, url: str) -> None:
    """Without one it would be another time on each machine."""
    number = as_json("enqueue", "a", "--run-at", "2030-01-31T09:00+01:00", url=url)["id"]
    with engine.begin() as connection:
        assert row(connection, number).run_at.isoformat() == "2030-01-31T08:00:00+00:00"
    assert refused("enqueue", "a", "--run-at", "2030-01-31", url=url) == (
        "error: --run-at must have a time zone, as in 2030-01-31T09:00+01:00, not '2030-01-31'\n"
    )
    assert "--run-at must be a time" in refused("enqueue", "a", "--run-at", "tomorrow", url=url)


def test_a_job_expires_at_a_time_or_after_a_while(engine: Engine, url: str) -> None:
    """A time needs its zone, as that of `--run-at`; and only one of the two can be given."""
    at = as_json("enqueue", "a", "--expires-at", "2130-01-31T09:00+01:00", url=url)["id"]
    after = as_json("enqueue", "a", "--expires-in", "10m", "--deadline", "2h", url=url)["id"]
    with engine.begin() as connection:
        found = row(connection, at)
        assert (found.expires_at.isoformat(), found.deadline_at) == ("2130-01-31T08:00:00+00:00", None)
        found = row(connection, after)
        assert (found.expires_at - found.created_at, found.deadline_at - found.created_at) == (
            timedelta(minutes=10),
            timedelta(hours=2),
        )
    assert refused("enqueue", "a", "--expires-at", "2130-01-31", url=url) == (
        "error: --expires-at must have a time zone, as in 2030-01-31T09:00+01:00, not '2130-01-31'\n"
    )
    assert "--expires-at must be a time" in refused("enqueue", "a", "--expires-at", "10m", url=url)
    both = refused("enqueue", "a", "--expires-at", "2130-01-31T09:00Z", "--expires-in", "10m", url=url)
    assert both == "error: --expires-at and --expires-in exclude each other: give one of them\n"


def test_enqueue_says_that_a_job_is_a_duplicate(engine: Engine, url: str, folder: Path) -> None:
    """It will not run, so it is not due; and the job that has the key is named."""
    first = as_json("enqueue", "a", "--unique", "the key", url=url)
    assert first["duplicate_of"] is None
    again = invoke("enqueue", "b", "--unique", "the key", url=url)
    cancelled = f"cancelled, as a duplicate of job {first['id']}"
    assert notes(again) == f"b · queue default · priority 4 · {cancelled}\n"
    assert as_json("enqueue", "a", "--unique", "the key", url=url)["duplicate_of"] == first["id"]
    with engine.begin() as connection:
        assert row(connection, int(again.stdout)).status == "cancelled"
    assert "unique: key must have 1 to 500 characters" in refused("enqueue", "a", "--unique", "", url=url)


def test_enqueue_with_app_takes_the_tasks_unique_rule(url: str, folder: Path) -> None:
    """`--unique` goes before it, and a clash that raises is told in a line."""
    (folder / "once_tasks.py").write_text(
        "from sa_jobqueue import Unique, task\n\n"
        '@task(name="once", unique=Unique(by=(), on_clash="raise"))\n'
        "def once() -> None: ...\n"
    )
    first = as_json("enqueue", "once", "--app", "once_tasks", url=url)
    assert as_json("enqueue", "once", "--app", "once_tasks", "--unique", "other", url=url)["duplicate_of"] is None
    assert refused("enqueue", "once", "--app", "once_tasks", url=url) == (
        f"error: the database refused: the unique key 'once' is held by job {first['id']}\n"
    )


def test_enqueue_reads_arguments_from_stdin(engine: Engine, url: str) -> None:
    """By `-`, for those that are too long for a command line."""
    number = output("enqueue", "a", "-", url=url, stdin='{"text": "long"}')
    with engine.begin() as connection:
        assert row(connection, int(number)).args == {"text": "long"}


def test_enqueue_refuses_stdin_that_is_not_utf8(url: str) -> None:
    """In one line, with the place of the wrong byte."""
    assert "the arguments on stdin are not UTF-8" in refused("enqueue", "a", "-", url=url, stdin=b'{"a": "\xff"}')


@pytest.mark.parametrize("arguments", ["[1]", "{bad", '{"a": NaN}', "7"])
def test_enqueue_refuses_arguments_that_are_no_json_object(url: str, arguments: str) -> None:
    """Arguments go by name, so an object is needed."""
    assert refused("enqueue", "a", arguments, url=url)


def test_enqueue_with_app_checks_arguments_and_takes_the_tasks_options(engine: Engine, url: str, folder: Path) -> None:
    """By the annotations of the handler: JSON has no UUIDs and no dates."""
    (folder / "shop_tasks.py").write_text(TASKS)
    order = str(uuid.uuid4())
    number = output("enqueue", "shop.send", json.dumps({"order": order}), "--app", "shop_tasks", url=url)
    with engine.begin() as connection:
        job = row(connection, int(number))
    assert (job.args, job.queue, job.max_attempts, job.priority) == ({"order": order}, "mail", 3, 7)
    misfit = refused("enqueue", "shop.send", '{"order": 7}', "--app", "shop_tasks", url=url)
    assert misfit.startswith("error: task 'shop.send': the arguments do not fit the handler: argument order: ")
    assert "wrong" in refused(
        "enqueue", "shop.send", f'{{"order": "{order}", "wrong": 1}}', "--app", "shop_tasks", url=url
    )


def test_a_task_that_the_app_has_not_is_refused(engine: Engine, url: str, folder: Path) -> None:
    """With --app the name is checked; the message says the nearest one, and no job is made."""
    (folder / "shop_tasks.py").write_text(TASKS)
    said = refused("enqueue", "shop.sned", "{}", "--app", "shop_tasks", url=url)
    assert said.startswith("error: --app shop_tasks: no task named 'shop.sned'; did you mean 'shop.send'?")
    assert as_json("list", url=url) == []
    assert output("enqueue", "shop.sned", "{}", "--app", "", env={"SA_JOBQUEUE_APP": "shop_tasks"}, url=url)


def test_app_may_name_several_registries(url: str, folder: Path) -> None:
    """Modules and registries; their tasks are put together."""
    (folder / "shop_tasks.py").write_text(TASKS)
    both = ("--app", "shop_tasks, shop_tasks:mine")
    assert as_json("enqueue", "shop.other", '{"n": 1}', *both, url=url)["queue"] == "slow"
    assert as_json("enqueue", "shop.send", f'{{"order": "{uuid.uuid4()}"}}', *both, url=url)["queue"] == "mail"
    assert "not a Registry" in refused("enqueue", "a", "--app", "shop_tasks:send", url=url)
    assert "'shop_tasks' has no name 'nope'" in refused("enqueue", "a", "--app", "shop_tasks:nope", url=url)


PARTS = """
from pathlib import Path
from sa_jobqueue import Limits, Registry, every, task

mail, books = Registry(), Registry()
said = Path(__file__).with_name("said")
mail.queue("mail", limits=Limits(running=1))


@task(registry=mail)
def send() -> None: ...


@task(registry=books)
def close() -> None: ...


def say(word):
    with said.open("a") as file:
        file.write(word)


mail.schedule(every(3600), send, name="hourly")
books.schedule(every(86400), close, name="daily")
mail.on_worker_start(lambda: say("mail starts. "))
books.on_worker_start(lambda: say("books start. "))
books.on_worker_stop(lambda: say("books stop."))
"""


def test_a_worker_of_several_registries_has_the_schedules_the_limits_and_the_hooks_of_all(
    engine: Engine, url: str, folder: Path
) -> None:
    """Two schedules of the same name are refused."""
    (folder / "shop_parts.py").write_text(PARTS)
    done = run_command("work", "--app", "shop_parts:mail, shop_parts:books", "--drain", url=url, cwd=folder)
    assert done.returncode == 0, done.stderr
    with Session(engine) as session:
        assert set(session.scalars(select(Schedule.name))) == {"hourly", "daily"}
        assert session.scalars(select(LimitRow.name)).all() == ["mail"]
    assert (folder / "said").read_text() == "mail starts. books start. books stop."
    (folder / "shop_more.py").write_text(PARTS)
    both = run_command("work", "--app", "shop_parts:mail, shop_more:mail", "--drain", url=url, cwd=folder)
    assert "registries that do not go together: two registries declare the schedule 'hourly'" in both.stderr


SEVERAL = """
from sqlalchemy.orm import sessionmaker
from sa_jobqueue import Registry, Worker

mine, other = Registry(sessionmaker=sessionmaker()), Registry(sessionmaker=sessionmaker())
worker = Worker("postgresql+psycopg://localhost/shop", {"default": 1}, registry=mine)
"""


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("mine, other", "--app names registries that differ in their sessionmaker; a worker has one"),
        ("worker, other", "--app names a Worker and a Registry that is not the Worker's: Worker(registry=...)"),
        ("worker, worker", "--app names several Workers; a process has one"),
    ],
)
def test_registries_and_workers_that_do_not_go_together_are_refused(
    url: str, folder: Path, names: str, reason: str
) -> None:
    """Which of them should count is not guessed."""
    (folder / "shop_several.py").write_text(SEVERAL)
    app = ", ".join(f"shop_several:{name}" for name in names.split(", "))
    assert refused("enqueue", "a", "--app", app, url=url) == f"error: {reason}\n"


@pytest.mark.parametrize(
    ("source", "name", "reason"),
    [
        (None, "shop_gone", "there is no module 'shop_gone'"),
        (None, "shop_gone.tasks", "there is no module 'shop_gone'"),
        (None, "shop/tasks.py", "expected a module, not its file: --app shop.tasks"),
        (None, "shop-tasks", "not the name of a module; expected dots, as in shop.tasks"),
        ("import not_installed", "shop_broken", "ModuleNotFoundError: No module named 'not_installed'"),
        ("from os import nothing_like_it", "shop_broken", "ImportError: cannot import name 'nothing_like_it'"),
        ("\ndef (", "shop_broken", "({folder}/shop_broken.py, line 2; --debug shows the traceback)\n"),
        ("1 / 0", "shop_broken", "ZeroDivisionError: division by zero"),
        (
            "\nimport os\nos.environ['NO_KEY']",
            "shop_broken",
            "KeyError: 'NO_KEY' (shop_broken.py, line 3, in <module>; ",
        ),
        ("import json\njson.loads('{')", "shop_broken", "(shop_broken.py, line 2, in <module>; --debug shows the "),
        ("raise SystemExit('usage: shop')", "shop_broken", "SystemExit: usage: shop"),
        ("URL = 'x://me:secret@db'\nraise RuntimeError(URL)", "shop_broken", "RuntimeError: x://me:***@db"),
    ],
)
def test_an_app_that_does_not_import_is_named_with_the_reason(
    folder: Path, source: str | None, name: str, reason: str
) -> None:
    """And with the file and line that raised it."""
    if source is not None:
        (folder / "shop_broken.py").write_text(source)
    line = refused("enqueue", "a", "--app", name, url="postgresql://nobody@127.0.0.1:1/nowhere")
    assert f"--app {name}: " in line
    assert reason.replace("{folder}", str(folder)) in line


# ---- embedded


def test_the_embedded_server_is_found_where_it_would_be(tmp_path: Path) -> None:
    """Asking does not start it."""
    option = ("--embedded-dir", str(tmp_path))
    assert invoke("embedded", "path", *option).stdout == f"{tmp_path}\n"
    status = invoke("embedded", "status", *option)
    assert status.exit_code == 3
    assert "not running" in status.stdout
    assert f"folder      {tmp_path}\n" in status.stdout
    assert json.loads(invoke("embedded", "status", "--json", *option).stdout)["running"] is False
    assert invoke("embedded", "stop", *option).stdout == "it was not running\n"
    assert list(tmp_path.iterdir()) == []
    assert "status" in invoke("embedded").stdout


@pytest.mark.parametrize("place", ["option", "environment", "pyproject"])
def test_embedded_dir_may_begin_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """In the option, the environment and pyproject.toml; an unknown home is refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))

    def path_of(folder: str) -> Result:
        if place == "pyproject":
            (tmp_path / "pyproject.toml").write_text(f'[tool.sa_jobqueue]\nembedded_dir = "{folder}"\n')
        option = ["--embedded-dir", folder] if place == "option" else []
        env = {"SA_JOBQUEUE_EMBEDDED_DIR": folder} if place == "environment" else {}
        return invoke("embedded", "path", *option, env=env)

    assert path_of("~/x").stdout == f"{tmp_path}/me/x\n"
    result = path_of("~nosuch/x")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "'~nosuch/x': there is no such home folder: set SA_JOBQUEUE_EMBEDDED_DIR" in result.stderr
