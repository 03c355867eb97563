"""Schedules in the database: each tick makes one job, by the database's clock, and a bad row does not hold up the others."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, case, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from sa_jobqueue import Registry, Schedule, Unique, every, task
from sa_jobqueue.errors import OptionError, PayloadError
from sa_jobqueue.sql.schedules.declared import Declaring, definition_of
from sa_jobqueue.sql.schedules.due import Ticked
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import pause_schedules, run_schedules
from tests.support.factory import TABLE
from tests.support.waiting import wait_until

SCHEDULE = Schedule.__table__
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)

registry = Registry()


@task(registry=registry, name="report", queue="reports", priority=7, max_attempts=3)
def report(tenant: int, note: str = "") -> None: ...


def add(engine: Engine, *schedules: Schedule) -> list[int]:
    """Make schedules at run time."""
    with Session(engine) as session:
        session.add_all(schedules)
        session.commit()
        return [one.id for one in schedules]


def tick(engine: Engine, **options: Any) -> Ticked:
    """One look at what is due."""
    ticked = Ticked()
    with engine.begin() as connection:
        default_store.enqueue_due(connection, ticked, limit=100, random=lambda: 0.5, **options)
    return ticked


def turn_back(engine: Engine, by: timedelta) -> None:
    """As if `by` had passed without a look at the schedules: all their times are that much earlier."""
    columns = SCHEDULE.c
    with engine.begin() as connection:
        connection.execute(
            update(SCHEDULE).values(
                next_at=columns.next_at - by,
                due_at=columns.due_at - by,
                counts_from=case((columns.next_at.is_(None), columns.counts_from - by), else_=columns.counts_from),
            )
        )


def jobs(engine: Engine) -> Sequence[Any]:
    with engine.connect() as connection:
        return connection.execute(select(TABLE).order_by(TABLE.c.id)).all()


def schedule_of(engine: Engine, name: str) -> Schedule:
    with Session(engine) as session:
        return session.scalars(select(Schedule).where(Schedule.name == name)).one()


def error_of(engine: Engine, name: str) -> str | None:
    with engine.connect() as connection:
        return connection.scalar(select(SCHEDULE.c.error).where(SCHEDULE.c.name == name))


def end_all(engine: Engine, status: str = "completed") -> None:
    with engine.begin() as connection:
        connection.execute(
            update(TABLE)
            .where(TABLE.c.finished_at.is_(None))
            .values(status=status, finished_at=text("clock_timestamp()"))
        )


def start_all(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(
            update(TABLE).values(status="running", claim_token=1, lease_expires_at=text("now() + interval '1 hour'"))
        )


# ---- making schedules


def test_a_schedule_made_at_run_time_has_its_next_tick_when_a_worker_has_looked(engine: Engine) -> None:
    """It is a row like others, with the options of its task, and its jobs have them."""
    (id,) = add(engine, Schedule(every(HOUR), report, 3, name="tenant 3"))
    made = schedule_of(engine, "tenant 3")
    assert (made.next_at, made.queue, made.args, made.priority, made.max_attempts) == (
        None,
        "reports",
        {"tenant": 3},
        7,
        3,
    )
    assert tick(engine).ids == [id]
    assert schedule_of(engine, "tenant 3").next_at == made.created_at + HOUR
    assert tick(engine).ids == []
    turn_back(engine, HOUR)
    assert tick(engine).enqueued == 1
    (job,) = jobs(engine)
    assert (job.task, job.queue, job.args, job.priority, job.max_attempts) == ("report", "reports", {"tenant": 3}, 7, 3)
    assert (job.schedule_id, job.tick_at, job.ticks) == (id, made.created_at, 1)
    assert job.run_at == job.created_at
    assert schedule_of(engine, "tenant 3").last_tick_at == made.created_at


def test_a_call_gives_the_arguments_by_keyword() -> None:
    """And is checked by type checkers."""
    made = Schedule("0 7 * * mon-fri", report.call(3, note="monthly"), timezone="Europe/Vienna")
    assert (made.name, made.args, made.timezone) == ("report", {"tenant": 3, "note": "monthly"}, "Europe/Vienna")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"missed": "never"}, "missed must be one of once, skip, all, not 'never'"),
        ({"overlap": "wait"}, "overlap must be one of allow, skip, queue_one, cancel_running, not 'wait'"),
        ({"jitter": -1}, "jitter must be between 0 seconds and 100 years, not -1"),
        ({"catch_up": 0.02}, "catch_up must be at least 1 second, not 0.02: .*there is missed=.skip."),
        ({"catch_up": timedelta(0)}, "catch_up must be at least 1 second, not 0"),
        ({"catch_up": "1h"}, "catch_up must be seconds or a timedelta, not '1h'"),
        ({"pause_after": 0}, "pause_after must be an integer from 1 to 1,000, or None, not 0"),
        ({"pause_after": True}, "pause_after must be an integer from 1 to 1,000, or None, not True"),
        ({"name": ""}, "name must be a text of 1 to 200 characters, without NUL and lone surrogates, not ''"),
        ({"timezone": "Europe/Graz"}, "Europe/Graz"),
        ({"missed": "all", "overlap": "skip"}, "makes several jobs at once"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_where_it_is_written(options: dict[str, Any], said: str) -> None:
    """In the constructor as in the registry."""
    with pytest.raises(OptionError, match=said.replace("(", "\\(")):
        Schedule("0 7 * * *", report, 3, **options)
    with pytest.raises(OptionError, match=said.replace("(", "\\(")):
        Registry().schedule("0 7 * * *", report, 3, **options)


def test_a_bad_rule_a_bad_job_and_bad_arguments_are_refused_where_they_are_written() -> None:
    """Before any SQL; also in an assignment."""
    for make in (Schedule, Registry().schedule):
        with pytest.raises(OptionError, match="61 7"):
            make("61 7 * * *", report, 3)
        with pytest.raises(PayloadError, match="valid integer"):
            make("0 7 * * *", report, "three")
        with pytest.raises(OptionError, match="takes a task or a call"):
            make("0 7 * * *", print)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=r"not 'shop.report': by name it is TaskName\('shop.report'\)"):
            make("0 7 * * *", "shop.report")  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="has its arguments already"):
            make("0 7 * * *", report.call(3), 4)
        with pytest.raises(OptionError, match="says when its jobs are due"):
            make("0 7 * * *", report.options(delay=3), 3)
        with pytest.raises(
            OptionError, match=r"cannot all have the same expiry, 2030.*as in \.options\(expires_in=3600\)"
        ):
            make("0 7 * * *", report.options(expires_at=datetime(2030, 1, 1, tzinfo=UTC)), 3)
        with pytest.raises(OptionError, match="cannot all have the same deadline"):
            make("0 7 * * *", report.options(deadline=datetime(2030, 1, 1, tzinfo=UTC)), 3)
        with pytest.raises(OptionError, match="deadline must be longer than its jitter, 60 s, and not 60 s"):
            make("0 7 * * *", report.options(deadline=MINUTE), 3, jitter=MINUTE)
    made = Schedule("0 7 * * *", report, 3)
    with pytest.raises(OptionError):
        made.expression = "every now and then"
    with pytest.raises(OptionError):
        made.timezone = "Europe/Graz"
    for value, said in ((0, "more than 0 seconds"), (-1, "between 0 seconds"), ("1h", "seconds or a timedelta")):
        with pytest.raises(OptionError, match=f"expires_in must be {said}"):
            made.expires_in = value  # type: ignore[assignment]
    assert (made.expression, made.timezone) == ("0 7 * * *", "UTC")


def test_two_schedules_of_one_name_are_refused(engine: Engine) -> None:
    """In the registry at once, in the table by its constraint."""
    mine = Registry()
    mine.schedule("0 7 * * *", report, 3)
    with pytest.raises(OptionError, match="another schedule is called 'report'"):
        mine.schedule("0 8 * * *", report, 4)
    mine.schedule("0 8 * * *", report, 4, name="another")
    assert list(mine.schedules) == ["report", "another"]
    add(engine, Schedule("0 7 * * *", report, 3))
    with pytest.raises(IntegrityError, match="schedule_name_key"):
        add(engine, Schedule("0 8 * * *", report, 4))


# ---- ticks


@pytest.mark.parametrize("key", ["name", "timezone"])
@pytest.mark.parametrize("text", ["\0", "report \ud800"], ids=["NUL", "surrogate"])
def test_a_text_that_the_database_cannot_hold_is_refused_where_it_is_written(key: str, text: str) -> None:
    """In the flush it would fail with all that the flush holds."""
    with pytest.raises(OptionError, match=f"a schedule's {key} must be a text of .* without NUL and lone surrogates"):
        Schedule(every(60), report, 1, **{key: text})  # type: ignore[arg-type]


def test_the_reason_of_a_pause_may_be_any_text(engine: Engine) -> None:
    """As that of a discard: what the database cannot hold is replaced."""
    add(engine, Schedule(every(60), report, 1, name="paused"))
    with engine.begin() as connection:
        connection.execute(pause_schedules(Schedule.name == "paused", reason="\0no\ud800 provider"))
    assert schedule_of(engine, "paused").pause_reason == "\ufffdno\ufffd provider"


def test_jitter_makes_the_job_due_later_than_its_tick(engine: Engine) -> None:
    add(engine, Schedule(every(MINUTE), report, 3, jitter=60))
    tick(engine)
    turn_back(engine, timedelta(minutes=1, seconds=1))
    tick(engine)
    (job,) = jobs(engine)
    assert job.run_at == job.tick_at + timedelta(seconds=30)


def test_the_limits_of_a_task_are_those_of_its_jobs(engine: Engine) -> None:
    """Counted from the enqueueing, however late the tick is; by a worker, and by an operator's `run`."""
    limited = report.options(expires_in=MINUTE, deadline=HOUR)
    add(engine, Schedule(every(3600), limited, 3, name="limited"), Schedule(every(3600), report, 4, name="other"))
    tick(engine)
    turn_back(engine, 3 * HOUR)
    assert tick(engine).enqueued == 2
    with engine.begin() as connection:
        connection.execute(run_schedules(Schedule.name == "limited"))
    late, other, by_hand = jobs(engine)
    for job in (late, by_hand):
        assert (job.expires_at, job.deadline_at) == (job.created_at + MINUTE, job.created_at + HOUR)
    assert (other.expires_at, other.deadline_at) == (None, None)


