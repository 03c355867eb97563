"""What a batch of outcomes writes, and what it answers for each."""

from __future__ import annotations

from datetime import datetime, timedelta
from threading import Thread

import pytest
from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from sa_jobqueue.rules.failures import MAX_ERRORS
from sa_jobqueue.rules.lifecycle import FINISHED, Change, Event, JobStatus, Rules
from sa_jobqueue.rules.outcomes import (
    Cancel,
    Completed,
    Discard,
    ErrorEntry,
    Failed,
    Outcome,
    Released,
    Rescued,
    Retry,
    Snooze,
)
from sa_jobqueue.rules.retry import RetryPolicy
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import apply_changes, cancel_jobs
from tests.support.factory import (
    TABLE,
    change,
    completed,
    exists,
    make_job,
    make_jobs,
    refer,
    row,
    users_table,
    wait_until_blocked_by,
)

ERROR = ErrorEntry("builtins.ValueError", "no 'such\" \\ order ☃", "Traceback …\n")
APPLIED, LOST, LOCKED = Answer.APPLIED, Answer.LOST, Answer.LOCKED
RULES = Rules(RetryPolicy(base=100, jitter=0), retain=60.0, retain_failed=120.0)


def apply(connection: Connection, *changes: Change) -> dict[int, Answer]:
    return default_store.apply(connection, changes)


def clock(connection: Connection) -> datetime:
    """What the server's clock shows, later than its now(): the transaction has begun before."""
    return connection.execute(select(func.clock_timestamp())).scalar_one()


def expire(connection: Connection, one: int) -> None:
    connection.execute(
        TABLE.update().where(TABLE.c.id == one).values(lease_expires_at=func.now() - timedelta(microseconds=1))
    )


# ---- what is written


def test_a_completion(connection: Connection) -> None:
    """Final, with its result, kept as long as the task says."""
    one, began = make_job(connection, "running", attempt=2), clock(connection)

    assert apply(connection, change(connection, one, Completed('{"a": [1]}'), RULES)) == {one: APPLIED}

    job = row(connection, one)
    assert (job.status, job.result, job.attempt, job.errors) == (JobStatus.COMPLETED, {"a": [1]}, 2, [])
    assert began < job.finished_at < clock(connection)
    assert job.purge_at - job.finished_at == timedelta(seconds=60)
    assert job.lease_expires_at is None
    assert (job.worker, job.claims) == ("worker-1", 1)


@pytest.mark.parametrize(("text_", "value"), [(None, None), ("null", None), ("0", 0), ('"ü"', "ü"), ("[]", [])])
def test_a_result_is_any_json(connection: Connection, text_: str | None, value: object) -> None:
    """SQL NULL where none was recorded, JSON null where None was."""
    one = make_job(connection, "running")

    apply(connection, change(connection, one, Completed(text_), RULES))

    assert row(connection, one).result == value
    assert connection.scalar(select(TABLE.c.result.is_(None)).where(TABLE.c.id == one)) is (text_ is None)


def test_a_failure_goes_back_with_its_error(connection: Connection) -> None:
    """It is due after the delay, counted by the database's clock from the write; the attempt counts."""
    one, began = make_job(connection, "running", attempt=1, run_at=timedelta(days=-1)), clock(connection)

    apply(connection, change(connection, one, Failed(ValueError(), ERROR), RULES))

    job, ended = row(connection, one), clock(connection)
    assert (job.status, job.attempt, job.finished_at, job.purge_at) == (JobStatus.QUEUED, 1, None, None)
    assert began < job.run_at - timedelta(seconds=100) < ended
    (entry,) = job.errors
    assert began < datetime.fromisoformat(entry.pop("at")) < ended
    assert entry == {
        "attempt": 1, "type": ERROR.type, "message": ERROR.message, "traceback": ERROR.traceback,
    }  # fmt: skip


