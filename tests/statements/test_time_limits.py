"""Jobs with an expiry or a deadline: how it is said, what a claim tells of it, and the end of those that waited too long."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, func, insert, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, Registry, TaskName, Unique, enqueue, enqueue_many, task
from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.errors import OptionError, TaskError
from sa_jobqueue.models import UniqueKey
from sa_jobqueue.rules.lifecycle import Rules, decide, extra, not_started
from sa_jobqueue.rules.outcomes import NotStarted, Outcome, Released, Rescued, Retry, Snooze
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.expiry import end_expired, end_overdue, forget_expiry
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import retry_jobs
from tests.support.factory import TABLE, make_job, refer, row, users_table
from tests.support.outcomes import ENTRY
from tests.support.plans import Prepared, service_connection

MINUTE, AGO = timedelta(minutes=1), timedelta(seconds=-1)
LIMITS = ("expires_at", "deadline_at")
registry = Registry()


@task(registry=registry, expires_in=60, deadline=120)
def soon() -> None: ...


@task(registry=registry)
def plain() -> None: ...


def claim(connection: Connection, free: int = 5) -> list[ClaimedJob]:
    return default_store.claim(connection, ClaimRequest(worker="me", queues={"default": free}, lease=60.0))


def end(connection: Connection, limit: str, page: int = 1_000) -> list[int]:
    """As maintenance does."""
    chore = default_store.end_expired if limit == "expires_at" else default_store.end_overdue
    return [one.id for one in chore(connection, limit=page)]


# ---- how it is said

Spans = list[timedelta | None]


def by_session(connection: Connection, wanted: Spans) -> list[int]:
    with Session(connection) as session:
        jobs = [enqueue(plain.options(expires_in=one or False, deadline=one or False)) for one in wanted]
        session.add_all(jobs)
        session.flush()
        ids = [job.id for job in jobs]
        session.commit()
        return ids


def by_many(connection: Connection, wanted: Spans) -> list[int]:
    tasks = [plain.options(expires_in=one or False, deadline=one or False) for one in wanted]
    return list(connection.scalars(enqueue_many([one.call() for one in tasks])))


def by_many_unique(connection: Connection, wanted: Spans) -> list[int]:
    """Their rows are written in the order of their keys, which is another one."""
    tasks = [
        plain.options(expires_in=one or False, deadline=one or False, unique=Unique(f"{9 - number}"))
        for number, one in enumerate(wanted)
    ]
    return list(connection.scalars(enqueue_many([one.call() for one in tasks])))


def by_sql(connection: Connection, wanted: Spans) -> list[int]:
    rows = [insert(TABLE).values(task="a", expires_at=one, deadline_at=one).returning(TABLE.c.id) for one in wanted]
    return [connection.execute(one).scalar_one() for one in rows]


@pytest.mark.parametrize("enqueued", [by_session, by_many, by_many_unique, by_sql])
def test_a_span_counts_from_the_databases_now(connection: Connection, enqueued: Callable[..., list[int]]) -> None:
    """Beside jobs without a limit, in each way to enqueue them."""
    spans = [MINUTE, None, 2 * MINUTE]
    rows = [row(connection, id) for id in enqueued(connection, spans)]
    made = rows[0].created_at
    assert [(one.expires_at, one.deadline_at) for one in rows] == [
        (None, None) if span is None else (made + span, made + span) for span in spans
    ]


def test_a_session_knows_the_times_after_the_flush(connection: Connection) -> None:
    """As it knows when a delayed job is due."""
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    with Session(connection) as session:
        spans, times = enqueue(soon), enqueue(soon.options(expires_at=moment, deadline=moment))
        session.add_all([spans, times])
        session.flush()
        assert (spans.expires_at, spans.deadline_at) == (spans.created_at + MINUTE, spans.created_at + 2 * MINUTE)
        assert (times.expires_at, times.deadline_at) == (moment, moment)
        spans.expires_at = spans.deadline_at = timedelta(hours=1)  # type: ignore[assignment]
        session.flush()
        hour = spans.created_at + timedelta(hours=1)
        assert (spans.expires_at, spans.deadline_at) == (hour, hour)


def test_options_go_over_the_tasks_and_false_takes_them_away() -> None:
    def limits(one: Any) -> tuple[Any, Any]:
        job = enqueue(one)
        return job.expires_at, job.deadline_at

    assert limits(soon) == (MINUTE, 2 * MINUTE)
    assert limits(soon.options(expires_in=5, deadline=6)) == (timedelta(seconds=5), timedelta(seconds=6))
    assert limits(soon.options(expires_in=False, deadline=False)) == (None, None)
    assert limits(TaskName("by_name").options(expires_in=5, deadline=6)) == (timedelta(seconds=5), timedelta(seconds=6))


NAIVE = datetime(2100, 1, 1)  # noqa: DTZ001


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expires_in": 0}, "expires_in must be more than 0 seconds"),
        ({"expires_in": -1}, "expires_in must be between 0 seconds and 100 years, not -1"),
        ({"expires_in": "1h"}, "expires_in must be seconds or a timedelta, not '1h'"),
        ({"expires_in": True}, "expires_in must be seconds or a timedelta, not True"),
        ({"expires_at": MINUTE}, "expires_at must be a datetime, .* for a duration there is expires_in="),
        ({"expires_at": NAIVE}, "expires_at must have a time zone"),
        ({"expires_at": NAIVE.astimezone(UTC), "expires_in": 5}, "exclude each other"),
        ({"expires_in": NAIVE.astimezone(UTC)}, "expires_in must be seconds .* for a time there is expires_at="),
        ({"deadline": 0}, "deadline must be more than 0 seconds"),
        ({"deadline": True}, "deadline must be seconds or a timedelta, not True"),
        ({"deadline": timedelta(-1)}, "deadline must be between 0 seconds and 100 years"),
        ({"deadline": NAIVE}, "deadline must have a time zone"),
        ({"deadline": "tomorrow"}, "deadline must be seconds or a timedelta, not 'tomorrow'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        plain.options(**options)


@pytest.mark.parametrize("options", [{"expires_in": 0}, {"deadline": 0}])
def test_a_task_refuses_it_too(options: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match="must be more than 0 seconds"):
        task(registry=Registry(), **options)


@pytest.mark.parametrize("limit", LIMITS)
def test_an_attribute_refuses_what_is_no_time(limit: str) -> None:
    with pytest.raises(OptionError, match=f"{limit} must have a time zone"):
        setattr(enqueue(plain), limit, NAIVE)


# ---- what a claim says


@pytest.mark.parametrize(("limit", "said"), [("expires_at", "expires"), ("deadline_at", "deadline")])
@pytest.mark.parametrize("left", [MINUTE, AGO])
def test_a_claim_says_how_long_is_left_by_the_databases_clock(
    connection: Connection, limit: str, said: str, left: timedelta
) -> None:
    make_job(connection, **{limit: left})
    (job,) = claim(connection)
    assert extra(job) == {said: pytest.approx(left.total_seconds())}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize(("time", "starts"), [("infinity", True), ("-infinity", False)])
def test_a_time_without_end_can_be_claimed(connection: Connection, limit: str, time: str, starts: bool) -> None:
    """A difference of such times would be an error, which fails the claim of all others."""
    make_job(connection, **{limit: time})
    (job,) = claim(connection)
    assert (not_started(job, 0.0) is None) == starts


@pytest.mark.parametrize(
    ("outcome", "waits"),
    [(Retry(0), False), (Snooze(0), True), (Released(), True), (Released(started=True), False)],
    ids=str,
)
def test_only_what_was_not_started_expires(connection: Connection, outcome: Outcome, waits: bool) -> None:
    """An attempt or a rescue has been a start; a snooze gives the attempt back, so the job waits again."""
    made = make_job(connection, expires_at=MINUTE)
    (first,) = claim(connection)
    default_store.apply(connection, [decide(first, outcome, Rules(), random=0.5)])
    connection.execute(update(TABLE).values(expires_at=func.now() + AGO))
    with connection.begin_nested() as savepoint:
        assert end(connection, "expires_at") == [made] * waits
        if waits:
            assert row(connection, made).errors[-1]["message"] == "no attempt was made before its expiry"
        savepoint.rollback()
    assert extra(claim(connection)[0]).keys() == ({"expires"} if waits else set())


def test_a_rescued_job_does_not_expire(connection: Connection) -> None:
    make_job(connection, "running", lease_expires_at=AGO, expires_at=AGO)
    (found,) = default_store.expired(connection)
    default_store.apply(connection, [decide(found.claim, Rescued(ENTRY), Rules(), random=0.5)])
    assert end(connection, "expires_at") == []


@pytest.mark.parametrize(
    ("failed", "status", "error"), [(False, "cancelled", "Expired"), (True, "failed", "DeadlineOver")]
)
def test_the_end_of_a_late_claim_spends_no_attempt(
    connection: Connection, failed: bool, status: str, error: str
) -> None:
    """And gives the job's key back."""
    made = make_job(connection, uniqueness={"key": "k"})
    (job,) = claim(connection)
    default_store.apply(connection, [decide(job, NotStarted(failed=failed), Rules(), random=0.5)])
    found = row(connection, made)
    assert (found.status, found.attempt) == (JobStatus(status), 0)
    assert [one["type"] for one in found.errors] == [error]
    assert None not in (found.finished_at, found.purge_at)
    assert connection.scalars(select(UniqueKey.key)).all() == []