def test_a_unique_task_keeps_its_jobs_unique(engine: Engine) -> None:
    """A tick whose job would be a duplicate makes one, as any enqueueing does."""
    add(engine, Schedule(every(MINUTE), report.options(unique=Unique(by=("tenant",))), 3))
    tick(engine)
    for _ in range(2):
        turn_back(engine, MINUTE)
        tick(engine)
    assert [job.status for job in jobs(engine)] == ["queued", "cancelled"]


def test_a_tick_whose_unique_key_is_taken_and_raises_is_set_aside(engine: Engine) -> None:
    """The error concerns its row alone; the worker's chore goes on with the others."""
    add(engine, Schedule(every(MINUTE), report.options(unique=Unique("k", on_clash="raise")), 3))
    tick(engine)
    turn_back(engine, MINUTE)
    tick(engine)
    turn_back(engine, MINUTE)
    with pytest.raises(DBAPIError, match="is held by job"):
        tick(engine)


OVERLAPS = {"allow": 2, "skip": 1, "queue_one": 1, "cancel_running": 2}


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("live", ["queued", "running", "ended"])
def test_what_becomes_of_a_tick_while_a_job_is_not_finished(engine: Engine, overlap: Any, live: str) -> None:
    """Only a live job of the same schedule counts."""
    add(engine, Schedule(every(MINUTE), report, 3, overlap=overlap), Schedule(every(HOUR), report, 4, name="other"))
    tick(engine)
    turn_back(engine, MINUTE)
    assert tick(engine).enqueued == 1
    if live == "running":
        start_all(engine)
    elif live == "ended":
        end_all(engine)
    turn_back(engine, MINUTE)
    tick(engine)
    made = jobs(engine)
    assert len(made) == (2 if live == "ended" else OVERLAPS[overlap])
    row = schedule_of(engine, "report")
    if live == "ended" or overlap == "allow":
        assert (row.left_out, row.waiting_since, made[0].cancel_requested_at) == (0, None, None)
    elif overlap == "skip":
        assert (row.left_out, row.waiting_since) == (1, None)
    elif overlap == "queue_one":
        assert row.left_out == 0
        assert row.waiting_since is not None
    else:
        assert made[0].cancel_requested_at is not None
        assert made[0].status == ("running" if live == "running" else "cancelled")
        assert (made[1].status, made[1].cancel_requested_at) == ("queued", None)