def test_the_last_failure_is_final(connection: Connection) -> None:
    """Kept longer than a success."""
    one = make_job(connection, "running", attempt=10, run_at=timedelta(days=-1))
    due = row(connection, one).run_at

    apply(connection, change(connection, one, Failed(ValueError(), ERROR), RULES))

    job = row(connection, one)
    assert (job.status, job.run_at, len(job.errors)) == (JobStatus.FAILED, due, 1)
    assert job.purge_at - job.finished_at == timedelta(seconds=120)


def test_a_snooze_gives_the_attempt_back(connection: Connection) -> None:
    """It leaves no error. Without a delay the job is due at once, also in this very transaction, and behind those that wait."""
    (later, at_once), began = (
        make_jobs(connection, 2, "running", attempt=3, run_at=timedelta(hours=-1)),
        clock(connection),
    )

    apply(
        connection, change(connection, later, Snooze(1.5), RULES), change(connection, at_once, Snooze(0), RULES)
    )  # fmt: skip

    jobs = [row(connection, one) for one in (later, at_once)]
    assert [(job.status, job.attempt, job.errors) for job in jobs] == [(JobStatus.QUEUED, 2, [])] * 2
    assert began < jobs[0].run_at - timedelta(seconds=1.5) < clock(connection)
    assert jobs[1].run_at == connection.scalar(select(func.now()))


@pytest.mark.parametrize("outcome", [Released(), Released(started=True), Rescued(ERROR)])
def test_what_a_worker_that_ends_gives_back_keeps_its_place(connection: Connection, outcome: Outcome) -> None:
    """It goes before all that became due after it, and no attempt is spent."""
    one = make_job(connection, "running", attempt=3, run_at=timedelta(hours=-1), lease_expires_at=timedelta(seconds=-1))
    due = row(connection, one).run_at

    apply(connection, change(connection, one, outcome, RULES))

    job = row(connection, one)
    assert (job.status, job.attempt, job.run_at) == (JobStatus.QUEUED, 2, due)


def test_the_attempt_never_becomes_negative(connection: Connection) -> None:
    """Whatever an operator has set it to."""
    one = make_job(connection, "running", attempt=0)

    apply(connection, change(connection, one, Snooze(0), RULES))

    assert row(connection, one).attempt == 0


@pytest.mark.parametrize(
    ("outcome", "status"), [(Cancel("enough"), JobStatus.CANCELLED), (Discard("useless"), JobStatus.FAILED)]
)
def test_cancel_and_discard_are_final_and_say_why(
    connection: Connection, outcome: Cancel | Discard, status: JobStatus
) -> None:
    """In `errors`, as everything that went another way than planned."""
    one = make_job(connection, "running")

    apply(connection, change(connection, one, outcome, RULES))

    job = row(connection, one)
    assert job.status is status
    assert [(entry["type"], entry["message"]) for entry in job.errors] == [(type(outcome).__name__, outcome.reason)]


def test_a_batch_may_hold_every_kind(connection: Connection) -> None:
    """One statement writes a different end to each row."""
    ids = make_jobs(connection, 5, "running")
    outcomes = [Completed(), Failed(ValueError(), ERROR), Snooze(5), Cancel(), Retry()]
    changes = [change(connection, one, outcome, RULES) for one, outcome in zip(ids, outcomes, strict=True)]
    changes.append(completed(999))

    answers = apply(connection, *reversed(changes))

    assert answers == {**dict.fromkeys(ids, APPLIED), 999: LOST}
    assert [row(connection, one).status.value for one in ids] == [
        "completed", "queued", "queued", "cancelled", "queued",
    ]  # fmt: skip


def test_an_empty_batch_writes_nothing(connection: Connection) -> None:
    """Neither through the operation nor as a statement."""
    make_job(connection, "running")

    assert apply(connection) == {}
    assert connection.execute(apply_changes([])).all() == []


@pytest.mark.parametrize("one", [2**31, 2**63 - 1])
def test_ids_and_fences_use_their_whole_width(connection: Connection, one: int) -> None:
    """bigint."""
    make_job(connection, "running", id=one, claim_token=2**63 - 1)

    assert apply(connection, completed(one, 2**63 - 1)) == {one: APPLIED}


