"""Jobs that are in the archive: code that asks for one by its id gets its answer from there."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text

from sa_jobqueue import JobStatus, explain_job, wait_for
from sa_jobqueue.migrations.grants import Can, grant_statements
from tests.support import pooler
from tests.support.archiving import archived_job, move
from tests.support.awaiting import PATIENCE, TOLD, awaited, running, waiting_over
from tests.support.cli import as_json, invoke
from tests.support.explaining import why
from tests.support.factory import change, make_job
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("soon_closed")

ERROR = {"at": "2026-01-02T03:04:05+00:00", "attempt": 3, "type": "ValueError", "message": "bad image", "traceback": ""}


@pytest.fixture(autouse=True)
def own(database_url: str) -> str:
    """A database of the test's own: its archive has no month yet."""
    return database_url


def statements_of(engine: Engine, do: Callable[[], Any]) -> list[str]:
    """What is executed meanwhile."""
    seen: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        do()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    return seen


# ---- explain_job


@pytest.mark.parametrize(
    ("status", "columns", "said"),
    [
        ("completed", {}, "it has completed"),
        ("failed", {"attempt": 3, "max_attempts": 3, "errors": [ERROR]},
         "it has failed after 3 of 3 attempts: ValueError: bad image"),
        ("cancelled", {"cancel_requested_at": timedelta(minutes=-1)}, "it was cancelled on request"),
        ("cancelled", {"errors": [ERROR]}, "it was cancelled: ValueError: bad image"),
        ("cancelled", {"duplicate_of": 7}, "it is a duplicate of job 7"),
        ("cancelled", {"duplicate_of": 0}, "it is a duplicate of another job"),
    ],
)  # fmt: skip
def test_how_an_archived_job_ended_is_said(engine: Engine, status: str, columns: dict[str, Any], said: str) -> None:
    """Nothing can be done about it any more, and no command is proposed."""
    id = archived_job(engine, status, task="kept", queue="mail", **columns)
    found = why(engine, id)
    assert (found.status, found.task, found.queue, found.needs_help) == (JobStatus(status), "kept", "mail", False)
    assert found.archived_at is not None
    (reason,) = found
    assert (reason.what, reason.advice(id)) == ("archived", "")
    assert str(found).startswith(f"job {id} (kept) has ended at ")
    assert str(found).endswith(f"and is in the archive: {said}")


def test_the_archive_is_looked_into_only_where_there_is_one_and_the_job_is_not_there(engine: Engine) -> None:
    """A job that is there costs one statement, as before."""

    def look(id: int) -> list[str]:
        with engine.connect() as connection:
            return statements_of(engine, lambda: explain_job(connection, id))

    with engine.begin() as connection:
        there = make_job(connection, "completed")
    assert len(look(there)) == 1
    assert not any("FROM sa_jobqueue.archived_job" in one for one in look(there + 1))
    archived_job(engine)
    assert len(look(there)) == 1
    assert any("FROM sa_jobqueue.archived_job" in one for one in look(there + 1_000))
    assert why(engine, there + 1_000).status is None


def test_the_shell_says_it_too(engine: Engine, url: str) -> None:
    """As no fault: there is nothing to be done."""
    id = archived_job(engine, "failed", errors=[ERROR])
    answer = as_json("why", str(id), url=url)
    assert (answer["status"], answer["needs_help"], answer["reasons"][0]["what"]) == ("failed", False, "archived")
    assert answer["archived_at"]
    shown = invoke("why", str(id), url=url)
    assert shown.exit_code == 0
    assert "is in the archive: it has failed" in " ".join(shown.stdout.split())


# ---- wait_for


@pytest.mark.parametrize("driver", TOLD)
def test_the_end_of_an_archived_job_is_an_answer(engine: Engine, url: str, driver: str) -> None:
    """With its result, or its error."""
    done = archived_job(engine, task="kept", result={"a": 1})
    failed = archived_job(engine, "failed", task="kept", errors=[ERROR])
    end = waiting_over(driver)(url, done)
    assert (end.task, end.status, end.result, end.is_gone) == ("kept", JobStatus.COMPLETED, {"a": 1}, False)
    end = waiting_over(driver)(url, failed)
    assert (end.status, end.error) == (JobStatus.FAILED, ERROR)


def test_a_job_that_is_moved_during_the_wait_is_found(engine: Engine, threads: ThreadPoolExecutor) -> None:
    """Its end and its move are one transaction: no look has seen it as ended in its table."""
    from sa_jobqueue.rules.outcomes import Discard
    from sa_jobqueue.sql.store import default_store

    archived_job(engine)
    id = running(engine)
    waits = threads.submit(wait_for, engine, id, timeout=PATIENCE)
    wait_until(lambda: awaited(engine) == {id})
    with engine.begin() as connection:
        default_store.apply(connection, [change(connection, id, Discard("no such order"))])
        move(connection, id)
    assert waits.result().status is JobStatus.FAILED


def test_a_wait_looks_into_the_archive_only_for_jobs_that_are_gone(engine: Engine) -> None:
    """Of several, for those alone; and whether there is an archive is asked once."""
    with engine.begin() as connection:
        there = make_job(connection, "completed")
    assert not any(
        "archived_job" in one for one in statements_of(engine, lambda: wait_for(engine, there, timeout=PATIENCE))
    )

    def gone() -> None:
        assert [wait_for(engine, there + n, timeout=PATIENCE).is_gone for n in (1, 2, 3)] == [True] * 3

    asked = [one for one in statements_of(engine, gone) if "archived_job" in one]
    assert len(asked) == 1
    assert "pg_inherits" in asked[0]


@pytest.mark.parametrize("can", [Can.WAIT, Can.READ])
def test_a_role_that_may_wait_or_read_finds_it(engine: Engine, database_url: str, can: Can) -> None:
    """And one that has its rights from an earlier release is told that the job is gone, as before."""
    if pooler.is_pooled(database_url):
        pytest.skip("a role is set for a session")
    id, role = archived_job(engine), f"archive_{os.getpid()}_{can.value}"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role}"))
        for statement in grant_statements(role, [can]):
            connection.execute(text(statement))
    own = create_engine(database_url, connect_args={"options": f"-c role={role}"})
    before = create_engine(database_url, connect_args={"options": f"-c role={role}"})
    try:
        assert wait_for(own, id, timeout=PATIENCE).is_completed
        with engine.begin() as connection:
            connection.execute(text(f"REVOKE ALL ON sa_jobqueue.archived_job FROM {role}"))
            connection.execute(
                text(f"REVOKE SELECT (id, task, status, result, errors) ON sa_jobqueue.archived_job FROM {role}")
            )
        assert wait_for(before, id, timeout=PATIENCE).is_gone
    finally:
        own.dispose()
        before.dispose()
        wait_until(lambda: awaited(engine) == set())
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))