# ---- maintenance


@pytest.mark.parametrize(
    ("limit", "status", "error", "kept"),
    [
        ("expires_at", JobStatus.CANCELLED, "Expired", Rules().retain),
        ("deadline_at", JobStatus.FAILED, "DeadlineOver", Rules().retain_failed),
    ],
)
def test_those_that_are_late_end_in_pages_and_others_stay(
    connection: Connection, limit: str, status: JobStatus, error: str, kept: float | None
) -> None:
    """Those whose time was over first come first."""
    late, first = make_job(connection, **{limit: AGO}), make_job(connection, **{limit: 2 * AGO})
    others = [
        make_job(connection),
        make_job(connection, **{limit: MINUTE}),
        make_job(connection, "running", **{limit: AGO}),
        make_job(connection, "completed", **{limit: AGO}),
    ]
    if limit == "expires_at":
        others += [make_job(connection, attempt=1, expires_at=AGO), make_job(connection, rescues=1, expires_at=AGO)]
    before = [row(connection, one) for one in others]
    assert [end(connection, limit, 1), end(connection, limit, 5), end(connection, limit, 5)] == [[first], [late], []]
    assert [row(connection, one) for one in others] == before
    ended = row(connection, first)
    assert (ended.status, ended.attempt, ended.lease_expires_at) == (status, 0, None)
    assert [one["type"] for one in ended.errors] == [error]
    assert ended.errors[0]["message"]
    assert (ended.purge_at - ended.finished_at).total_seconds() == kept