# ---- how long it is kept


def test_retain_nothing_deletes_a_completed_job_at_once(connection: Connection) -> None:
    """And answers as for the others."""
    gone, stays = make_jobs(connection, 2, "running")

    assert apply(connection, completed(gone, retain=0.0), completed(stays)) == {gone: APPLIED, stays: APPLIED}

    assert not exists(connection, gone)
    assert exists(connection, stays)


def test_retain_nothing_keeps_what_did_not_complete(connection: Connection) -> None:
    """A failure is there to be looked at: its row goes with the next prune."""
    one = make_job(connection, "running", attempt=10)
    rules = Rules(retain=0.0, retain_failed=0.0)

    apply(connection, change(connection, one, Failed(ValueError(), ERROR), rules))

    job = row(connection, one)
    assert (job.status, job.purge_at) == (JobStatus.FAILED, job.finished_at)


def test_retain_for_ever_leaves_purge_at_empty(connection: Connection) -> None:
    """None is for ever."""
    ids = make_jobs(connection, 2, "running", attempt=10)
    rules = Rules(retain=None, retain_failed=None)

    apply(
        connection,
        change(connection, ids[0], Completed(), rules),
        change(connection, ids[1], Failed(ValueError(), ERROR), rules),
    )

    assert [(row(connection, one).status in FINISHED, row(connection, one).purge_at) for one in ids] == [
        (True, None)
    ] * 2


def test_a_completed_job_that_the_application_needs_is_not_deleted(connection: Connection) -> None:
    """A committed reference refuses the statement, as any DELETE; the row is as it was."""
    users_table(connection)
    one = make_job(connection, "running")
    refer(connection, one)
    connection.commit()

    with pytest.raises(IntegrityError):
        apply(connection, completed(one, retain=0.0))
    connection.rollback()

    assert row(connection, one).status is JobStatus.RUNNING


def test_a_reference_in_an_open_transaction_does_not_hold_up_the_batch(
    connection: Connection, other: Connection
) -> None:
    """A DELETE would wait for it; the other jobs of the batch must not."""
    users_table(connection)
    ids = make_jobs(connection, 3, "running")
    connection.commit()
    refer(other, ids[1])

    answers = apply(connection, *(completed(one, retain=0.0) for one in ids))

    assert answers == {ids[0]: APPLIED, ids[1]: LOCKED, ids[2]: APPLIED}


def test_a_reference_does_not_hinder_what_stays(connection: Connection, other: Connection) -> None:
    """KEY SHARE and an update of other columns get along."""
    users_table(connection)
    one = make_job(connection, "running")
    connection.commit()
    refer(other, one)

    assert apply(connection, completed(one)) == {one: APPLIED}


# ---- errors are bounded


def test_the_oldest_error_gives_way(connection: Connection) -> None:
    """`errors` holds the newest `MAX_ERRORS`."""
    errors = [{"n": n} for n in range(MAX_ERRORS)]
    one = make_job(connection, "running", errors=errors)

    apply(connection, change(connection, one, Failed(ValueError(), ERROR), RULES))

    found = row(connection, one).errors
    assert found[:-1] == errors[1:]
    assert found[-1]["message"] == ERROR.message


def test_one_less_than_the_bound_loses_nothing(connection: Connection) -> None:
    """The edge."""
    errors = [{"n": n} for n in range(MAX_ERRORS - 1)]
    one = make_job(connection, "running", errors=errors)

    apply(connection, change(connection, one, Failed(ValueError(), ERROR), RULES))

    assert row(connection, one).errors[:-1] == errors


def test_a_list_that_was_too_long_is_cut_to_the_bound(connection: Connection) -> None:
    """Plain SQL may have written it."""
    one = make_job(connection, "running", errors=[{"n": n} for n in range(1_000)])

    apply(connection, change(connection, one, Failed(ValueError(), ERROR), RULES))

    found = row(connection, one).errors
    assert len(found) == MAX_ERRORS
    assert found[-2] == {"n": 999}


