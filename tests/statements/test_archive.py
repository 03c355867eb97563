"""Moving finished jobs to the archive: nothing is lost or changed, whatever else goes on; and the months of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, func, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from sa_jobqueue import ArchivedJob, Job, JobStatus, Subject
from sa_jobqueue.models import ArchivedTask, LogPart, Progress
from sa_jobqueue.sql.claims import Fault, fault_of, is_month_missing
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import prune_jobs
from tests.support.databases import connect
from tests.support.factory import TABLE, make_job, make_jobs, refer, row, statuses, users_table
from tests.support.workflows import Flow

OVER = timedelta(seconds=-1)
OLD = timedelta(days=-400)

MONTHS = text(
    "SELECT relname FROM pg_class JOIN pg_inherits ON inhrelid = oid"
    " WHERE inhparent = 'sa_jobqueue.archived_job'::regclass ORDER BY relname"
)
DROP_MONTHS = """
    DO $$ DECLARE part text; BEGIN
        FOR part IN
            SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'sa_jobqueue.archived_job'::regclass
            UNION SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relname ~ '^archived_job_[0-9]{4}_'
        LOOP
            EXECUTE 'DROP TABLE ' || part;
        END LOOP;
    END $$
"""


@pytest.fixture(autouse=True)
def no_months(url: str) -> Iterator[None]:
    """The months that an earlier test has made are gone; other tests are not to see those of this one."""
    with connect(url) as connection:
        connection.execute(DROP_MONTHS)
    yield
    with connect(url) as connection:
        connection.execute(DROP_MONTHS)


@pytest.fixture
def kept(connection: Connection) -> str:
    """The name of a task whose jobs are archived; there are this month and the next one."""
    default_store.declare_archived(connection, ["kept"], [])
    default_store.make_months_ahead(connection)
    connection.commit()
    return "kept"


def move(connection: Connection, **options: Any) -> int:
    """How many jobs were moved or deleted."""
    return default_store.prune(connection, archive=True, **options).jobs


def archived(connection: Connection) -> list[int]:
    return list(connection.scalars(select(ArchivedJob.id).order_by(ArchivedJob.id)))


def months(connection: Connection) -> list[str]:
    return [name.removeprefix("archived_job_") for name in connection.scalars(MONTHS)]


def test_jobs_of_archived_tasks_are_moved_and_others_are_deleted(connection: Connection, kept: str) -> None:
    """When their time is over, in one page; those that are to stay, and live ones, are left."""
    moved = [make_job(connection, status, task=kept, purge_at=OVER) for status in ("completed", "failed", "cancelled")]
    make_jobs(connection, 2, "completed", purge_at=OVER)
    stay = [make_job(connection, "completed", task=kept), make_job(connection, "queued", task=kept, purge_at=OVER)]
    assert move(connection) == 5
    assert move(connection) == 0
    assert archived(connection) == moved
    assert sorted(statuses(connection)) == stay


def test_a_row_of_the_archive_is_the_job_that_it_was(connection: Connection, kept: str) -> None:
    """Each column has the value that it had, and each attribute that is read of a job is there."""
    time = {"run_at": timedelta(hours=-3), "claimed_at": timedelta(hours=-2), "finished_at": timedelta(hours=-1)}
    id = make_job(
        connection, "failed", task=kept, queue="mail", priority=7, attempt=3, max_attempts=3, claims=4, rescues=1,
        args={"n": 1}, meta={"tags": ["vip"]}, errors=[{"type": "ValueError", "message": "bad"}], result={"a": [1, None]},
        uniqueness={"key": "order 7"}, concurrency_key="tenant 3", units=2, schedule_id=5, ticks=2, workflow_id=None,
        subject_type="Order", subject_id="7", worker="w", purge_at=OVER, expires_at=timedelta(0), **time,
    )  # fmt: skip
    before = row(connection, id)
    assert move(connection) == 1
    after = connection.execute(select(ArchivedJob.__table__)).one()
    assert {name: getattr(after, name) for name in TABLE.c.keys()} == before._asdict()  # noqa: SIM118
    with Session(connection) as session:
        job = session.get_one(ArchivedJob, id)
        assert (job.status, job.is_finished, job.is_live, job.is_retrying) == (JobStatus.FAILED, True, False, False)
        assert (job.key, job.unique_key, job.is_duplicate) == ("tenant 3", "order 7", False)
        assert job.subject == Subject("Order", "7")
        assert job.end.error == {"type": "ValueError", "message": "bad"}
        assert (job.columns, job.logs, job.progress) == (None, None, None)
        assert repr(job) == f"<ArchivedJob {id} 'kept' in 'mail': failed>"
        about = select(ArchivedJob.id).where(
            ArchivedJob.subject == Subject("Order", "7"), ArchivedJob.key == "tenant 3"
        )
        assert session.scalars(about).all() == [id]


def test_each_attribute_of_a_job_is_one_of_the_archive(connection: Connection) -> None:
    """What a program reads of a `Job`, it reads of an `ArchivedJob`."""
    of_job = set(Job.__mapper__.all_orm_descriptors.keys())
    assert of_job - set(ArchivedJob.__mapper__.all_orm_descriptors.keys()) == set()


def test_progress_and_the_log_of_the_last_attempt_go_along(connection: Connection, kept: str) -> None:
    """Of an earlier claim they are gone, as those of a job that is not archived."""
    id, other = (make_job(connection, "completed", task=task, claim_token=9, purge_at=OVER) for task in (kept, "plain"))
    silent = make_job(connection, "completed", task=kept, claim_token=9, purge_at=OVER)
    now = func.now()
    for one in (id, other):
        connection.execute(
            insert(Progress).values(job_id=one, claim_token=9, fraction=0.5, message="half", written_at=now, claims=1)
        )
    for token, part, lines in (
        (8, 0, [[1.0, "INFO", "earlier"]]),
        (9, 1, [[4.0, "INFO", "third"]]),
        (9, 0, [[2.0, "INFO", "first"], [3.0, "ERROR", "second"]]),
    ):
        for one in (id, other):
            connection.execute(
                insert(LogPart).values(job_id=one, claim_token=token, part=part, written_at=now, attempt=1, lines=lines)
            )
    connection.execute(insert(Progress).values(job_id=silent, claim_token=8, fraction=0.5, written_at=now, claims=1))
    assert move(connection) == 3
    with Session(connection) as session:
        job = session.get_one(ArchivedJob, id)
        assert (job.progress, job.progress_message) == (0.5, "half")
        assert job.logs == [[2.0, "INFO", "first"], [3.0, "ERROR", "second"], [4.0, "INFO", "third"]]
        earlier = session.get_one(ArchivedJob, silent)
        assert (earlier.progress, earlier.progress_message, earlier.logs) == (None, None, None)
        assert session.scalars(select(Progress.job_id)).all() == session.scalars(select(LogPart.job_id)).all() == []


def test_large_values_are_moved_whole(connection: Connection, kept: str) -> None:
    """Those that are stored beside the row, too."""
    numbers = list(range(200_000))
    id = make_job(connection, "completed", task=kept, args={"numbers": numbers}, result=numbers, purge_at=OVER)
    assert move(connection) == 1
    connection.commit()
    with Session(connection) as session:
        job = session.get_one(ArchivedJob, id)
        assert job.args == {"numbers": numbers}
        assert job.result == numbers


@pytest.mark.parametrize("finished", ["infinity", "-infinity", None, timedelta(days=3)])
def test_a_job_that_finished_at_no_time_is_archived_too(connection: Connection, kept: str, finished: Any) -> None:
    """Plain SQL has written it; the archive has a month for it all the same."""
    id = make_job(connection, "completed", task=kept, finished_at=finished, purge_at=OVER)
    default_store.make_months_of_page(connection, limit=10)
    assert move(connection) == 1
    assert archived(connection) == [id]


# ---- who does not know of it


def test_a_worker_that_has_not_heard_of_an_archived_task_leaves_its_jobs(connection: Connection, kept: str) -> None:
    """It deletes the others; and so does `prune_jobs()`. What an operator names is deleted."""
    first, second = make_jobs(connection, 2, "completed", task=kept, purge_at=OVER)
    make_jobs(connection, 3, "completed", purge_at=OVER)
    assert default_store.prune(connection, limit=2).jobs == 2
    assert default_store.prune_first(connection) is True
    assert default_store.prune_first(connection) is None
    assert list(connection.scalars(prune_jobs())) == []  # type: ignore[call-overload]
    assert sorted(statuses(connection)) == [first, second]
    assert list(connection.scalars(prune_jobs(Job.id == first))) == [first]  # type: ignore[call-overload]
    assert move(connection) == 1
    assert archived(connection) == [second]


# ---- beside other transactions, and what stands in the way


def test_two_movers_share_the_work(connection: Connection, other: Connection, kept: str) -> None:
    """None waits for the other, and each job is moved once."""
    ids = make_jobs(connection, 5, "completed", task=kept, purge_at=OVER)
    connection.commit()
    assert (move(connection, limit=2), move(other, limit=9)) == (2, 3)
    connection.commit()
    other.commit()
    assert archived(connection) == ids
    assert statuses(connection) == {}


def test_a_move_that_is_rolled_back_leaves_all_as_it_was(connection: Connection, kept: str) -> None:
    """A job is in one of the two tables."""
    ids = make_jobs(connection, 3, "completed", task=kept, purge_at=OVER)
    connection.commit()
    assert move(connection) == 3
    connection.rollback()
    assert (archived(connection), sorted(statuses(connection))) == ([], ids)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_job_that_the_application_needs_stays_and_is_said(
    connection: Connection, kept: str, deferred: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A page with it is refused as a whole, at once; job by job the others are moved."""
    users_table(connection, deferred=deferred)
    ids = make_jobs(connection, 3, "completed", task=kept, purge_at=OVER)
    refer(connection, ids[1])
    connection.commit()
    with pytest.raises(IntegrityError):
        move(connection)
    connection.rollback()
    done = [default_store.prune_first(connection, archive=True) for _ in range(4)]
    assert done == [True, False, True, None]
    assert archived(connection) == [ids[0], ids[2]]
    assert sorted(statuses(connection)) == [ids[1]]
    assert f"job {ids[1]} cannot be deleted" in caplog.text


