"""Secret arguments on a real server: rows, workers, displays, and the rotation of keys."""

from __future__ import annotations

import json
import logging
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from sqlalchemy import Engine, insert, select, text, update
from sqlalchemy.orm import Session
from typer.testing import Result

from sa_jobqueue import (
    BatchContext,
    Batching,
    Job,
    JobStatus,
    Registry,
    Schedule,
    Secret,
    SecretKeys,
    Sensitive,
    TaskName,
    Workflow,
    enqueue,
    every,
    task,
)
from sa_jobqueue.models import ArchivedJob, WorkflowCallback
from sa_jobqueue.statements import copy_jobs, edit_jobs, retry_jobs
from sa_jobqueue.tasks.tasks import AnyTask
from sa_jobqueue.testing import assert_enqueued, assert_not_enqueued
from sa_jobqueue.testing import drain as drain_here
from tests.support.cli import as_json, invoke, output, refused
from tests.support.commands import run_command, start_command
from tests.support.waiting import wait_until
from tests.support.working import add_one, drain, job_of

OLD, NEW = b"o" * 32, b"n" * 32
VALUE = "tok-4711"

APP = """
import os
from typing import Annotated

from sa_jobqueue import Registry, Secret, SecretKeys, Sensitive, task

keys = dict(pair.split("=", 1) for pair in os.environ["KEYS"].split())
registry = Registry(secrets=SecretKeys(keys, current=os.environ["CURRENT"]))


@task(registry=registry, name="shop.sync", record=True, executor=os.environ.get("EXECUTOR"))
def sync(n: int, token: Annotated[str, Secret()], email: Annotated[str, Sensitive()] = "") -> int:
    return len(token) + n
"""


def environment(current: str, **keys: bytes) -> dict[str, str]:
    """The settings of the application: its keys, and which is current."""
    return {"CURRENT": current, "KEYS": " ".join(f"{name[1:]}={b64encode(key).decode()}" for name, key in keys.items())}


BOTH, LATER = environment("2026", k2025=OLD, k2026=NEW), environment("2026", k2026=NEW)


@pytest.fixture
def keys(registry: Registry) -> Registry:
    registry.secrets = SecretKeys({"2025": OLD}, current="2025")
    return registry


@pytest.fixture
def got() -> list[Any]:
    return []


@pytest.fixture
def sync(keys: Registry, got: list[Any]) -> AnyTask:
    """A task that notes the secrets that its handler gets."""

    @task(registry=keys, name="shop.sync")
    def sync(n: int, token: Annotated[str, Secret()], email: Annotated[str, Sensitive()] = "") -> None:
        if n < 0:
            raise ValueError("no")
        got.append((n, token, email))

    return sync


def dumped(engine: Engine) -> str:
    """All rows of jobs, schedules, callbacks and the archive as text, as in a backup."""
    tables = ("job", "schedule", "workflow_callback", "archived_job")
    with engine.connect() as connection:
        return "".join(
            str(connection.scalar(text(f"SELECT json_agg(found) FROM sa_jobqueue.{table} AS found")))
            for table in tables
        )