@pytest.mark.parametrize("wrong", [{}, {"a": 1}, 5, "text", True])
def test_errors_of_a_wrong_shape_are_replaced(connection: Connection, wrong: object) -> None:
    """`jsonb_array_length` would raise, on every attempt to write."""
    one = make_job(connection, "running", errors=wrong)

    apply(connection, change(connection, one, Failed(ValueError(), ERROR), RULES))

    assert [entry["message"] for entry in row(connection, one).errors] == [ERROR.message]


# ---- the fence


@pytest.mark.parametrize("status", sorted(set(JobStatus) - {JobStatus.RUNNING}))
def test_a_job_that_does_not_run_is_lost(connection: Connection, status: str) -> None:
    """Nothing is written to it."""
    one = make_job(connection, status, claim_token=1)
    before = row(connection, one)

    assert apply(connection, completed(one)) == {one: LOST}
    assert row(connection, one) == before


def test_a_job_that_was_claimed_again_is_lost(connection: Connection) -> None:
    """A snooze gave the attempt back, so both claims are attempt 1: only `claims` tells them apart."""
    one = make_job(connection, "running", claim_token=2, attempt=1)

    assert apply(connection, completed(one, claim_token=1)) == {one: LOST}
    assert apply(connection, completed(one, claim_token=2)) == {one: APPLIED}


@pytest.mark.parametrize("retain", [60.0, 0.0])
def test_two_claims_of_one_job_are_answered_each(connection: Connection, retain: float) -> None:
    """A zombie and the run after it, in one batch."""
    one = make_job(connection, "running", claim_token=2)

    found = connection.execute(
        apply_changes([completed(one, 1, retain=retain), completed(one, 2, retain=retain)])
    ).all()

    assert sorted(found) == [(one, 1, "lost"), (one, 2, "applied")]


def test_a_change_is_applied_once(connection: Connection) -> None:
    """The second time the job has moved on."""
    one = make_job(connection, "running")

    assert apply(connection, completed(one)) == {one: APPLIED}
    assert apply(connection, completed(one)) == {one: LOST}


def test_a_locked_row_is_answered_as_locked(connection: Connection, other: Connection) -> None:
    """It holds up no other job. When the lock is gone, the same change applies."""
    ids = make_jobs(connection, 3, "running")
    connection.commit()
    other.execute(select(TABLE.c.id).where(TABLE.c.id == ids[1]).with_for_update())

    first = apply(connection, *map(completed, ids))
    other.rollback()
    second = apply(connection, completed(ids[1]))

    assert first == {ids[0]: APPLIED, ids[1]: LOCKED, ids[2]: APPLIED}
    assert second == {ids[1]: APPLIED}


def test_a_locked_row_that_is_lost_already_is_lost(connection: Connection, other: Connection) -> None:
    """There is nothing to try again."""
    one = make_job(connection, "running", claim_token=2)
    connection.commit()
    other.execute(select(TABLE.c.id).where(TABLE.c.id == one).with_for_update())

    assert apply(connection, completed(one, claim_token=1)) == {one: LOST}


@pytest.mark.parametrize("change", [completed(1), completed(1, retain=0.0), completed(1, result="1")])
def test_in_the_transaction_of_its_handler_a_change_waits(
    connection: Connection, other: Connection, change: Change
) -> None:
    """It has one job and nothing else to do."""
    one = make_job(connection, "running")
    connection.commit()
    connection.execute(text("SET LOCAL lock_timeout = '100ms'"))
    other.execute(select(TABLE.c.id).where(TABLE.c.id == one).with_for_update())

    with pytest.raises(DBAPIError, match="lock timeout"):
        default_store.apply_one(connection, change._replace(id=one))