@pytest.mark.parametrize("missed", ["once", "skip"])
def test_one_job_is_queued_for_all_ticks_that_came_while_another_ran(engine: Engine, missed: Any) -> None:
    """When that has ended, whatever is done about missed ticks: these were not."""
    add(engine, Schedule(every(MINUTE), report, 3, overlap="queue_one", missed=missed))
    tick(engine)
    turn_back(engine, MINUTE)
    tick(engine)
    for _ in range(3):
        turn_back(engine, MINUTE)
        tick(engine)
    assert len(jobs(engine)) == 1
    end_all(engine)
    turn_back(engine, timedelta(seconds=1))
    tick(engine)
    first, second = jobs(engine)
    assert (first.ticks, second.ticks) == (1, 3)
    assert schedule_of(engine, "report").waiting_since is None


def test_a_schedule_whose_jobs_fail_is_paused(engine: Engine) -> None:
    """When `pause_after` jobs in a row have failed. After an operator has resumed it, the count begins again."""
    add(engine, Schedule(every(MINUTE), report, 3, pause_after=2))
    tick(engine)
    for status in ("failed", "completed", "failed", "failed"):
        turn_back(engine, MINUTE)
        assert tick(engine).enqueued == 1
        end_all(engine, status)
    turn_back(engine, MINUTE)
    ticked = tick(engine)
    assert (ticked.enqueued, ticked.paused) == (0, [("report", 2)])
    row = schedule_of(engine, "report")
    assert (row.paused_by, row.pause_reason) == ("failures", "its last 2 jobs have failed")
    assert row.paused_at is not None
    turn_back(engine, HOUR)
    assert tick(engine).ids == []
    with Session(engine) as session:
        session.scalars(select(Schedule)).one().paused_at = None
        session.commit()
    tick(engine)
    row = schedule_of(engine, "report")
    assert (row.paused_by, row.pause_reason) == (None, None)
    turn_back(engine, MINUTE)
    assert tick(engine).enqueued == 1