def test_a_job_that_the_archive_has_already_stays_and_is_said(
    connection: Connection, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its number was given twice, as after a restore: neither is lost."""
    id = make_job(connection, "completed", task=kept, purge_at=OVER)
    again = dict(row(connection, id)._mapping)
    assert move(connection) == 1
    connection.execute(insert(TABLE).values(again))
    connection.commit()
    assert default_store.prune_first(connection, archive=True) is False
    assert (archived(connection), sorted(statuses(connection))) == ([id], [id])


def detach_month(connection: Connection) -> None:
    """The month of `OLD` is a table of its own, as an operator has it who keeps it elsewhere."""
    connection.execute(text("SELECT sa_jobqueue.make_archive_months(ARRAY[now() - interval '400 days'])"))
    month = months(connection)[0]
    connection.execute(text(f"ALTER TABLE sa_jobqueue.archived_job DETACH PARTITION sa_jobqueue.archived_job_{month}"))
    connection.commit()


def test_a_job_whose_month_was_detached_stays_and_is_said(
    connection: Connection, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    """There is a table of its name, so it cannot be made; the jobs behind it are moved."""
    detach_month(connection)
    (old,) = make_jobs(connection, 1, "completed", task=kept, finished_at=OLD, purge_at=OVER * 2)
    ids = make_jobs(connection, 2, "completed", task=kept, finished_at=-timedelta(days=100), purge_at=OVER)
    connection.commit()
    done = [default_store.prune_first(connection, archive=True, months=True) for _ in range(4)]
    assert done == [False, True, True, None]
    assert (archived(connection), sorted(statuses(connection))) == (ids, [old])
    assert f"job {old} cannot be deleted" in caplog.text


@pytest.mark.parametrize("whole", [False, True])
def test_a_locked_archive_puts_no_job_off(
    connection: Connection, other: Connection, kept: str, whole: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An index that is built on it, say: they are moved when it is done."""
    (id,) = make_jobs(connection, 1, "completed", task=kept, purge_at=OVER)
    connection.commit()
    purge_at = row(connection, id).purge_at
    part = "archived_job" if whole else f"archived_job_{months(connection)[0]}"
    other.execute(text(f"LOCK TABLE sa_jobqueue.{part} IN SHARE MODE"))
    connection.execute(text("SET LOCAL lock_timeout = '50ms'"))
    with pytest.raises(DBAPIError) as caught:
        default_store.prune_first(connection, archive=True)
    assert fault_of(caught.value) is Fault.LATE
    connection.rollback()
    assert row(connection, id).purge_at == purge_at
    assert caplog.text == ""
    other.rollback()
    assert default_store.prune_first(connection, archive=True) is True


# ---- the members of workflows


def test_members_are_archived_when_their_workflow_is_over(connection: Connection, kept: str) -> None:
    """Not before; and those of a task that is not archived are deleted."""
    flow = Flow(connection, "a", "b: a", retain=60)
    flow.complete("a", "b")
    connection.execute(text("UPDATE sa_jobqueue.job SET task = 'kept' WHERE id = :id"), {"id": flow.job("a")})
    assert move(connection) == 0
    connection.execute(text("UPDATE sa_jobqueue.workflow SET purge_at = now() - interval '1 s'"))
    assert default_store.prune_workflow(connection, flow.id, seconds=5) == 1  # by a worker that has not heard of it
    assert archived(connection) == []
    assert default_store.workflows_over(connection) == [flow.id]
    assert default_store.prune_workflow(connection, flow.id, seconds=5, archive=True) == 1
    assert default_store.workflows_over(connection) == []
    with Session(connection) as session:
        assert session.get_one(ArchivedJob, flow.job("a")).workflow_id == flow.id
    for table in ("job WHERE workflow_id IS NOT NULL", "workflow", "workflow_dependency"):
        assert connection.scalar(text(f"SELECT count(*) FROM sa_jobqueue.{table}")) == 0


def test_a_month_is_made_for_members_as_well(connection: Connection) -> None:
    """A missing one is an error that says so, and is mended."""
    default_store.declare_archived(connection, ["a_task"], [])
    flow = Flow(connection, "a", retain=60)
    flow.complete("a")
    connection.execute(text("UPDATE sa_jobqueue.job SET task = 'a_task'"))
    connection.execute(text("UPDATE sa_jobqueue.workflow SET purge_at = now() - interval '1 s'"))
    connection.commit()
    with pytest.raises(DBAPIError) as caught:
        default_store.prune_workflow(connection, flow.id, seconds=5, archive=True)
    assert is_month_missing(caught.value)
    connection.rollback()
    assert default_store.make_months_of_members(connection, flow.id) == 1
    assert default_store.prune_workflow(connection, flow.id, seconds=5, archive=True) == 1


def test_members_whose_month_was_detached_stay_with_their_workflow(
    connection: Connection, other: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """For another day, and it is said. Not where the archive is locked, which is over soon."""
    default_store.declare_archived(connection, ["a_task"], [])
    detach_month(connection)
    flow = Flow(connection, "a", retain=60)
    flow.complete("a")
    connection.execute(text("UPDATE sa_jobqueue.job SET finished_at = now() - interval '400 days'"))
    connection.execute(text("UPDATE sa_jobqueue.workflow SET purge_at = now() - interval '1 s'"))
    connection.commit()
    other.execute(text("LOCK TABLE sa_jobqueue.archived_job IN SHARE MODE"))
    connection.execute(text("SET LOCAL lock_timeout = '50ms'"))
    with pytest.raises(DBAPIError) as caught:
        default_store.prune_workflow(connection, flow.id, seconds=5, archive=True, months=True)
    assert fault_of(caught.value) is Fault.LATE
    connection.rollback()
    other.rollback()
    assert default_store.workflows_over(connection) == [flow.id]
    assert default_store.prune_workflow(connection, flow.id, seconds=5, archive=True, months=True) is None
    assert default_store.workflows_over(connection) == []
    assert f"workflow {flow.id} cannot be deleted" in caplog.text


# ---- months


def test_this_month_and_the_next_one_are_made_once(connection: Connection) -> None:
    """In the zone UTC, whatever the session's is."""
    for zone in ("UTC", "Pacific/Kiritimati", "Etc/GMT+12"):
        connection.execute(select(func.set_config("TimeZone", zone, False)))
        connection.execute(select(func.set_config("DateStyle", "SQL, DMY", False)))
        made = default_store.make_months_ahead(connection)
        assert made == (2 if zone == "UTC" else 0)
    connection.execute(select(func.set_config("DateStyle", "ISO", False)))
    now = connection.scalar(select(func.now()))
    assert isinstance(now, datetime)
    this = now.astimezone(UTC).replace(day=1)
    assert months(connection) == [f"{one:%Y_%m}" for one in (this, (this + timedelta(days=31)).replace(day=1))]
    connection.rollback()


@pytest.mark.parametrize(
    ("zone", "now"), [("America/Los_Angeles", "2026-01-31 03:00+00"), ("Pacific/Kiritimati", "2026-01-30 12:00+00")]
)
def test_the_next_month_is_the_one_in_utc(connection: Connection, zone: str, now: str) -> None:
    """A month after the 30th is the 28th of February in the session's zone, which is March in UTC already."""
    connection.execute(text("CREATE SCHEMA fake"))
    connection.execute(text(f"CREATE FUNCTION fake.now() RETURNS timestamptz LANGUAGE sql RETURN timestamptz '{now}'"))
    connection.execute(text("SET LOCAL search_path = fake, pg_catalog"))
    connection.execute(select(func.set_config("TimeZone", zone, True)))
    assert default_store.make_months_ahead(connection) == 2
    assert months(connection) == ["2026_01", "2026_02"]
    connection.rollback()


@pytest.mark.parametrize(
    "given",
    [
        "ADD CONSTRAINT mine CHECK (queue <> 'mail')",
        "ADD COLUMN order_id text GENERATED ALWAYS AS (args ->> 'order_id') STORED",
    ],
)
def test_a_new_month_has_what_the_application_has_given_the_archive(connection: Connection, given: str) -> None:
    """Without that it could not be a part of it."""
    connection.execute(text(f"ALTER TABLE sa_jobqueue.archived_job {given}"))
    assert default_store.make_months_ahead(connection) == 2
    connection.rollback()


def test_rows_lie_in_the_month_in_which_they_finished(connection: Connection, kept: str) -> None:
    """Up to its last microsecond."""
    times = [
        "2024-01-31 23:59:59.999999+00",
        "2024-02-01 00:00+00",
        "2024-02-29 23:59:59.999999+00",
        "2024-03-01 00:00+00",
    ]
    for time in times:
        id = make_job(connection, "completed", task=kept, purge_at=OVER)
        connection.execute(
            text("UPDATE sa_jobqueue.job SET finished_at = CAST(:time AS timestamptz) WHERE id = :id"),
            {"id": id, "time": time},
        )
    assert default_store.make_months_of_page(connection, limit=10) == 3
    assert move(connection) == 4
    found = text(
        "SELECT right(tableoid::regclass::text, 7), count(*) FROM sa_jobqueue.archived_job GROUP BY 1 ORDER BY 1"
    )
    assert [tuple(one) for one in connection.execute(found)] == [("2024_01", 1), ("2024_02", 2), ("2024_03", 1)]


def test_a_missing_month_is_an_error_that_loses_nothing_and_is_mended(connection: Connection, kept: str) -> None:
    """By the page and by the single job."""
    ids = make_jobs(connection, 2, "completed", task=kept, finished_at=OLD, purge_at=OVER)
    connection.commit()
    for attempt in (move, lambda own: default_store.prune_first(own, archive=True)):
        with pytest.raises(DBAPIError) as caught:
            attempt(connection)
        assert is_month_missing(caught.value)
        connection.rollback()
        assert sorted(statuses(connection)) == ids
    assert default_store.make_months_of_page(connection, limit=10) == 1
    assert default_store.make_months_of_page(connection, limit=10) == 0
    assert move(connection) == 2


def test_another_constraint_is_no_missing_month(connection: Connection, kept: str) -> None:
    """One that the application has given the archive, perhaps."""
    connection.execute(text("ALTER TABLE sa_jobqueue.archived_job ADD CONSTRAINT mine CHECK (queue <> 'mail')"))
    make_job(connection, "completed", task=kept, queue="mail", purge_at=OVER)
    with pytest.raises(IntegrityError) as caught:
        move(connection)
    assert not is_month_missing(caught.value)
    connection.rollback()


def test_making_a_month_waits_for_no_reader_and_no_mover(connection: Connection, other: Connection, kept: str) -> None:
    """Transactions that have read the archive, and moved to it, are open meanwhile."""
    make_job(connection, "completed", task=kept, purge_at=OVER)
    connection.commit()
    assert move(connection) == 1
    assert archived(connection)
    make_job(other, "completed", task=kept, finished_at=OLD, purge_at=OVER * 2)
    assert default_store.make_months_of_page(other, limit=10) == 1
    other.commit()
    assert move(other) == 1
    other.commit()
    assert move(connection) == 0


def test_two_who_make_the_same_month_do_not_fail_by_that(connection: Connection, other: Connection) -> None:
    """The second gives up soon, as by a lock timeout, and finds it there the next time."""
    assert default_store.make_months_ahead(connection) == 2
    with pytest.raises(DBAPIError) as caught:
        default_store.make_months_ahead(other)
    assert fault_of(caught.value) is Fault.LATE
    other.rollback()
    connection.commit()
    assert default_store.make_months_ahead(other) == 0


@pytest.mark.parametrize(("kept_for", "left"), [(1, 1), (2, 2), (11, 3), (12, 3)])
def test_months_are_dropped_when_they_were_kept_long_enough(connection: Connection, kept_for: int, left: int) -> None:
    """The oldest first, one in each transaction; a month is kept for so long after its end."""
    ago = [0, 2, 3, 13]
    given = [
        f"date_trunc('month', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - interval '{number} months'"
        for number in ago
    ]
    connection.execute(text(f"SELECT sa_jobqueue.make_archive_months(ARRAY[{', '.join(given)}])"))
    there = months(connection)
    dropped: list[str] = []
    while (one := default_store.drop_archive_month(connection, kept_for)) is not None:
        dropped.append(one.replace("-", "_"))
    assert dropped == there[: len(there) - left]
    assert months(connection) == there[len(there) - left :]


def test_dropping_a_month_waits_for_no_reader_for_long(connection: Connection, other: Connection) -> None:
    """It gives up, so that those who come after it wait only for a moment, and is done later."""
    connection.execute(text("SELECT sa_jobqueue.make_archive_months(ARRAY[now() - interval '400 days'])"))
    connection.commit()
    archived(other)
    with pytest.raises(DBAPIError) as caught:
        default_store.drop_archive_month(connection, 6)
    assert fault_of(caught.value) is Fault.LATE
    connection.rollback()
    other.rollback()
    assert default_store.drop_archive_month(connection, 6) is not None


def test_a_month_of_an_absurd_time_is_not_made_nor_one_dropped_that_is_not_ours(connection: Connection) -> None:
    """A worker's role can neither fill the schema with tables, nor drop what was attached by hand, nor all."""
    absurd = "'0001-01-01', '9999-01-01', 'infinity', '-infinity', NULL"
    assert connection.scalar(text(f"SELECT sa_jobqueue.make_archive_months(ARRAY[{absurd}]::timestamptz[])")) == 0
    mine = "PARTITION OF sa_jobqueue.archived_job FOR VALUES FROM ('2001-01-01') TO ('2002-01-01')"
    connection.execute(text(f"CREATE TABLE sa_jobqueue.mine {mine}"))
    assert default_store.drop_archive_month(connection, 1) is None
    with pytest.raises(DBAPIError, match="1 month at least"):
        default_store.drop_archive_month(connection, 0)
    connection.rollback()


def test_what_is_declared_is_written_once(connection: Connection) -> None:
    """And taken back."""
    default_store.declare_archived(connection, ["b", "a"], [])
    default_store.declare_archived(connection, ["b", "c"], ["a"])
    assert sorted(connection.scalars(select(ArchivedTask.name))) == ["b", "c"]


def test_a_query_that_names_a_time_reads_only_its_months(engine: Engine, connection: Connection) -> None:
    """The planner leaves the others out."""
    connection.execute(
        text(
            "SELECT sa_jobqueue.make_archive_months(ARRAY['2024-01-05+00', '2024-02-05+00', '2024-03-05+00']::timestamptz[])"
        )
    )
    february = "finished_at >= '2024-02-01+00' AND finished_at < '2024-03-01+00'"
    plan = connection.scalars(text(f"EXPLAIN SELECT id FROM sa_jobqueue.archived_job WHERE {february}")).all()
    assert "archived_job_2024_02" in "".join(plan)
    assert "archived_job_2024_01" not in "".join(plan)
    assert "archived_job_2024_03" not in "".join(plan)