@pytest.mark.parametrize("change", [completed(1), completed(1, retain=0.0), completed(1, result="1")])
def test_in_the_transaction_of_its_handler_a_change_does_what_it_does_in_a_batch(
    connection: Connection, change: Change
) -> None:
    """To the row, and in its answer."""
    one, two, three = (make_job(connection, "running", claim_token=2) for _ in range(3))

    assert default_store.apply_one(connection, change._replace(id=one, claim_token=2)) is APPLIED
    assert apply(connection, change._replace(id=two, claim_token=2)) == {two: APPLIED}
    assert default_store.apply_one(connection, change._replace(id=three, claim_token=1)) is LOST

    found = {id: connection.execute(select(TABLE).where(TABLE.c.id == id)).one_or_none() for id in (one, two, three)}
    mine, batch = (None if found[id] is None else found[id]._asdict() for id in (one, two))
    for written in (mine, batch):
        if written is not None:  # each at a time of its own
            written["purge_at"] = written["purge_at"] and written["purge_at"] - written["finished_at"]
            del written["id"], written["finished_at"]
    assert mine == batch
    assert (mine is None) == (change.retain == 0)
    assert found[three] is not None
    assert found[three].status == "running"


def test_a_row_deleted_meanwhile_is_lost(connection: Connection, other: Connection) -> None:
    """By an operator, say."""
    one = make_job(connection, "running")
    connection.commit()
    other.execute(TABLE.delete())
    other.commit()

    assert apply(connection, completed(one)) == {one: LOST}


# ---- rescue


def test_a_job_whose_lease_ran_out_is_rescued(connection: Connection) -> None:
    """It goes back at once, without the attempt, with a note."""
    one = make_job(connection, "running", attempt=1, max_attempts=1)
    expire(connection, one)

    assert apply(connection, change(connection, one, Rescued(ERROR), RULES)) == {one: APPLIED}

    job = row(connection, one)
    assert (job.status, job.attempt, job.rescues, len(job.errors)) == (JobStatus.QUEUED, 0, 1, 1)


def test_a_job_without_a_lease_is_rescued(connection: Connection) -> None:
    """Plain SQL may have made it. Nothing else would ever end such a job."""
    one = make_job(connection, "running", lease_expires_at=None)

    assert apply(connection, change(connection, one, Rescued(ERROR), RULES)) == {one: APPLIED}


def test_a_lease_renewed_since_it_was_seen_expired_is_kept(connection: Connection, other: Connection) -> None:
    """A renewal leaves the fence as it is, so the write looks at the lease again."""
    one = make_job(connection, "running")
    expire(connection, one)
    connection.commit()
    (found,) = default_store.expired(connection)
    rescue = change(connection, found.claim.id, Rescued(ERROR), RULES)
    connection.commit()

    default_store.renew(other, {one: 1}, lease=60)
    during = apply(connection, rescue)
    connection.rollback()
    other.commit()
    after = apply(connection, rescue)

    assert during == {one: LOCKED}
    assert after == {one: LOST}
    assert row(connection, one).status is JobStatus.RUNNING


def test_a_completion_does_not_ask_for_the_lease(connection: Connection) -> None:
    """Late, but no worker has rescued it: the work counts."""
    one = make_job(connection, "running")
    expire(connection, one)

    assert apply(connection, completed(one)) == {one: APPLIED}


def test_the_count_of_rescues_stays_at_the_edge_of_its_type(connection: Connection) -> None:
    """An overflow would fail every batch that this job is in."""
    one = make_job(connection, "running", rescues=32_767, lease_expires_at=None)

    assert apply(connection, change(connection, one, Rescued(ERROR), RULES)) == {one: APPLIED}
    assert (row(connection, one).status, row(connection, one).rescues) == (JobStatus.FAILED, 32_767)