def test_only_the_handler_gets_a_secret(
    engine: Engine, database_url: str, sync: AnyTask, got: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The value is in no row, no log line and no display; a copy and a retry run with it. A sensitive value is only in the row."""
    caplog.set_level(logging.DEBUG)
    done = add_one(engine, enqueue(sync, 1, VALUE, "ada@b"))
    failed = add_one(engine, enqueue(sync.options(max_attempts=1), -1, VALUE, "ada@b"))
    drain(engine, sync.registry)
    with engine.begin() as connection:
        connection.execute(copy_jobs(Job.id == done))
        connection.execute(retry_jobs(Job.id == failed))
        connection.execute(retry_jobs(Job.id == done))
    drain(engine, sync.registry)
    assert got == [(1, VALUE, "ada@b")] * 3
    assert VALUE not in dumped(engine)
    shown = (
        output("show", str(done), url=database_url), output("show", str(failed), "--json", url=database_url),
        output("list", "--json", url=database_url), output("errors", "--json", url=database_url), caplog.text,
        repr(job_of(engine, done)),
    )  # fmt: skip
    for words in shown:
        assert VALUE not in words
        assert "ada@b" not in words
        assert "$secret" not in words
    assert as_json("show", str(done), url=database_url)["args"] == {"n": 1, "token": "(hidden)", "email": "(hidden)"}


def test_the_list_of_schedules_shows_no_secret(engine: Engine, database_url: str, sync: AnyTask) -> None:
    """Also as JSON, which has the arguments."""
    with Session(engine) as session:
        session.add(Schedule(every(3600), sync, 1, VALUE, "ada@b", name="hourly"))
        session.commit()
    (shown,) = as_json("schedule", "list", url=database_url)
    assert shown["args"] == {"n": 1, "token": "(hidden)", "email": "(hidden)"}


def test_a_batch_handler_gets_secrets_and_a_missing_key_fails_only_its_jobs(
    engine: Engine, keys: Registry, got: list[Any]
) -> None:
    """The batch runs without them."""

    @task(registry=keys, name="shop.sync_all", batch=Batching(10))
    def sync_all(ctx: BatchContext, tokens: list[Annotated[str, Secret()]]) -> None:
        got.append(tokens)

    lost = add_one(engine, enqueue(sync_all, "lost"))
    keys.secrets = SecretKeys({"2026": NEW}, current="2026")
    for number in range(3):
        add_one(engine, enqueue(sync_all, f"{VALUE}-{number}"))
    drain(engine, keys)
    assert sorted(token for tokens in got for token in tokens) == [f"{VALUE}-{number}" for number in range(3)]
    assert "encrypted with the key '2025', which is not among" in job_of(engine, lost).errors[0]["message"]
    assert VALUE not in dumped(engine)


def test_the_archive_shows_no_secret(engine: Engine, database_url: str, sync: AnyTask) -> None:
    """Archived jobs keep their secrets encrypted, and `show` masks them."""
    done = add_one(engine, enqueue(sync, 1, VALUE, "ada@b"))
    drain(engine, sync.registry)
    with engine.begin() as connection:
        row = connection.execute(select(Job.__table__).where(Job.id == done)).mappings().one()
        names = [column.name for column in ArchivedJob.__table__.columns if column.name in row]
        connection.execute(text("SELECT sa_jobqueue.make_archive_months(ARRAY[now()])"))
        connection.execute(ArchivedJob.__table__.insert().values({name: row[name] for name in names}))
        connection.execute(Job.__table__.delete().where(Job.id == done))
    assert as_json("show", str(done), url=database_url)["args"]["token"] == "(hidden)"
    assert "in the archive" in output("show", str(done), url=database_url)


def test_a_job_whose_key_is_missing_can_be_retried_after_it_is_back(
    engine: Engine, sync: AnyTask, got: list[Any]
) -> None:
    """It fails at once, with the name of the key, and no other attempt is spent."""
    job = add_one(engine, enqueue(sync, 1, VALUE))
    sync.registry.secrets = SecretKeys({"2026": NEW}, current="2026")  # type: ignore[misc]
    drain(engine, sync.registry)
    found = job_of(engine, job)
    assert (found.status, len(found.errors)) == (JobStatus.FAILED, 1)
    assert (
        "encrypted with the key '2025', which is not among the registry's keys ('2026')" in found.errors[0]["message"]
    )
    sync.registry.secrets = SecretKeys({"2026": NEW, "2025": OLD}, current="2026")  # type: ignore[misc]
    with engine.begin() as connection:
        connection.execute(retry_jobs(Job.id == job))
    drain(engine, sync.registry)
    assert got == [(1, VALUE, "")]


def test_a_ciphertext_in_another_place_fails_its_job(
    engine: Engine, keys: Registry, sync: AnyTask, got: list[Any]
) -> None:
    """Someone who may write rows cannot let another task, or another argument, read a secret."""

    @task(registry=keys, name="shop.print")
    def show(token: Annotated[str, Secret()], other: Annotated[str | None, Secret()] = None) -> None:
        got.append(token)

    secret = add_one(engine, enqueue(sync, 1, VALUE))
    stolen = add_one(engine, enqueue(show, "mine"))
    moved = add_one(engine, enqueue(show, "mine"))
    with engine.begin() as connection:
        token = job_of(engine, secret).args["token"]
        own = job_of(engine, moved).args["token"]
        connection.execute(update(Job).where(Job.id == stolen).values(args={"token": token}))
        connection.execute(update(Job).where(Job.id == moved).values(args={"token": own, "other": own}))
    drain(engine, keys)
    assert got == [(1, VALUE, "")]
    for job, name in ((stolen, "token"), (moved, "other")):
        message = job_of(engine, job).errors[0]["message"]
        assert f"argument {name}: the key '2025' does not decrypt it: it was changed, or belongs to another" in message


def test_a_replaced_job_keeps_a_secret_readable(engine: Engine, sync: AnyTask, got: list[Any]) -> None:
    """A debounced call gives the waiting job its own secret, and `Task.edit` a new one."""
    waits = sync.options(debounce=60)
    with Session(engine) as session:
        first = enqueue(waits, 1, "first")
        session.add(first)
        session.flush()
        session.add(enqueue(waits, 2, VALUE))
        session.flush()
        session.execute(text("UPDATE sa_jobqueue.job SET run_at = now()"))
        edited = enqueue(sync, 3, "before")
        session.add(edited)
        session.flush()
        session.execute(sync.edit(edited, 3, "after"))
        session.commit()
    drain(engine, sync.registry)
    assert sorted(got) == [(2, VALUE, ""), (3, "after", "")]


def test_plain_arguments_do_not_replace_a_secret(engine: Engine, database_url: str, sync: AnyTask) -> None:
    """`edit_jobs` and `edit` leave such a job as it is, because they would store the values in clear; other changes are made."""
    job = add_one(engine, enqueue(sync.options(delay=60), 1, VALUE))
    free = add_one(engine, enqueue("free", n=1))
    with engine.begin() as connection:
        changed = connection.scalars(edit_jobs(Job.id.in_([job, free]), args={"n": 2})).all()
        assert list(changed) == [free]
        assert connection.scalars(edit_jobs(Job.id == job, priority=9)).all() == [job]
    result = invoke("edit", str(job), "--args", '{"n": 2}', url=database_url)
    assert result.exit_code == 1
    assert f"not touched: {job} (it has secret arguments: change them in code, by Task.edit)" in result.stderr


def test_a_follow_up_gets_the_arguments_encrypted(engine: Engine, keys: Registry, sync: AnyTask) -> None:
    """The database makes it, and has no keys. `show` masks them there, too."""
    seen = list[Any]()

    @task(registry=keys, name="shop.note")
    def note(args: dict[str, Any]) -> None:
        seen.append(args["token"])

    add_one(engine, enqueue(sync.options(on_success=note), 1, VALUE))
    drain(engine, keys)
    assert seen[0].keys() == {"$secret"}


def test_assertions_compare_a_secret_in_clear(session: Session, keys: Registry, sync: AnyTask, got: list[Any]) -> None:
    """And their messages have no value. The kit's drain gives it to the handler."""
    session.add(enqueue(sync, 1, VALUE, "ada@b"))
    assert assert_enqueued(session, sync, token=VALUE, email="ada@b")
    assert_not_enqueued(session, sync, token="tok-0815")
    with pytest.raises(AssertionError, match="token, which is not shown, differs") as caught:
        assert_enqueued(session, sync, token="tok-0815")
    assert VALUE not in str(caught.value)
    assert "tok-0815" not in str(caught.value).split("is not enqueued")[0]
    with pytest.raises(AssertionError, match=r"email, which is not shown, differs, no tokn, instead of") as caught:
        assert_enqueued(session, "shop.sync", email="grace@b", tokn="")
    assert "ada@b" not in str(caught.value)
    with pytest.raises(AssertionError, match=r"token='\(hidden\)'") as caught:
        assert_not_enqueued(session, sync, token=VALUE)
    (ran,) = drain_here(session, registry=keys).listed
    assert ran.args == {"n": 1, "token": "(hidden)", "email": "(hidden)"}
    assert got == [(1, VALUE, "ada@b")]


@pytest.fixture
def command(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Runs a command in this process, with these settings of the application."""
    (tmp_path / "secret_shop.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(env: dict[str, str], *arguments: str) -> Result:
        sys.modules.pop("secret_shop", None)
        return invoke(*arguments, "--app=secret_shop:registry", url=database_url, env=env)

    yield run
    sys.modules.pop("secret_shop", None)


def test_the_command_line_encrypts_a_secret(
    engine: Engine, command: Callable[..., Result], sync: AnyTask, got: list[Any]
) -> None:
    """With --app. Where a value does not fit, the command does not print it."""
    made = command(BOTH, "enqueue", "shop.sync", json.dumps({"n": 1, "token": VALUE}))
    assert made.exit_code == 0, made.stderr
    bad = command(BOTH, "enqueue", "shop.sync", json.dumps({"n": 1, "token": [VALUE]}))
    assert bad.exit_code == 2
    assert "argument token: the value, which is not shown, does not fit str" in bad.stderr
    assert VALUE not in bad.stderr
    assert VALUE not in dumped(engine)
    sync.registry.secrets = SecretKeys({"2026": NEW}, current="2026")  # type: ignore[misc]
    drain(engine, sync.registry)
    assert got == [(1, VALUE, "")]


def test_keys_are_rotated_while_jobs_wait_and_workers_run(
    engine: Engine, database_url: str, tmp_path: Path, command: Callable[..., Result], sync: AnyTask
) -> None:
    """A worker with both keys runs old and new rows while `secrets rotate` encrypts the waiting rows. Then a worker with the new key alone runs the
    rest, in child processes. Schedules and callbacks are rotated, rows in clear are encrypted, and other arguments do not change by a digit.
    """
    exact = 10**30
    with Session(engine) as session:
        session.add(Schedule(every(3600), sync, 1, VALUE, name="hourly"))
        flow = Workflow("flow")
        flow.add(sync, 2, VALUE)
        flow.on_success(sync, 3, VALUE)
        session.add(flow)
        later = [enqueue(sync.options(delay=3600), exact, VALUE) for _ in range(23)]
        clear = enqueue(TaskName("shop.sync").options(delay=3600), n=5, token=VALUE)
        unknown = enqueue("shop.gone", token=later[0].args["token"])
        session.add_all([*later, clear, unknown])
        session.commit()
        ids = [job.id for job in (*later, clear)]
    now = [add_one(engine, enqueue(sync, number, VALUE)) for number in range(10)]

    app = {"url": database_url, "cwd": tmp_path}
    rotate = ("secrets", "rotate", "--batch=5")
    with start_command("work", "--app=secret_shop:registry", **app, env=BOTH):
        first = run_command(*rotate, "--app=secret_shop:registry", "--json", **app, env=BOTH)
        wait_until(lambda: all(job_of(engine, job).status is JobStatus.COMPLETED for job in now))
    counted = json.loads(first.stdout)
    assert first.returncode == 1  # a row of an unknown task has a ciphertext of another task
    assert (counted["schedules"], counted["callbacks"]) == (1, 1)
    assert counted["jobs"] >= 24
    (left,) = counted["left"]
    assert "(shop.gone): argument token: the key '2025' does not decrypt it" in left
    with Session(engine) as session:
        session.execute(update(Job).where(Job.task == "shop.gone").values(args={}))
        kept = session.scalars(select(Job.args).where(Job.id.in_(ids))).all()
        assert {args["token"]["$secret"][0] for args in kept} == {"2026"}
        assert sorted(args["n"] for args in kept) == [5] + [exact] * 23
        for args in (*session.scalars(select(Schedule.args)), *session.scalars(select(WorkflowCallback.args))):
            assert args["token"]["$secret"][0] == "2026"
        session.execute(update(Job).where(Job.id.in_(ids)).values(run_at=text("now()")))
        session.commit()
    assert VALUE not in dumped(engine)
    last = LATER | {"EXECUTOR": "process"}
    assert run_command("work", "--app=secret_shop:registry", "--drain", **app, env=last).returncode == 0
    assert {job_of(engine, job).status for job in ids} == {JobStatus.COMPLETED}
    again = command(LATER, *rotate)
    assert (again.exit_code, again.stdout) == (0, "encrypted again: 0 schedules, 0 callbacks, 0 jobs\n")


def test_a_rotation_without_an_old_key_names_the_rows(
    engine: Engine, database_url: str, command: Callable[..., Result], sync: AnyTask
) -> None:
    """They stay as they are. Without any keys the command is refused."""
    job = add_one(engine, enqueue(sync, 1, VALUE))
    before = job_of(engine, job).args
    found = command(LATER, "secrets", "rotate")
    assert found.exit_code == 1
    why = "argument token: it was encrypted with the key '2025', which is not among"
    assert f"left: jobs {job} (shop.sync): {why}" in found.stderr
    assert job_of(engine, job).args == before
    assert "has keys: set default_registry.secrets" in refused(
        "secrets", "rotate", "--app", "tests.support.orders:registry", url=database_url
    )


def test_a_row_that_cannot_be_read_does_not_keep_the_others_from_the_rotation(
    engine: Engine, command: Callable[..., Result], sync: AnyTask
) -> None:
    """It is named. Secrets of tasks that the application no longer has are encrypted, too."""

    @task(registry=sync.registry, name="shop.gone")  # type: ignore[arg-type]
    def gone(token: Annotated[str, Secret()]) -> None: ...

    deep = ['{"x": ' * depth + "1" + "}" * depth for depth in (300, 5_000)]
    bad = ['{"$secret": null}', '{"$secret": 7}', '{"$secret": {"a": 1}}', '{"$secret": ["2026"]}', *deep]
    with engine.begin() as connection:
        for value in bad:
            job = insert(Job).values(task="shop.sync", args=text("CAST(:args AS jsonb)"))
            connection.execute(job, {"args": f'{{"n": 1, "token": {value}}}'})
    last = [
        add_one(engine, enqueue(of, **args))
        for of, args in ((sync, {"n": 1, "token": VALUE}), (gone, {"token": VALUE}))
    ]
    found = command(BOTH, "secrets", "rotate", "--json")
    assert found.exit_code == 1
    counted = json.loads(found.stdout)
    assert [line.split(":")[0] for line in counted["left"]] == [
        f"jobs {id} (shop.sync)" for id in range(1, len(bad) + 1)
    ]
    assert counted["jobs"] == 2
    assert {job_of(engine, job).args["token"]["$secret"][0] for job in last} == {"2026"}


def test_new_key_prints_a_key() -> None:
    """It needs no database, and each key is new."""
    one, other = (invoke("secrets", "new-key").stdout.strip() for _ in range(2))
    assert one != other
    SecretKeys({"a": one, "b": other}, current="a")