def test_a_deadline_ends_also_what_was_tried(connection: Connection) -> None:
    """The error of the attempt stays."""
    made = make_job(connection, attempt=1, rescues=1, deadline_at=AGO, errors=[{"type": "Boom"}])
    assert end(connection, "deadline_at") == [made]
    assert [one["type"] for one in row(connection, made).errors] == ["Boom", "DeadlineOver"]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_late_job_gives_its_key_back(connection: Connection, limit: str) -> None:
    """And where the key is kept for longer, it is kept from then on."""
    make_job(connection, uniqueness={"key": "k"}, **{limit: AGO})
    make_job(connection, uniqueness={"key": "kept", "scope": "finished", "period": 60}, **{limit: AGO})
    end(connection, limit)
    left = connection.execute(select(UniqueKey.key, UniqueKey.expires_at - func.clock_timestamp())).all()
    assert [key for key, _ in left] == ["kept"]
    assert timedelta(0) < left[0][1] <= timedelta(seconds=60)


@pytest.mark.parametrize("limit", LIMITS)
def test_what_is_being_claimed_is_left_to_its_worker(connection: Connection, other: Connection, limit: str) -> None:
    """Two real transactions: maintenance does not wait for the claim."""
    with other.begin():
        made = make_job(other, **{limit: AGO})
    with other.begin():
        assert [job.id for job in claim(other)] == [made]
        with connection.begin():
            assert end(connection, limit) == []
    with connection.begin():
        assert end(connection, limit) == []