# ---- a cancel asked for meanwhile


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Completed("1"), JobStatus.COMPLETED),
        (Failed(ValueError(), ERROR), JobStatus.CANCELLED),
        (Retry(5), JobStatus.CANCELLED),
        (Snooze(5), JobStatus.CANCELLED),
        (Released(), JobStatus.CANCELLED),
        (Rescued(ERROR), JobStatus.CANCELLED),
        (Discard(), JobStatus.FAILED),
    ],
    ids=lambda value: getattr(value, "value", type(value).__name__),
)
def test_a_cancel_asked_for_is_not_lost(connection: Connection, outcome: Completed, status: JobStatus) -> None:
    """What would go back to the queue is cancelled; what has come to its end stays so."""
    one = make_job(connection, "running", lease_expires_at=None)
    decided = change(connection, one, outcome, RULES)
    connection.execute(cancel_jobs(TABLE.c.id == one))

    instead = status is JobStatus.CANCELLED
    assert apply(connection, decided) == {one: Answer.CANCELLED if instead else APPLIED}

    job = row(connection, one)
    assert job.status is status
    assert job.finished_at is not None
    assert job.purge_at is not None
    assert job.cancel_requested_at is not None


def test_a_cancel_that_commits_during_the_write_is_seen(connection: Connection, other: Connection) -> None:
    """The write decides on the row as it is when it has the lock, not on the one it first saw."""
    one = make_job(connection, "running")
    connection.commit()
    snooze = change(connection, one, Snooze(5), RULES)
    connection.commit()
    # A snapshot older than the cancel: the statement begins, and reads the row, before the cancel has committed.
    waiting = apply_changes([snooze], skip_locked=False)
    other.execute(cancel_jobs(TABLE.c.id == one))

    answers: list[object] = []
    thread = Thread(target=lambda: answers.extend(connection.execute(waiting).all()))
    thread.start()
    wait_until_blocked_by(other)
    other.commit()
    thread.join()

    assert answers == [(one, 1, "cancelled")]
    assert row(connection, one).status is JobStatus.CANCELLED


# ---- one bad row


@pytest.mark.parametrize("retain", [60.0, 0.0])
@pytest.mark.parametrize("bad", ["", "{", '"\\u0000"', '"\\ud800"', "NaN", "{'a': 1}"])
def test_one_bad_result_fails_the_batch_and_leaves_it_to_a_second_try(
    connection: Connection, bad: str, retain: float
) -> None:
    """All or nothing: after the rollback the neighbours can be written, and the bad one in another way."""
    ids = make_jobs(connection, 3, "running")
    connection.commit()
    changes = [completed(ids[0]), completed(ids[1], result=bad), completed(ids[2], retain=retain)]

    with pytest.raises(DBAPIError) as caught:
        apply(connection, *changes)
    connection.rollback()

    assert caught.value.orig.sqlstate.startswith("22")  # type: ignore[union-attr]
    assert [row(connection, one).status for one in ids] == [JobStatus.RUNNING] * 3
    again = [changes[0], changes[1]._replace(result=None, event=Event.FAIL, status=JobStatus.FAILED), changes[2]]
    assert apply(connection, *again) == dict.fromkeys(ids, APPLIED)


@pytest.mark.parametrize("outcome", [Cancel("a\x00b"), Discard("\ud800"), Retry(reason="\x00")])
def test_a_signals_reason_cannot_fail_the_batch(connection: Connection, outcome: Cancel) -> None:
    """What PostgreSQL cannot store became U+FFFD when the change was decided."""
    one = make_job(connection, "running")

    apply(connection, change(connection, one, outcome, RULES))

    assert "\ufffd" in row(connection, one).errors[0]["message"]


def test_the_errors_attempt_is_the_one_that_failed(connection: Connection) -> None:
    """Also where the attempt is given back with it."""
    one = make_job(connection, "running", attempt=4, lease_expires_at=None)

    apply(connection, change(connection, one, Rescued(ERROR), RULES))

    job = row(connection, one)
    assert (job.attempt, job.errors[0]["attempt"]) == (3, 4)


def test_an_error_cannot_forge_its_stamp(connection: Connection) -> None:
    """`at` and `attempt` are the database's."""
    one = make_job(connection, "running")

    apply(connection, change(connection, one, Failed(ValueError(), ERROR), RULES))

    entry = row(connection, one).errors[0]
    assert set(entry) == {"at", "attempt", "type", "message", "traceback"}
