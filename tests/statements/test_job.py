"""The row as an object of a session: how it reads, and what may be done to it."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, func, select, update
from sqlalchemy.exc import StatementError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, aliased, load_only

from sa_jobqueue.enqueueing.jobs import enqueue
from sa_jobqueue.errors import OptionError, StatusError
from sa_jobqueue.models import Job, JsonText
from sa_jobqueue.rules.lifecycle import JobStatus
from sa_jobqueue.statements import cancel_jobs
from sa_jobqueue.tasks.registry import TaskName
from tests.support.factory import TABLE, make_job

HOUR = timedelta(hours=1)
READINGS = ("is_scheduled", "is_retrying", "is_live", "is_finished")

#: The row, and the readings that are true of it.
ROWS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"is_live"}),
    ({"run_at": func.now() + HOUR}, {"is_live", "is_scheduled"}),
    ({"attempt": 1}, {"is_live", "is_retrying"}),
    ({"attempt": 1, "run_at": func.now() + HOUR}, {"is_live", "is_retrying", "is_scheduled"}),
    ({"status": "blocked", "run_at": func.now() + HOUR}, {"is_live"}),
    ({"status": "running", "attempt": 2, "run_at": func.now() + HOUR}, {"is_live"}),
    ({"status": "completed", "attempt": 1}, {"is_finished"}),
    ({"status": "failed", "attempt": 1}, {"is_finished"}),
    ({"status": "cancelled"}, {"is_finished"}),
]


@pytest.mark.parametrize(("row", "wanted"), ROWS)
def test_readings_are_the_same_in_python_and_in_sql(session: Session, row: dict[str, Any], wanted: set[str]) -> None:
    """Whatever was loaded of the object before."""
    id = make_job(session.connection(), **row)

    readings = session.execute(select(*(getattr(Job, name).label(name) for name in READINGS))).mappings().one()
    assert {name for name in READINGS if readings[name]} == wanted
    for options in ([], [load_only(Job.id)]):
        session.expunge_all()
        job = session.scalars(select(Job).where(Job.id == id).options(*options)).one()
        assert {name for name in READINGS if getattr(job, name)} == wanted


def test_a_delay_that_is_set_on_a_loaded_job_becomes_a_time(session: Session) -> None:
    """As that of a new one: counted by the database, and a time again after the flush."""
    job = enqueue(TaskName("mail"))
    session.add(job)
    session.commit()

    job.run_at = HOUR  # type: ignore[assignment]
    assert job.is_scheduled
    session.flush()

    assert job.run_at == session.scalar(select(func.now())) + HOUR
    assert job.is_scheduled
    session.refresh(job)
    assert job.run_at == session.scalar(select(func.now())) + HOUR


def test_a_delay_of_a_subclass_becomes_a_time(session: Session) -> None:
    """With the application's own mapped class, at the INSERT and at the UPDATE."""

    class AppJob(Job):
        pass

    job = AppJob(task="mail", run_at=HOUR)
    session.add(job)
    session.flush()
    assert job.run_at == job.created_at + HOUR

    job.run_at = 2 * HOUR  # type: ignore[assignment]
    session.flush()
    assert job.run_at == job.created_at + 2 * HOUR  # in one transaction


async def test_a_delay_that_is_set_in_an_async_session_becomes_a_time(async_session: AsyncSession) -> None:
    """Without a lazy load, which would fail there."""
    job = enqueue(TaskName("mail"))
    async_session.add(job)
    await async_session.flush()

    job.run_at = HOUR  # type: ignore[assignment]
    await async_session.flush()

    assert job.run_at == job.created_at + HOUR  # in one transaction
    assert job.is_scheduled


