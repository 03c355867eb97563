"""What operators do to jobs: in which states, with which effect, and beside other transactions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Executable, column, func, select, table, text, true
from sqlalchemy.exc import IntegrityError, OperationalError

from sa_jobqueue.models import Job
from sa_jobqueue.rules.failures import MAX_ERRORS, MAX_MESSAGE
from sa_jobqueue.rules.lifecycle import FINISHED, TRANSITIONS, Event, JobStatus, Rules
from sa_jobqueue.rules.outcomes import Completed, Snooze
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.prune import prune_page
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import cancel_jobs, discard_jobs, pause_schedules, prune_jobs, release_jobs, retry_jobs
from tests.support.factory import (
    TABLE,
    change,
    completed,
    exists,
    make_job,
    make_jobs,
    refer,
    row,
    statuses,
    users_table,
    wait_until_blocked_by,
)
from tests.support.plans import Prepared, service_connection

BUILDERS: dict[Event, Callable[..., Executable]] = {
    Event.CANCEL: cancel_jobs,
    Event.REQUEUE: retry_jobs,
    Event.DISCARD: discard_jobs,
    Event.RELEASE: release_jobs,
}


def run(connection: Connection, statement: Executable) -> list[int]:
    return sorted(connection.scalars(statement))  # type: ignore[call-overload]


def claim(connection: Connection) -> list[int]:
    return [
        job.id for job in default_store.claim(connection, ClaimRequest(worker="me", queues={"default": 9}, lease=60))
    ]


# ---- all of them


@pytest.mark.parametrize("event", BUILDERS)
@pytest.mark.parametrize("status", JobStatus)
def test_a_statement_touches_the_states_of_the_life_cycle_only(
    connection: Connection, event: Event, status: JobStatus
) -> None:
    """It returns what it touched; what it did not touch is as it was."""
    one = make_job(connection, status)
    before = row(connection, one)

    touched = run(connection, BUILDERS[event](true()))

    if (status, event) not in TRANSITIONS:
        assert touched == []
        assert row(connection, one) == before
        return
    assert touched == [one]
    after = row(connection, one)
    if (event, status) == (Event.CANCEL, JobStatus.RUNNING):
        assert (after.status, after.cancel_requested_at is not None) == (JobStatus.RUNNING, True)
    else:
        assert after.status is TRANSITIONS[status, event]
        assert (after.finished_at is not None) == (after.status in FINISHED)
        assert (after.purge_at is not None) == (after.status in FINISHED)


@pytest.mark.parametrize("builder", BUILDERS.values())
def test_all_jobs_must_be_asked_for(builder: Callable[..., Executable]) -> None:
    """A forgotten criterion is not "everything", and the error says what to write."""
    name = builder.__name__
    with pytest.raises(ValueError, match=rf"say which jobs: {name}\(.*\), or {name}\(true\(\)\) for all"):
        builder()


@pytest.mark.parametrize("builder", [*BUILDERS.values(), prune_jobs])
@pytest.mark.parametrize("wrong", [3, "3", [1, 2]])
def test_an_id_is_no_condition(builder: Callable[..., Executable], wrong: object) -> None:
    """The commands take ids; the error says how a statement does."""
    name = builder.__name__
    with pytest.raises(TypeError, match=rf"{name} takes conditions, as in {name}\(Job.id == 3\), not "):
        builder(wrong)


def test_what_only_the_server_would_refuse_is_refused_before() -> None:
    """The caller's transaction would be lost by it."""
    with pytest.raises(ValueError, match="limit must be 0 or more, not -1"):
        prune_jobs(limit=-1)
    with pytest.raises(TypeError, match="limit must be an integer, not 'x'"):
        prune_jobs(limit="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the reason must be a string, not 7"):
        discard_jobs(true(), reason=7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the reason must be a string, not 7"):
        pause_schedules(true(), reason=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"say which schedules: pause_schedules\(Schedule.name == 'report'\), or "):
        pause_schedules()


@pytest.mark.parametrize("event", BUILDERS)
def test_criteria_are_those_of_a_select(connection: Connection, event: Event) -> None:
    """Several are joined by AND; hybrids, subqueries and other tables may be among them."""
    connection.execute(text("CREATE TABLE tagged (job_id bigint, tag text)"))
    status = "running" if event is Event.RELEASE else "queued"
    ids = [make_job(connection, status, queue=name, priority=p) for name in ("a", "b") for p in (1, 2, 3)]
    connection.execute(
        text("INSERT INTO tagged VALUES (:a, 'x'), (:a, 'x'), (:b, 'x'), (:c, 'y')"),
        dict(zip("abc", ids, strict=False)),
    )
    tagged = table("tagged", column("job_id"), column("tag"))
    builder = BUILDERS[event]

    def touched(*criteria: Any) -> list[int]:
        found = run(connection, builder(*criteria))
        connection.execute(TABLE.update().values(status=status, cancel_requested_at=None))
        return found

    assert touched(Job.queue == "b", Job.priority > 1) == ids[4:]
    assert touched(Job.id.in_(select(tagged.c.job_id).where(tagged.c.tag == "x"))) == ids[:2]
    assert touched(Job.id == tagged.c.job_id, tagged.c.tag == "y") == [ids[2]]
    assert touched(Job.id == tagged.c.job_id, tagged.c.tag == "x") == ids[:2]
    assert touched(Job.is_live, TABLE.c.queue == "a") == ids[:3]
    assert touched(Job.queue == "a", Job.priority.in_([1, 3])) == [ids[0], ids[2]]
    assert touched(Job.meta["no"].is_not(None)) == []


def test_rows_of_other_tables_are_not_locked(connection: Connection, other: Connection) -> None:
    """A criterion over the application's table reads it, no more."""
    connection.execute(text("CREATE TABLE tagged (job_id bigint)"))
    one = make_job(connection)
    connection.execute(text("INSERT INTO tagged VALUES (:id)"), {"id": one})
    connection.commit()
    other.execute(text("SELECT * FROM tagged FOR UPDATE"))
    tagged = table("tagged", column("job_id"))

    assert run(connection, cancel_jobs(Job.id == tagged.c.job_id)) == [one]


@pytest.mark.parametrize("event", BUILDERS)
def test_two_operators_lock_in_the_order_of_ids(connection: Connection, other: Connection, event: Event) -> None:
    """The second waits for the first row, and meanwhile holds none that the first still needs."""
    ids = [1, 2, 3]
    for one in reversed(ids):  # in the table they lie the other way round
        make_job(connection, "running" if event is Event.RELEASE else "queued", id=one)
    connection.commit()
    other.execute(select(TABLE.c.id).where(TABLE.c.id == ids[0]).with_for_update())
    found: list[int] = []
    thread = Thread(target=lambda: found.extend(run(connection, BUILDERS[event](true()))))
    thread.start()
    wait_until_blocked_by(other)

    free = other.scalars(select(TABLE.c.id).order_by(TABLE.c.id).with_for_update(skip_locked=True)).all()
    other.rollback()
    thread.join()

    assert free == ids
    assert found == ids


@pytest.mark.parametrize("event", BUILDERS)
def test_what_is_locked_can_be_skipped(connection: Connection, other: Connection, event: Event) -> None:
    """The statement says of each job that matches whether it was changed; those in other states do not match."""
    status = "running" if event is Event.RELEASE else "queued"
    first, locked, last = (make_job(connection, status) for _ in range(3))
    make_job(connection, "completed" if event is not Event.REQUEUE else "running")
    connection.commit()
    other.execute(select(TABLE.c.id).where(TABLE.c.id == locked).with_for_update())

    found = connection.execute(BUILDERS[event](true(), locked="skip")).all()

    assert found == [(first, True), (locked, False), (last, True)]
    after = row(connection, locked)
    assert (after.status, after.cancel_requested_at) == (status, None)


@pytest.mark.parametrize("event", BUILDERS)
def test_what_is_locked_can_fail_the_statement(connection: Connection, other: Connection, event: Event) -> None:
    """At once, and nothing is changed; where nothing is locked, the statement does what it does without."""
    status = "running" if event is Event.RELEASE else "queued"
    ids = [make_job(connection, status) for _ in range(2)]
    connection.commit()
    before = [row(connection, one) for one in ids]
    connection.commit()
    other.execute(select(TABLE.c.id).where(TABLE.c.id == ids[1]).with_for_update())

    with pytest.raises(OperationalError) as caught:
        connection.execute(BUILDERS[event](true(), locked="nowait"))
    connection.rollback()

    assert getattr(caught.value.orig, "sqlstate", None) == "55P03"
    assert [row(connection, one) for one in ids] == before
    other.rollback()
    assert run(connection, BUILDERS[event](true(), locked="nowait")) == ids


@pytest.mark.parametrize("builder", BUILDERS.values())
def test_only_three_ways_to_meet_a_locked_row_are_known(builder: Callable[..., Executable]) -> None:
    """The error names them."""
    with pytest.raises(ValueError, match=r"\(locked=\.\.\.\) must be one of wait, nowait, skip, not 'ignore'"):
        builder(true(), locked="ignore")


# ---- cancel


def test_a_waiting_job_is_cancelled(connection: Connection) -> None:
    """Final at once, kept as a completed one would be."""
    one = make_job(connection, run_at=timedelta(hours=1))

    assert run(connection, cancel_jobs(Job.is_scheduled)) == [one]

    job = row(connection, one)
    assert (job.status, job.cancel_requested_at) == (JobStatus.CANCELLED, job.finished_at)
    assert job.purge_at - job.finished_at == timedelta(seconds=Rules().retain or 0)
    assert claim(connection) == []


def test_a_running_job_is_asked_to_stop(connection: Connection) -> None:
    """The time of the first request stays."""
    one = make_job(connection, "running", cancel_requested_at=timedelta(hours=-1))
    before = row(connection, one)

    assert run(connection, cancel_jobs(Job.id == one)) == [one]
    assert row(connection, one) == before


def cancelled_behind(other: Connection, connection: Connection, id: int) -> list[int]:
    """The ids that a cancel returns which waits for the row until `other` commits."""
    found: list[int] = []
    thread = Thread(target=lambda: found.extend(run(connection, cancel_jobs(Job.id == id))))
    thread.start()
    wait_until_blocked_by(other)
    other.commit()
    thread.join()
    return found


def test_a_cancel_holds_against_a_claim_at_the_same_moment(connection: Connection, other: Connection) -> None:
    """The claim has the row and has not committed: the cancel waits, and then asks the running job to stop."""
    one = make_job(connection)
    connection.commit()
    assert claim(other) == [one]
    found = cancelled_behind(other, connection, one)
    connection.commit()

    job = row(connection, one)
    assert found == [one]
    assert (job.status, job.cancel_requested_at is not None) == (JobStatus.RUNNING, True)
    assert default_store.apply(connection, [change(connection, one, Snooze(0))]) == {one: Answer.CANCELLED}
    assert row(connection, one).status is JobStatus.CANCELLED


def test_a_claim_at_the_same_moment_as_a_cancel_leaves_the_job(connection: Connection, other: Connection) -> None:
    """The other way round: the cancel has the row."""
    one = make_job(connection)
    connection.commit()
    run(other, cancel_jobs(Job.id == one))

    assert claim(connection) == []
    other.commit()
    assert claim(connection) == []
    assert row(connection, one).status is JobStatus.CANCELLED


@pytest.mark.parametrize("retain", [60.0, 0.0])
def test_a_completion_at_the_same_moment_as_a_cancel_wins(
    connection: Connection, other: Connection, retain: float
) -> None:
    """The job is done; the cancel waited for nothing left to stop."""
    one = make_job(connection, "running")
    connection.commit()
    default_store.apply(other, [completed(one, retain=retain)])
    found = cancelled_behind(other, connection, one)

    assert found == []
    assert statuses(connection) == ({one: "completed"} if retain else {})


def test_a_cancel_at_the_same_moment_as_a_snooze_is_not_lost(connection: Connection, other: Connection) -> None:
    """The write has put the job back; the cancel finds it in the queue."""
    one = make_job(connection, "running")
    connection.commit()
    default_store.apply(other, [change(other, one, Snooze(0))])
    found = cancelled_behind(other, connection, one)

    assert found == [one]
    assert row(connection, one).status is JobStatus.CANCELLED


# ---- retry


@pytest.mark.parametrize("status", sorted(FINISHED))
def test_a_retried_job_begins_again(connection: Connection, status: JobStatus) -> None:
    """All attempts before it, due now, no trace of the end but its errors."""
    errors = [{"message": "no"}]
    one = make_job(
        connection, status, attempt=10, rescues=5, claims=15, errors=errors, result=[1], run_at=timedelta(hours=-1),
        cancel_requested_at=timedelta(0), lease_expires_at=timedelta(0),
    )  # fmt: skip

    assert run(connection, retry_jobs(Job.status == status)) == [one]

    job = row(connection, one)
    assert (job.status, job.attempt, job.rescues, job.claims) == (JobStatus.QUEUED, 0, 0, 15)
    assert (job.errors, job.result) == (errors, None)
    cleared = (job.finished_at, job.purge_at, job.cancel_requested_at, job.lease_expires_at)
    assert cleared == (None,) * 4
    assert claim(connection) == [one]
    assert default_store.apply(connection, [change(connection, one, Completed())]) == {one: Answer.APPLIED}
    assert row(connection, one).status is JobStatus.COMPLETED


def test_a_scheduled_job_becomes_due_and_keeps_its_attempts(connection: Connection) -> None:
    """It has not come to an end; only the waiting is over."""
    later = make_job(connection, run_at=timedelta(hours=1), attempt=3)
    due = make_job(connection, run_at=timedelta(hours=-1))
    before = row(connection, due)

    assert run(connection, retry_jobs(true())) == [later, due]

    job = row(connection, later)
    assert (job.attempt, job.run_at) == (3, connection.scalar(select(func.now())))
    assert row(connection, due) == before


# ---- discard


def test_a_discarded_job_says_why(connection: Connection) -> None:
    """Failed, with an entry of the same shape as any other."""
    one = make_job(connection, attempt=2, errors=[{"message": "no"}])

    assert run(connection, discard_jobs(Job.id == one, reason="customer left")) == [one]

    job = row(connection, one)
    assert job.status is JobStatus.FAILED
    assert job.purge_at - job.finished_at == timedelta(seconds=Rules().retain_failed or 0)
    assert set(job.errors[1]) == {"at", "attempt", "type", "message", "traceback"}
    assert (job.errors[1]["type"], job.errors[1]["message"], job.errors[1]["attempt"]) == (
        "Discard",
        "customer left",
        2,
    )


def test_a_reason_is_cleaned_and_cut_and_errors_stay_bounded(connection: Connection) -> None:
    """Operators paste long texts."""
    one = make_job(connection, errors=[{"n": n} for n in range(MAX_ERRORS)])

    run(connection, discard_jobs(Job.id == one, reason="\x00\ud800" + "x" * 1_000_000))

    errors = row(connection, one).errors
    assert len(errors) == MAX_ERRORS
    assert errors[-1]["message"].startswith("\ufffd\ufffdx")
    assert len(errors[-1]["message"]) == MAX_MESSAGE


# ---- release


def test_a_released_job_goes_back_without_the_attempt(connection: Connection) -> None:
    """A worker that still runs it has lost it, whether it is claimed again or not."""
    one = make_job(connection, "running", attempt=3)

    assert run(connection, release_jobs(Job.id == one, delay=timedelta(minutes=1))) == [one]

    job = row(connection, one)
    assert (job.status, job.attempt, job.lease_expires_at) == (JobStatus.QUEUED, 2, None)
    assert job.run_at - connection.scalar(select(func.now())) == timedelta(minutes=1)
    assert default_store.apply(connection, [completed(one)]) == {one: Answer.LOST}


def test_a_job_that_is_released_without_a_delay_keeps_its_place(connection: Connection) -> None:
    """It goes before all that became due after it."""
    one = make_job(connection, "running", run_at=timedelta(hours=-1))
    due = row(connection, one).run_at

    run(connection, release_jobs(Job.id == one))

    assert row(connection, one).run_at == due


def test_a_released_job_that_was_asked_to_cancel_is_cancelled(connection: Connection) -> None:
    """It must not run again."""
    one = make_job(connection, "running", cancel_requested_at=timedelta(0))

    run(connection, release_jobs(true()))

    assert row(connection, one).status is JobStatus.CANCELLED


@pytest.mark.parametrize("delay", [-1, float("nan"), timedelta(-1)])
def test_a_wrong_delay_is_refused(delay: Any) -> None:
    """Before any SQL."""
    with pytest.raises(ValueError, match=r"release_jobs\(delay=\.\.\.\)"):
        release_jobs(true(), delay=delay)


def test_a_worker_releases_what_it_does_not_know_of(connection: Connection) -> None:
    """After a commit whose answer was lost, rows may have its id of which it never heard."""
    known, unknown = make_jobs(connection, 2, "running", worker="me", claim_token=3)
    foreign = make_job(connection, "running", worker="you")
    unheld = make_job(connection, "running", worker=None)

    assert default_store.release_unknown(connection, worker="me", known=[(known, 3)]) == [unknown]
    assert default_store.release_unknown(connection, worker="me", known=[(known, 3)]) == []
    assert default_store.release_unknown(connection, worker="me", known=[(known, 2)]) == [known]
    assert statuses(connection) == {
        known: "queued", unknown: "queued", foreign: "running", unheld: "running",
    }  # fmt: skip


def test_a_worker_releases_what_bears_the_number_of_a_job_that_it_knew(connection: Connection) -> None:
    """The job that it knows is gone, its number was given again, and the answer to the claim of that job was lost."""
    one = make_job(connection)
    (known,) = default_store.claim(connection, ClaimRequest(worker="me", queues={"default": 1}, lease=60))
    connection.execute(TABLE.delete())
    make_job(connection, id=one)
    default_store.claim(connection, ClaimRequest(worker="me", queues={"default": 1}, lease=60))

    assert default_store.release_unknown(connection, worker="me", known=[(one, known.claim_token)]) == [one]


# ---- prune

OVER = timedelta(seconds=-1)


def test_jobs_whose_time_is_over_are_deleted(connection: Connection) -> None:
    """The oldest first, no more than asked for."""
    over = [make_job(connection, status, purge_at=OVER * (9 - n)) for n, status in enumerate(sorted(FINISHED))]
    kept = [
        make_job(connection, "completed"),
        make_job(connection, "completed", purge_at=None),
        make_job(connection, "queued", purge_at=OVER),
        make_job(connection, "running", purge_at=OVER),
    ]

    assert run(connection, prune_jobs(limit=2)) == over[:2]
    assert run(connection, prune_jobs()) == over[2:]
    assert run(connection, prune_jobs()) == []
    assert sorted(statuses(connection)) == kept


def test_with_criteria_finished_jobs_are_deleted_whatever_their_time(connection: Connection) -> None:
    """An operator cleans up. Jobs that have not finished are never touched."""
    gone = [make_job(connection, "failed", queue="old"), make_job(connection, "completed", queue="old", purge_at=None)]
    make_job(connection, "queued", queue="old")
    make_job(connection, "failed")

    assert run(connection, prune_jobs(Job.queue == "old")) == gone


def test_two_pruners_share_the_work(connection: Connection, other: Connection) -> None:
    """None waits for the other."""
    ids = make_jobs(connection, 4, "completed", purge_at=OVER)
    connection.commit()

    first, second = run(connection, prune_jobs(limit=2)), run(other, prune_jobs(limit=9))

    assert (first, second) == (ids[:2], ids[2:])


def test_a_reference_in_an_open_transaction_is_skipped(connection: Connection, other: Connection) -> None:
    """The DELETE does not wait for it."""
    users_table(connection)
    ids = make_jobs(connection, 3, "completed", purge_at=OVER)
    connection.commit()
    refer(other, ids[0])

    assert run(connection, prune_jobs()) == ids[1:]


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("limit", [3, 1_000])
def test_a_page_with_a_row_that_the_application_needs_is_refused_as_a_whole(
    connection: Connection, limit: int, deferred: bool
) -> None:
    """At once, also where the constraint is deferred to the commit: a smaller page may be deleted."""
    users_table(connection, deferred=deferred)
    ids = make_jobs(connection, 30, "completed", purge_at=OVER)
    refer(connection, ids[2])
    connection.commit()

    with pytest.raises(IntegrityError):
        default_store.prune(connection, limit=limit)
    connection.rollback()

    assert default_store.prune(connection, limit=2).jobs == 2
    assert sorted(statuses(connection)) == ids[2:]


@pytest.mark.parametrize("deferred", [False, True])
def test_pruning_goes_on_past_rows_that_the_application_needs(
    connection: Connection, deferred: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """They stay, are reported, and are looked at again after a day."""
    users_table(connection, deferred=deferred)
    ids = make_jobs(connection, 30, "completed", purge_at=OVER)
    needed = [ids[0], ids[1], ids[13], ids[29]]
    for one in needed:
        refer(connection, one)
    connection.commit()

    done = []
    while (deleted := default_store.prune_first(connection)) is not None:
        done.append(deleted)
        connection.commit()

    assert done == [one not in needed for one in ids]
    assert sorted(statuses(connection)) == needed
    now = connection.scalar(select(func.now()))
    assert all(timedelta(0) < row(connection, one).purge_at - now <= timedelta(days=1) for one in needed)
    assert all(f"job {one} cannot be deleted" in caplog.text for one in needed)


def test_the_next_page_of_pruning_does_not_walk_over_what_was_deleted_before(
    engine: Engine, connection: Connection
) -> None:
    """Another session holds a snapshot that still sees the deleted rows."""
    fill = (
        "INSERT INTO sa_jobqueue.job (task, status, finished_at, purge_at)"
        " SELECT 'a', 'completed', now(), now() - n * interval '1 second' FROM generate_series(1, 20000) AS n"
    )
    connection.execute(text(fill))
    connection.commit()
    with engine.connect() as reader, service_connection(engine) as pruner:
        reader.execution_options(isolation_level="REPEATABLE READ").execute(text("SELECT FROM sa_jobqueue.job LIMIT 1"))
        page = Prepared(pruner, prune_page(limit=0), {})
        first, reached = page.explain({"page": 100}).blocks, float("-inf")
        for _ in range(19):
            pruned = default_store.prune(pruner, limit=1_000, after=reached)
            pruner.commit()
            assert (pruned.jobs, pruned.reached > reached) == (1_000, True)
            reached = pruned.reached
        assert page.explain({"page": 100, "after": reached}).blocks < 1.2 * first < page.explain({"page": 100}).blocks


def test_a_page_of_pruning_goes_on_among_jobs_of_one_time(connection: Connection) -> None:
    """An operator has cancelled them in one statement, say."""
    ids = make_jobs(connection, 7, "cancelled", purge_at=OVER)
    reached, gone = float("-inf"), 0

    for _ in range(4):
        pruned = default_store.prune(connection, limit=2, after=reached)
        gone, reached = gone + pruned.jobs, pruned.reached

    assert gone == len(ids)
    assert statuses(connection) == {}


def test_pruning_past_a_needed_row_does_not_wait_for_a_locked_one(connection: Connection, other: Connection) -> None:
    """What is put off is the row that could not be deleted, not the one before it, which is locked."""
    users_table(connection)
    locked, needed, free = (make_job(connection, "completed", purge_at=OVER * n) for n in (3, 2, 1))
    refer(connection, needed)
    connection.commit()
    other.execute(select(TABLE.c.id).where(TABLE.c.id == locked).with_for_update())

    assert [default_store.prune_first(connection) for _ in range(3)] == [False, True, None]

    assert exists(connection, needed)
    assert not exists(connection, free)
    assert row(connection, locked).purge_at < connection.scalar(select(func.now()))


def test_what_is_put_off_stays_with_its_pruner(connection: Connection, other: Connection) -> None:
    """Another, at the same moment, takes the next one; and neither puts off what the other has tried."""
    users_table(connection)
    needed, free = (make_job(connection, "completed", purge_at=OVER * n) for n in (2, 1))
    refer(connection, needed)
    connection.commit()

    assert default_store.prune_first(connection) is False
    assert default_store.prune_first(other) is True
    assert default_store.prune_first(other) is None

    other.commit()
    connection.commit()
    assert not exists(connection, free)
    assert row(connection, needed).purge_at > connection.scalar(select(func.now()))