def test_ticks_of_a_pause_are_not_made_up_for(engine: Engine) -> None:
    """An operator's pause means that no job is wanted."""
    add(engine, Schedule(every(MINUTE), report, 3, missed="all"))
    tick(engine)
    with engine.begin() as connection:
        connection.execute(update(SCHEDULE).values(paused_at=text("now()")))
    turn_back(engine, 3 * MINUTE)
    with engine.begin() as connection:
        connection.execute(update(SCHEDULE).values(paused_at=None))
    assert tick(engine).enqueued == 0
    assert jobs(engine) == []


def test_a_changed_rule_counts_from_the_change(engine: Engine) -> None:
    """By plain SQL too. A change of arguments alone does not touch the next tick."""
    add(engine, Schedule(every(HOUR), report, 3))
    tick(engine)
    before = schedule_of(engine, "report").next_at
    with engine.begin() as connection:
        connection.execute(update(SCHEDULE).values(args={"tenant": 4}))
    assert schedule_of(engine, "report").next_at == before
    with engine.begin() as connection:
        connection.execute(update(SCHEDULE).values(expression=every(MINUTE).expression))
    tick(engine)
    after = schedule_of(engine, "report")
    assert after.next_at == after.counts_from + MINUTE


BAD = {
    "a rule that is none": {"expression": "every now and then"},
    "a zone that is none": {"timezone": "Europe/Graz", "expression": "0 7 * * *"},
    "a next tick that no datetime holds": {"next_at": text("'0044-03-15 BC'")},
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_row_is_skipped_and_shown_and_in_no_others_way(engine: Engine, bad: str) -> None:
    """It is said once. When it is mended, it goes on."""
    add(engine, *(Schedule(every(MINUTE), report, n, name=str(n)) for n in range(3)))
    tick(engine)
    turn_back(engine, MINUTE)
    with engine.begin() as connection:
        connection.execute(update(SCHEDULE).where(SCHEDULE.c.name == "1").values(**BAD[bad]))
        connection.execute(update(SCHEDULE).values(due_at=text("now()")))
    ticked = tick(engine)
    assert ticked.enqueued == 2
    ((name, reason),) = ticked.bad
    assert name == "1"
    assert error_of(engine, "1") == reason
    assert tick(engine).ids == []
    turn_back(engine, MINUTE)
    assert tick(engine).bad == []
    with engine.begin() as connection:
        connection.execute(
            update(SCHEDULE).values(
                expression=every(HOUR).expression, timezone="UTC", next_at=None, due_at=text("now()")
            )
        )
    assert tick(engine).bad == []
    assert error_of(engine, "1") is None


def test_rows_that_another_transaction_has_locked_are_left(engine: Engine) -> None:
    """Only the worker that has locked a schedule enqueues its ticks."""
    add(engine, Schedule(every(MINUTE), report, 1, name="a"), Schedule(every(MINUTE), report, 2, name="b"))
    tick(engine)
    turn_back(engine, MINUTE)
    with engine.begin() as connection:
        connection.execute(select(SCHEDULE.c.id).where(SCHEDULE.c.name == "a").with_for_update())
        assert tick(engine).enqueued == 1
    assert tick(engine).enqueued == 1
    assert len(jobs(engine)) == 2


def test_threads_that_tick_at_once_make_each_tick_once(engine: Engine) -> None:
    """In real transactions on several connections."""
    add(engine, *(Schedule(every(MINUTE), report, n, name=str(n), missed="all") for n in range(40)))
    tick(engine)
    turn_back(engine, 5 * MINUTE)
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(20):
            with engine.begin() as connection:
                default_store.enqueue_due(connection, Ticked(), limit=7, random=lambda: 0.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    made = [(job.schedule_id, job.tick_at) for job in jobs(engine)]
    assert len(made) == len(set(made)) == 40 * 5


def test_the_next_look_is_told_by_the_databases_clock(engine: Engine) -> None:
    with engine.connect() as connection:
        assert default_store.next_look(connection) is None
    add(engine, Schedule(every(HOUR), report, 3))
    with engine.connect() as connection:
        assert default_store.next_look(connection) <= 0  # type: ignore[operator]
    tick(engine)
    with engine.connect() as connection:
        assert 3_500 < default_store.next_look(connection) <= 3_600  # type: ignore[operator]
        connection.execute(update(SCHEDULE).values(paused_at=text("now()")))
        assert default_store.next_look(connection) is None


# ---- what code declares


GONE = timedelta(minutes=5)


def release(*schedules: tuple[Any, ...], **options: Any) -> Registry:
    """An application's registry that declares these: rule, tenant, and perhaps a name."""
    made = Registry()
    for rule, tenant, *name in schedules:
        made.schedule(rule, report, tenant, name=name[0] if name else None, **options)
    return made


def deploy(engine: Engine, app: Registry) -> Declaring:
    """What a worker of this release does when it begins."""
    with engine.begin() as connection:
        definitions = {name: definition_of(one) for name, one in app.schedules.items()}
        return default_store.declare(connection, definitions, gone=GONE)


def undeclare(engine: Engine) -> list[str]:
    with engine.begin() as connection:
        return default_store.pause_undeclared(connection, after=GONE)


def leave_alone(engine: Engine, by: timedelta) -> None:
    """As if the workers that declare them had left some time ago."""
    with engine.begin() as connection:
        connection.execute(update(SCHEDULE).values(declared_at=SCHEDULE.c.declared_at - by))


def test_a_deploy_changes_what_it_declares(engine: Engine) -> None:
    """The rule counts from the deploy; the same release once more changes nothing."""
    one, two = release(("0 7 * * *", 3)), release(("0 8 * * *", 4), missed="skip")
    assert deploy(engine, one).made == ["report"]
    assert deploy(engine, one) == Declaring()
    tick(engine)
    before = schedule_of(engine, "report")
    assert deploy(engine, two).changed == ["report"]
    after = schedule_of(engine, "report")
    assert (after.id, after.expression, after.args, after.missed) == (before.id, "0 8 * * *", {"tenant": 4}, "skip")
    assert after.next_at is None
    assert after.counts_from > before.counts_from


def test_a_deploy_of_other_arguments_leaves_the_next_tick(engine: Engine) -> None:
    deploy(engine, release(("0 7 * * *", 3)))
    tick(engine)
    before = schedule_of(engine, "report").next_at
    deploy(engine, release(("0 7 * * *", 4)))
    after = schedule_of(engine, "report")
    assert (after.next_at, after.args) == (before, {"tenant": 4})


def test_a_deploy_adds_changes_and_takes_away_the_limits_of_jobs(engine: Engine) -> None:
    """Also of a schedule that was declared by a release which knew no such limits; the others of that release stay as they are."""
    plain, limited = release(("0 7 * * *", 3)), Registry()
    limited.schedule("0 7 * * *", report.options(expires_in=MINUTE, deadline=HOUR), 3)
    deploy(engine, plain)
    with engine.begin() as connection:
        connection.execute(text("UPDATE sa_jobqueue.schedule SET declared = declared - 'expires_in' - 'deadline'"))
    assert deploy(engine, plain) == Declaring()
    assert deploy(engine, limited).changed == ["report"]
    row = schedule_of(engine, "report")
    assert (row.expires_in, row.deadline) == (60.0, 3_600.0)
    leave_alone(engine, GONE)
    assert deploy(engine, plain).changed == ["report"]
    row = schedule_of(engine, "report")
    assert (row.expires_in, row.deadline) == (None, None)


def test_what_a_definition_leaves_open_is_not_in_its_digest() -> None:
    """So rows keep their digests when a release brings a column that they do not use."""
    values, digest = definition_of(Schedule("0 7 * * *", report, 3))
    assert {name for name, value in values.items() if value is None} >= {"catch_up", "expires_in", "deadline"}
    said = json.dumps(
        {name: value for name, value in values.items() if value is not None}, sort_keys=True, separators=(",", ":")
    )
    assert digest == hashlib.sha256(said.encode()).hexdigest()[:24]
    assert definition_of(Schedule("0 7 * * *", report.options(deadline=60), 3)).digest != digest


def test_a_deploy_leaves_an_operators_pause_and_edits(engine: Engine) -> None:
    """What was not edited follows the code; what was edited does again when it is set back to what the code says."""
    deploy(engine, release(("0 7 * * *", 3)))
    with engine.begin() as connection:
        connection.execute(
            update(SCHEDULE).values(
                paused_at=text("now()"), paused_by="operator", pause_reason="audit", expression="0 6 * * *"
            )
        )
    deploy(engine, release(("0 8 * * *", 4)))
    row = schedule_of(engine, "report")
    assert (row.expression, row.args, row.paused_by, row.pause_reason) == (
        "0 6 * * *",
        {"tenant": 4},
        "operator",
        "audit",
    )
    with engine.begin() as connection:
        connection.execute(update(SCHEDULE).values(expression="0 8 * * *"))
    deploy(engine, release(("0 9 * * *", 4)))
    row = schedule_of(engine, "report")
    assert (row.expression, row.paused_by) == ("0 9 * * *", "operator")


def test_an_older_worker_does_not_bring_back_a_definition_that_was_replaced(engine: Engine) -> None:
    """It starts again while a deployment rolls. After a rollback, when no worker has the newer definition any more, it does."""
    old, new = release(("0 7 * * *", 3)), release(("0 8 * * *", 3))
    deploy(engine, old)
    deploy(engine, new)
    assert deploy(engine, old).superseded == ["report"]
    assert schedule_of(engine, "report").expression == "0 8 * * *"
    leave_alone(engine, GONE)
    assert deploy(engine, old).changed == ["report"]
    assert schedule_of(engine, "report").expression == "0 7 * * *"
    assert deploy(engine, new).superseded == ["report"]


def test_what_no_code_declares_any_more_is_paused_and_goes_on_when_code_declares_it_again(engine: Engine) -> None:
    """Not what was made at run time, nor what other applications declare, whose workers say so. Ticks meanwhile are missed ones."""
    deploy(engine, release(("* * * * *", 3), ("* * * * *", 3, "removed")))
    deploy(engine, release(("* * * * *", 3, "of another application")))
    add(engine, Schedule("* * * * *", report, 3, name="at run time"))
    tick(engine)
    assert undeclare(engine) == []
    leave_alone(engine, 2 * GONE)
    deploy(engine, release(("* * * * *", 3)))
    deploy(engine, release(("* * * * *", 3, "of another application")))
    assert undeclare(engine) == ["removed"]
    removed = schedule_of(engine, "removed")
    assert (removed.paused_by, removed.pause_reason) == ("undeclared", "no worker's code declares it any more")
    assert deploy(engine, release(("* * * * *", 3, "removed"))).resumed == ["removed"]
    again = schedule_of(engine, "removed")
    assert (again.paused_at, again.paused_by, again.next_at) == (None, None, removed.next_at)


def test_a_living_worker_keeps_its_declarations(engine: Engine) -> None:
    """It says again what it declares."""
    app = release(("* * * * *", 3))
    deploy(engine, app)
    leave_alone(engine, GONE - timedelta(seconds=1))
    deploy(engine, app)
    leave_alone(engine, timedelta(seconds=2))
    assert undeclare(engine) == []


def test_a_name_of_a_schedule_that_was_made_at_run_time_is_left(engine: Engine) -> None:
    add(engine, Schedule("0 7 * * *", report, 3))
    assert deploy(engine, release(("0 8 * * *", 4))).taken == ["report"]
    row = schedule_of(engine, "report")
    assert (row.expression, row.declared_at) == ("0 7 * * *", None)


def test_a_definition_is_not_written_while_its_row_is_locked(engine: Engine) -> None:
    """A worker that declares waits for none; it comes again."""
    deploy(engine, release(("0 7 * * *", 3)))
    with engine.begin() as connection:
        connection.execute(select(SCHEDULE.c.id).with_for_update())
        assert deploy(engine, release(("0 8 * * *", 3))).locked == ["report"]
    assert deploy(engine, release(("0 8 * * *", 3))).changed == ["report"]


def test_two_workers_that_declare_in_other_orders_do_not_deadlock(engine: Engine) -> None:
    """Two releases begin at once. A third transaction holds the name in the middle until both of them wait."""
    one = release(("0 7 * * *", 3, "a"), ("0 7 * * *", 3, "m"), ("0 7 * * *", 3, "z"))
    other = release(("0 7 * * *", 3, "z"), ("0 7 * * *", 3, "m"), ("0 7 * * *", 3, "a"))
    results: list[Declaring] = []
    threads = [threading.Thread(target=lambda app=app: results.append(deploy(engine, app))) for app in (one, other)]
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with Session(engine) as session:
        session.add(Schedule("0 7 * * *", report, 3, name="m"))
        session.flush()
        for thread in threads:
            thread.start()
        with engine.connect() as watching:
            autocommit = watching.execution_options(isolation_level="AUTOCOMMIT")
            wait_until(lambda: autocommit.scalar(waiting) == 2)
        session.rollback()
    for thread in threads:
        thread.join()
    assert sorted(name for result in results for name in result.made) == ["a", "m", "z"]


@pytest.mark.parametrize("declared", ["5", "[]", "null"])
def test_a_row_whose_declaration_is_nonsense_holds_up_no_other(engine: Engine, declared: str) -> None:
    """What it says counts as edited."""
    deploy(engine, release(("0 7 * * *", 3)))
    with engine.begin() as connection:
        connection.execute(text("UPDATE sa_jobqueue.schedule SET declared = CAST(:said AS jsonb)"), {"said": declared})
    result = deploy(engine, release(("0 8 * * *", 3), ("0 8 * * *", 3, "other")))
    assert (result.changed, result.made) == (["report"], ["other"])
    assert schedule_of(engine, "report").expression == "0 7 * * *"


def test_schedules_are_paused_and_go_on_while_another_is_locked(engine: Engine) -> None:
    """What code declares no more, and declares again. The one that is locked comes the next time."""
    app = release(("* * * * *", 3, "locked"), ("* * * * *", 3, "free"))
    deploy(engine, app)
    leave_alone(engine, 2 * GONE)
    lock = select(SCHEDULE.c.id).where(SCHEDULE.c.name == "locked").with_for_update()
    with engine.begin() as connection:
        connection.execute(lock)
        assert undeclare(engine) == ["free"]
    assert undeclare(engine) == ["locked"]
    with engine.begin() as connection:
        connection.execute(lock)
        assert deploy(engine, app).resumed == ["free"]
    assert deploy(engine, app).resumed == ["locked"]


def test_a_task_that_a_reload_declares_again_may_declare_its_schedule_again() -> None:
    """As when a module is loaded once more."""
    app = Registry()

    def load() -> None:
        @task(registry=app, name="reloaded")
        def reloaded() -> None: ...

        app.schedule("0 7 * * *", reloaded)

    load()
    load()
    assert list(app.schedules) == ["reloaded"]