def test_a_time_that_is_set_on_a_loaded_job_stays_as_it_is(session: Session) -> None:
    """And costs no query."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    job = enqueue(TaskName("mail"))
    session.add(job)
    session.flush()

    job.run_at = moment
    session.flush()

    assert job.__dict__["run_at"] is moment


def test_a_time_is_reckoned_with_in_sql(session: Session) -> None:
    """As any timestamptz: it can be compared and subtracted, and set from itself, as to postpone a whole queue."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    job = enqueue(TaskName("mail").options(run_at=moment))
    session.add(job)
    session.flush()

    session.execute(update(Job).where(Job.queue == "default").values(run_at=Job.run_at + HOUR))
    session.refresh(job)
    assert job.run_at == moment + HOUR
    job.run_at = Job.run_at - 2 * HOUR  # type: ignore[assignment]
    session.flush()
    assert job.run_at == moment - HOUR
    assert session.scalars(select(Job.id).where(Job.run_at + HOUR == moment, Job.run_at > moment - 2 * HOUR)).all()
    assert session.scalar(select(Job.run_at - moment)) == -HOUR
    assert session.scalars(cancel_jobs(Job.run_at + HOUR <= moment)).all() == [job.id]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (datetime(2030, 1, 1), "must have a time zone, not the naive"),  # noqa: DTZ001
        (-HOUR, "must be a delay of 0 seconds or more, not"),
        ("2030-01-01", "must be a datetime with a time zone or a timedelta from now, not '2030-01-01'"),
        (7, "must be a datetime with a time zone or a timedelta from now, not 7"),
        (datetime.max.replace(tzinfo=timezone(-HOUR)), "is outside of the calendar in UTC"),
    ],
)
def test_what_is_no_due_time_is_refused_before_the_flush(session: Session, value: Any, said: str) -> None:
    """A flush that fails would take along what else is in it; in a statement the same is said."""
    job = enqueue(TaskName("mail"))
    session.add(job)

    with pytest.raises(OptionError, match=said):
        job.run_at = value
    with pytest.raises(OptionError, match=said):
        Job(task="mail", run_at=value)
    session.flush()
    with pytest.raises(StatementError, match=said):
        session.execute(update(Job).values(run_at=value))
    assert session.scalar(select(func.count(Job.id))) == 1


def test_a_job_that_is_not_loaded_shows_its_id(session: Session) -> None:
    """Its row is not read for that, which could fail."""
    job = enqueue(TaskName("mail"))
    assert repr(job) == "<Job None 'mail' in 'default': queued>"
    session.add(job)
    session.flush()
    assert repr(job) == f"<Job {job.id} 'mail' in 'default': queued>"
    id = job.id
    session.expire_all()
    assert repr(job) == f"<Job {id}, not loaded>"


# ---- the arguments