@pytest.mark.parametrize("limit", LIMITS)
def test_what_is_being_ended_is_not_claimed(connection: Connection, other: Connection, limit: str) -> None:
    """The other way round: the claim passes over it, and finds it ended afterwards."""
    with other.begin():
        made, plain = make_job(other, **{limit: AGO}), make_job(other)
    with other.begin():
        assert end(other, limit) == [made]
        with connection.begin():
            assert [job.id for job in claim(connection)] == [plain]
    with connection.begin():
        assert claim(connection) == []


@pytest.mark.parametrize("limit", LIMITS)
def test_a_row_of_the_applications_that_references_the_job_does_not_hold_it_up(
    connection: Connection, other: Connection, limit: str
) -> None:
    """Its transaction is open, and holds a lock that an update of the job's key columns would wait for."""
    with other.begin():
        made = make_job(other, **{limit: AGO})
        users_table(other)
    with other.begin():
        refer(other, made)
        with connection.begin():
            assert end(connection, limit) == [made]


@pytest.mark.parametrize(
    ("limit", "statement"), [("expires_at", end_expired), ("deadline_at", end_overdue), ("expires_at", forget_expiry)]
)
def test_an_index_finds_them(engine: Any, limit: str, statement: Callable[..., Any]) -> None:
    """So a look costs nothing where no job has a limit, and does not walk over a backlog of others."""
    with service_connection(engine) as connection:
        connection.execute(text("INSERT INTO sa_jobqueue.job (task) SELECT 'a' FROM generate_series(1, 2000)"))
        make_job(connection, **{limit: AGO})
        connection.execute(text("ANALYZE sa_jobqueue.job"))
        connection.commit()
        if statement is forget_expiry:
            connection.execute(update(TABLE).where(TABLE.c.expires_at.is_not(None)).values(attempt=1))
        plan = Prepared(connection, statement(limit=10), {}).explain({})
    assert "job_limit_idx" in plan.indexes, str(plan)
    assert "Seq Scan" not in {node["Node Type"] for node in plan.on("job")}, str(plan)
    assert plan.largest_discard == 0, str(plan)


def test_the_expiry_of_a_job_that_was_started_is_forgotten(connection: Connection) -> None:
    """Only once it is over, and only of what waits for another attempt: each later look would find it again."""
    with connection.begin():
        tried, rescued = (
            make_job(connection, expires_at=AGO, attempt=1),
            make_job(connection, expires_at=AGO, rescues=1),
        )
        kept = {
            make_job(connection, expires_at=AGO),
            make_job(connection, expires_at=MINUTE, attempt=1),
            make_job(connection, expires_at=AGO, status=JobStatus.RUNNING, attempt=1),
        }
    with connection.begin():
        first = default_store.forget_expiry(connection, limit=1)
        assert {*first, *default_store.forget_expiry(connection)} == {tried, rescued}
        assert len(first) == 1
        assert default_store.forget_expiry(connection) == []
        assert set(connection.scalars(select(Job.id).where(Job.expires_at.is_not(None)))) == kept


# ---- an operator's retry


@pytest.mark.parametrize("limit", LIMITS)
def test_a_retried_job_has_no_limit_that_is_over(connection: Connection, limit: str) -> None:
    """The operator asks for it to run. One whose time is not over keeps its limit."""
    ended = make_job(connection, "cancelled", **{limit: AGO})
    waiting = make_job(connection, **{limit: MINUTE, "run_at": 2 * MINUTE})
    connection.execute(retry_jobs(Job.id.in_([ended, waiting])))
    assert getattr(row(connection, ended), limit) is None
    assert getattr(row(connection, waiting), limit) is not None
    connection.execute(update(TABLE).values(run_at=func.now()))
    assert {job.id: job.extra is None for job in claim(connection)} == {ended: True, waiting: False}
