"""Changing what jobs are to do, and copies of jobs, by their effect."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, func, select, true
from sqlalchemy.orm import Session

from sa_jobqueue import Registry, enqueue, task
from sa_jobqueue.errors import OptionError, PayloadError
from sa_jobqueue.models import GATE, Job, UniqueKey
from sa_jobqueue.statements import copy_jobs, edit_jobs, retry_jobs
from tests.support.factory import make_job, row, statuses, wait_until_blocked_by
from tests.support.working import drain

LATER = datetime(2031, 1, 31, 9, tzinfo=UTC)


@pytest.fixture
def connection(engine: Engine) -> Any:
    with engine.connect() as made:
        yield made


def copies(connection: Connection, *ids: int, **options: Any) -> list[tuple[int, int | None]]:
    return [(one.id, one.duplicate_of) for one in connection.execute(copy_jobs(Job.id.in_(ids), **options))]


# ---- edit_jobs


@pytest.mark.parametrize("status", ["queued", "blocked", "completed", "failed", "cancelled"])
def test_what_does_not_run_is_changed(connection: Connection, status: str) -> None:
    """And nothing but what was named."""
    id = make_job(
        connection, status, args={"a": 1}, meta={"tags": ["x"]}, attempt=2, subject_type="Order", subject_id="7"
    )
    before = row(connection, id)._asdict()
    statement = edit_jobs(Job.id == id, args={"b": [2, None]}, queue="mail", priority=9, run_at=LATER)
    assert connection.scalars(statement).all() == [id]
    changed = {"args": {"b": [2, None]}, "queue": "mail", "priority": 9, "run_at": LATER}
    assert row(connection, id)._asdict() == before | changed


def test_a_job_that_runs_is_left(connection: Connection) -> None:
    """Its worker has its arguments already."""
    id = make_job(connection, "running", args={"a": 1})
    assert connection.scalars(edit_jobs(true(), args={})).all() == []
    assert connection.execute(edit_jobs(true(), args={}, locked="skip")).all() == []
    assert row(connection, id).args == {"a": 1}


def test_a_time_from_now_is_the_databases(connection: Connection) -> None:
    id = make_job(connection, run_at=timedelta(days=3))
    connection.execute(edit_jobs(Job.id == id, run_at=timedelta(minutes=5)))
    assert row(connection, id).run_at == connection.scalar(select(func.now() + timedelta(minutes=5)))
    connection.execute(edit_jobs(Job.id == id, run_at=timedelta(0)))
    assert row(connection, id).run_at == connection.scalar(select(func.now()))


def test_it_holds_against_a_claim_at_the_same_moment(engine: Engine, connection: Connection) -> None:
    """It waits for the claim's transaction, and then leaves what runs."""
    id = make_job(connection)
    connection.commit()
    with engine.connect() as claiming:
        claiming.execute(select(Job.id).where(Job.id == id).with_for_update(key_share=True))
        assert connection.execute(edit_jobs(Job.id == id, priority=9, locked="skip")).all() == [(id, False)]
        connection.commit()
        with ThreadPoolExecutor(1) as threads:
            edited = threads.submit(lambda: connection.scalars(edit_jobs(Job.id == id, priority=9)).all())
            wait_until_blocked_by(claiming)
            claiming.exec_driver_sql(
                "UPDATE sa_jobqueue.job SET status = 'running', claim_token = 1, lease_expires_at = now() + interval '1 min'"
            )
            claiming.commit()
            assert edited.result() == []
    assert row(connection, id).priority == 4


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({}, ValueError, "is to change something"),
        ({"args": [1]}, TypeError, "takes arguments by name, not list"),
        ({"args": {"a": float("nan")}}, PayloadError, "argument a: nan cannot be a number"),
        ({"args": {"a": "\0"}}, PayloadError, "NUL character"),
        ({"args": {"a": "x" * 1_048_576}}, PayloadError, "bytes of JSON, more than the 1,048,576"),
        ({"args": {"a": (1, 2)}}, PayloadError, "is not plain JSON"),
        ({"queue": ""}, OptionError, "1 to 200 characters"),
        ({"queue": "a\0"}, OptionError, "NUL"),
        ({"priority": 10}, OptionError, "from 0 to 9"),
        ({"priority": True}, OptionError, "from 0 to 9"),
        ({"run_at": datetime(2030, 1, 1)}, OptionError, "must have a time zone"),  # noqa: DTZ001
        ({"run_at": timedelta(-1)}, OptionError, "0 seconds or more"),
        ({"priority": 1, "locked": "later"}, ValueError, "must be one of wait, nowait, skip"),
    ],
)
def test_what_cannot_be_is_refused_before_any_sql(changes: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        edit_jobs(Job.id == 1, **changes)


def test_the_jobs_are_to_be_named() -> None:
    with pytest.raises(ValueError, match="say which jobs: edit_jobs"):
        edit_jobs(priority=1)
    with pytest.raises(ValueError, match="say which jobs: copy_jobs"):
        copy_jobs()
    with pytest.raises(TypeError, match="takes conditions"):
        copy_jobs(7)  # type: ignore[arg-type]


def test_a_finished_job_that_was_edited_runs_as_it_is_then(connection: Connection) -> None:
    id = make_job(connection, "failed", args={"a": 1})
    connection.execute(edit_jobs(Job.id == id, args={"a": 2}))
    assert row(connection, id).status == "failed"
    assert connection.scalars(retry_jobs(Job.id == id)).all() == [id]
    assert (row(connection, id).status, row(connection, id).args) == ("queued", {"a": 2})


# ---- copy_jobs


@pytest.mark.parametrize("status", ["queued", "running", "completed", "failed", "cancelled"])
def test_a_copy_is_to_do_the_same_and_has_done_nothing(connection: Connection, status: str) -> None:
    id = make_job(
        connection, status, queue="mail", args={"a": [1]}, meta={"tags": ["x"]}, priority=7, max_attempts=3, attempt=2, rescues=1,
        errors=[{"type": "E"}], concurrency_key="k", units=2, subject_type="Order", subject_id="7", schedule_id=5, ticks=2,
    )  # fmt: skip
    ((copy, duplicate_of),) = copies(connection, id)
    found, old = row(connection, copy), row(connection, id)
    assert duplicate_of is None
    for name in (
        "task", "args", "queue", "meta", "priority", "max_attempts", "concurrency_key", "units", "subject_type", "subject_id"
    ):  # fmt: skip
        assert getattr(found, name) == getattr(old, name), name
    assert (found.status, found.attempt, found.claims, found.rescues, found.errors) == ("queued", 0, 0, 0, [])
    for name in ("schedule_id", "ticks", "result", "worker", "claimed_at", "finished_at", "purge_at", "claim_token"):
        assert getattr(found, name) is None, name
    assert found.run_at == connection.scalar(select(func.now()))
    assert old.status == status


def test_a_copy_may_be_for_later(connection: Connection) -> None:
    ((copy, _),) = copies(connection, make_job(connection), delay=timedelta(hours=1))
    assert row(connection, copy).run_at == connection.scalar(select(func.now() + timedelta(hours=1)))


def test_limits_of_time_are_as_far_away_as_they_were(connection: Connection) -> None:
    id = make_job(
        connection,
        "failed",
        created_at=timedelta(hours=-5),
        expires_at=timedelta(hours=-4),
        deadline_at=timedelta(hours=-3),
    )
    ((copy, _),) = copies(connection, id)
    expires, deadline, now = row(connection, copy).expires_at, row(connection, copy).deadline_at, func.now()
    assert (expires, deadline) == connection.execute(select(now + timedelta(hours=1), now + timedelta(hours=2))).one()
    early = make_job(connection, "failed", created_at=timedelta(0), expires_at=timedelta(hours=-4))
    ((copy, _),) = copies(connection, early)
    assert row(connection, copy).expires_at is None


@pytest.mark.parametrize("clash", ["skip", "replace", "raise"])
def test_the_copy_of_a_unique_job_takes_its_key_if_it_is_free(connection: Connection, clash: str) -> None:
    """Else it is a duplicate; no other job changes by it, and nothing fails."""
    rule = {"key": "k", "on_clash": clash}
    holder = make_job(connection, uniqueness=rule, args={"a": 1})
    ((copy, duplicate_of),) = copies(connection, holder)
    assert duplicate_of == holder
    assert row(connection, copy).status == "cancelled"
    assert row(connection, holder).args == {"a": 1}
    connection.execute(UniqueKey.__table__.delete())
    ((second, duplicate_of),) = copies(connection, holder)
    assert duplicate_of is None
    assert row(connection, second).uniqueness == {"key": "k"}
    assert connection.scalar(select(UniqueKey.job_id).where(UniqueKey.key == "k")) == second


def test_what_depends_on_others_is_not_copied(connection: Connection) -> None:
    """A member that takes results has nothing to fill in; a gate has no handler. A name that a claim has given is no key."""
    make_job(connection, "completed", inputs=1)
    make_job(connection, "completed", task=GATE)
    limited = make_job(connection, "completed", concurrency_key="\x01a_task")
    ((copy, _),) = [(one.id, None) for one in connection.execute(copy_jobs(true()))]
    assert row(connection, copy).concurrency_key is None
    assert len(statuses(connection)) == 4
    assert copy > limited


registry = Registry()


@task(name="edit.note", registry=registry)
def note(text: str) -> None: ...


def test_an_edited_job_and_its_copy_are_run(engine: Engine) -> None:
    """By a worker, with the arguments that they were given last."""
    with Session(engine) as session:
        session.add(job := enqueue(note.options(delay=3_600), text="a"))
        session.flush()
        session.execute(edit_jobs(Job.id == job.id, args={"text": "b"}, run_at=timedelta(0)))
        ((copy, _),) = session.execute(copy_jobs(Job.id == job.id)).all()
        session.commit()
        ids = [job.id, copy]
    drain(engine, registry)
    with engine.connect() as connection:
        assert [(row(connection, id).status, row(connection, id).args) for id in ids] == [
            ("completed", {"text": "b"})
        ] * 2