def test_arguments_go_to_the_database_as_they_were_encoded(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are decoded when they are read, and not before."""
    with monkeypatch.context() as patch:
        patch.delattr("sa_jobqueue.models.base.from_json")
        job = enqueue(TaskName("mail").options(meta={"trace": [1]}), to="ada")
        session.add(job)
        session.flush()

    assert (job.args, job.meta) == ({"to": "ada"}, {"trace": [1]})
    assert job.args is job.args
    assert not session.dirty
    session.refresh(job)
    assert (job.args, job.meta) == ({"to": "ada"}, {"trace": [1]})


def test_arguments_can_be_changed_before_the_flush(session: Session) -> None:
    """In place, or as a whole."""
    one, other = enqueue(TaskName("mail"), to="ada"), enqueue(TaskName("mail"), to="ada")
    one.args["copies"] = 2
    other.args = {"to": "bob"}
    session.add_all([one, other])
    session.commit()

    assert (one.args, other.args) == ({"to": "ada", "copies": 2}, {"to": "bob"})


@pytest.mark.parametrize("flushed", [False, True])
def test_arguments_are_pickled_and_merged_as_they_are(session: Session, flushed: bool) -> None:
    """Also of a job whose arguments were not read yet."""
    job = enqueue(TaskName("mail"), to="ada")
    if flushed:
        session.add(job)
        session.flush()
        session.expunge(job)
    again = pickle.loads(pickle.dumps(job))
    merged = session.merge(again)
    session.flush()

    assert job.args == again.args == merged.args == {"to": "ada"}
    assert session.scalar(select(TABLE.c.args)) == {"to": "ada"}


def test_arguments_of_a_subclass_are_decoded_too(session: Session) -> None:
    """`args` of an application's subclass of `Job` is a dict, not text."""

    class MailJob(Job):
        pass

    job = MailJob(task="mail", args=JsonText('{"to":"ada"}'))
    assert job.args == {"to": "ada"}
    session.add(MailJob(task="mail", args=JsonText('{"to":"bob"}')))
    session.flush()
    assert session.scalars(select(MailJob.args)).all() == [{"to": "bob"}]


def test_arguments_are_compared_as_jsonb(session: Session) -> None:
    """By key, by containment, as a whole; through an alias too."""
    session.add_all([enqueue(TaskName("mail"), to="ada", copies=2), enqueue(TaskName("mail"), to="bob")])
    session.flush()
    job = aliased(Job)

    for where in (
        Job.args["to"].astext == "ada",
        Job.args["copies"].as_integer() == 2,
        Job.args.contains({"to": "ada"}),
        Job.args.has_key("copies"),
        Job.args == {"to": "ada", "copies": 2},
    ):
        assert session.scalars(select(Job.args["to"]).where(where)).all() == ["ada"]
    assert session.scalars(select(job.args).where(job.args.contains({"to": "bob"}))).one() == {"to": "bob"}


def test_an_index_on_a_nested_argument_serves_the_query(session: Session) -> None:
    """An argument is read by arrows, as most people write the expression of an index.

    For a plain JSONB column SQLAlchemy writes `args['to']` since 2.0.42, which PostgreSQL does not take for `args -> 'to'`.
    """
    connection = session.connection()
    connection.exec_driver_sql("CREATE INDEX job_by_city ON sa_jobqueue.job ((args -> 'to' ->> 'city'))")
    connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
    asked = select(Job.id).where(Job.args["to"]["city"].astext == "Delft")
    statement = asked.compile(connection, compile_kwargs={"literal_binds": True})

    assert "job_by_city" in "".join(connection.exec_driver_sql(f"EXPLAIN {statement}").scalars())


# ---- the status


def detached(engine: Engine, **row: Any) -> Job:
    """A job that was loaded, and is in no session any more."""
    with engine.begin() as connection:
        id = make_job(connection, **row)
    with Session(engine) as session:
        return session.scalars(select(Job).where(Job.id == id)).one()


def statuses(connection: Connection) -> list[str]:
    return list(connection.scalars(select(TABLE.c.status)))


@pytest.mark.parametrize("loaded", [True, False])
def test_a_job_can_be_merged(engine: Engine, session: Session, loaded: bool) -> None:
    """Into a session that has it, or loads it then: its status is what the row's is."""
    job = detached(engine, status="completed")
    kept = session.scalars(select(Job)).one() if loaded else None

    job.meta = {"seen": True}
    merged = session.merge(job)
    session.flush()

    assert kept is None or merged is kept
    assert merged.status is JobStatus.COMPLETED
    assert session.scalar(select(TABLE.c.meta)) == {"seen": True}


def test_a_new_job_can_be_merged(session: Session) -> None:
    """It is inserted, queued."""
    merged = session.merge(enqueue(TaskName("mail").options(delay=HOUR), to="ada"))
    session.flush()

    assert (merged.status, merged.run_at) == (JobStatus.QUEUED, merged.created_at + HOUR)
    assert session.execute(select(TABLE.c.status, TABLE.c.args)).one() == (JobStatus.QUEUED, {"to": "ada"})


@pytest.mark.parametrize(
    "since",
    [{"status": "completed", "claims": 1, "attempt": 1}, {"claims": 1, "run_at": func.now() + HOUR}],
    ids=["completed", "put off"],
)
def test_an_older_state_is_not_merged_into_the_row(engine: Engine, session: Session, since: dict[str, Any]) -> None:
    """It would run a job again that is done or was put off, or restore the number of an earlier claim. Nothing is copied."""
    job = detached(engine)
    with engine.begin() as connection:
        connection.execute(update(TABLE).values(since))
        before = connection.execute(select(TABLE)).one()

    with pytest.raises(StatusError, match="retry_jobs"):
        session.merge(job)
    session.commit()
    assert session.execute(select(TABLE)).one() == before


@pytest.mark.parametrize("row", [{"status": "completed"}, {"claims": 1}], ids=str)
def test_a_job_with_a_past_that_was_deleted_is_not_merged(
    engine: Engine, session: Session, row: dict[str, Any]
) -> None:
    """A row begins its life queued; nothing of a refused one is left in the session."""
    job = detached(engine, **row)
    with engine.begin() as connection:
        connection.execute(delete(TABLE))

    with pytest.raises(StatusError, match="by merging an older object"):
        session.merge(job)
    session.commit()
    assert statuses(session.connection()) == []
