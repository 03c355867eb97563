"""Schedules through a worker: each tick in time, what code declares, and no cost where there is no schedule."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, create_engine, func, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import AsyncJobContext, Job, JobContext, Registry, Schedule, enqueue, every, task
from sa_jobqueue.sql.waking import SCHEDULES_CHANGED
from sa_jobqueue.statements import cancel_jobs
from sa_jobqueue.worker.connections.service import Connector
from sa_jobqueue.worker.maintenance import schedules
from sa_jobqueue.worker.maintenance.chore import Turn
from sa_jobqueue.worker.maintenance.schedules import EnqueueTicks
from tests.support import pooler
from tests.support.waiting import wait_until
from tests.support.working import drain, services_of, working

SCHEDULE = Schedule.__table__
#: The logger of the worker's part that looks after schedules.
SAYS = schedules.__name__


def add(engine: Engine, *schedules: Schedule) -> None:
    with Session(engine) as session:
        session.add_all(schedules)
        session.commit()


def schedule_of(engine: Engine, name: str) -> Schedule | None:
    with Session(engine) as session:
        return session.scalars(select(Schedule).where(Schedule.name == name)).one_or_none()


def jobs(engine: Engine, *where: Any) -> Sequence[Job]:
    with Session(engine) as session:
        return session.scalars(select(Job).where(*where).order_by(Job.tick_at)).all()


@pytest.mark.parametrize(("said", "year"), [("infinity", 9999), ("-infinity", 2)])
def test_a_tick_at_no_time_is_shown_as_the_nearest(
    engine: Engine, url: str, registry: Registry, said: str, year: int
) -> None:
    """Plain SQL can write it. As `ctx.enqueued_at` does with such a time."""
    seen: list[datetime | None] = []

    @task(registry=registry, name="looks")
    def looks(ctx: JobContext) -> None:
        seen.append(ctx.tick_at)

    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO sa_jobqueue.job (task, tick_at, ticks) VALUES ('looks', CAST(:said AS timestamptz), 1)"),
            {"said": said},
        )
    drain(url, registry)
    assert seen == [datetime(year, 1, 1, tzinfo=UTC)]


@pytest.mark.parametrize("listen", [True, False])
def test_a_schedule_made_at_run_time_is_ticked_and_its_handlers_know_the_tick(
    engine: Engine, url: str, registry: Registry, listen: bool
) -> None:
    """Sync and async. Where the worker listens, it hears of the schedule at once."""
    seen: dict[str, tuple[datetime | None, int | None]] = {}

    @task(registry=registry, name="sync")
    def sync(ctx: JobContext, tenant: int) -> None:
        seen["sync"] = ctx.tick_at, ctx.ticks

    @task(registry=registry, name="async")
    async def on_loop(ctx: AsyncJobContext, tenant: int) -> None:
        seen["async"] = ctx.tick_at, ctx.ticks

    with working(url, registry, listen=listen, lease=3.0) as worker:
        wait_until(lambda: worker.state().listening == listen)
        add(engine, Schedule(every(1), sync, 3), Schedule(every(1), on_loop, 4))
        wait_until(lambda: len(seen) == 2)
    made = {(job.tick_at, job.ticks) for job in jobs(engine)}
    assert set(seen.values()) <= made
    assert all(at is not None and at.tzinfo == UTC for at, _ in seen.values())


def test_a_job_of_no_schedule_has_no_tick(engine: Engine, url: str, registry: Registry) -> None:
    seen: list[Any] = []

    @task(registry=registry, name="plain")
    def plain(ctx: JobContext) -> None:
        seen.append((ctx.tick_at, ctx.ticks))

    with working(url, registry):
        with Session(engine) as session:
            session.add(enqueue(plain))
            session.commit()
        wait_until(lambda: seen)
    assert seen == [(None, None)]


def test_ticks_are_enqueued_in_time(engine: Engine, url: str, registry: Registry) -> None:
    """Within 50 ms on an idle machine, by the database's clock; a worker sleeps until the next tick, and not for an interval."""

    @task(registry=registry, name="often")
    def often() -> None: ...

    add(engine, Schedule(every(1), often))
    with working(url, registry, lease=60.0):
        wait_until(lambda: len(jobs(engine)) >= 9)
    late = [(job.created_at - job.tick_at).total_seconds() for job in jobs(engine) if job.tick_at][2:]
    assert min(late) >= 0
    assert median(late) < 0.5


def test_what_code_declares_is_there_when_a_worker_has_begun(engine: Engine, url: str, registry: Registry) -> None:
    @task(registry=registry, name="report", queue="reports")
    def report(tenant: int) -> None: ...

    registry.schedule("0 7 * * mon-fri", report, 3, timezone="Europe/Vienna", overlap="skip")
    registry.schedule("30 2 * * *", report.call(tenant=4), name="nightly")
    with working(url, registry):
        wait_until(lambda: (row := schedule_of(engine, "nightly")) and row.next_at)
        daily = wait_until(lambda: (row := schedule_of(engine, "report")) and row.next_at and row)
    assert (daily.expression, daily.timezone, daily.queue, daily.args) == (
        "0 7 * * mon-fri", "Europe/Vienna", "reports", {"tenant": 3},
    )  # fmt: skip
    assert daily.declared_at is not None


def test_a_row_that_cannot_be_written_holds_up_no_other(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """A trigger of the application's refuses its job: the batch fails, and then each schedule is ticked by itself."""

    @task(registry=registry, name="counted")
    def counted(n: int) -> None: ...

    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
                "$$BEGIN RAISE check_violation USING MESSAGE = 'not this one'; END$$"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER refuse BEFORE INSERT ON sa_jobqueue.job FOR EACH ROW WHEN (NEW.args ->> 'n' = '3') "
                "EXECUTE FUNCTION public.refuse()"
            )
        )
    try:
        add(engine, *(Schedule(every(1), counted, n, name=f"schedule {n}") for n in range(6)))
        with working(url, registry, lease=3.0):
            wait_until(lambda: len({job.schedule_id for job in jobs(engine)}) == 5)
            refused = wait_until(lambda: (row := schedule_of(engine, "schedule 3")) and row.error and row)
            assert "not this one" in refused.error
            wait_until(lambda: len(jobs(engine)) > 12)
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP TRIGGER refuse ON sa_jobqueue.job"))
    assert [line for line in caplog.messages if "not this one" in line] == [
        f"schedule 'schedule 3': its job cannot be enqueued: {' '.join(refused.error.split())}"
    ]


def test_a_worker_without_schedules_asks_for_none(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chore is not due at all: the statement that says that it is alive returns that there is none."""
    with working(url, registry, lease=3.0) as worker:
        ticks = services_of(worker).ticks
        looked = []
        hear = ticks.hear
        monkeypatch.setattr(
            services_of(worker).maintenance._presence, "_next_look", lambda one: (looked.append(one), hear(one))
        )
        wait_until(lambda: looked)
        assert looked == [None] * len(looked)
        assert ticks.at == float("inf")


def test_a_cancel_makes_no_worker_look_at_the_schedules_nor_a_schedule_at_cancels(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are told on one channel. A queue may have the name by which a change of a schedule is told."""
    pooler.skip_where_deaf(url)

    @task(registry=registry, name="plain", queue=SCHEDULES_CHANGED)
    def plain(ctx: JobContext) -> None:
        wait_until(lambda: ctx.cancelled)

    with working(url, registry, queues={SCHEDULES_CHANGED: 1}) as worker:
        wait_until(lambda: worker.state().listening)
        services = services_of(worker)
        told: list[str] = []
        for chore, name in ((services.ticks, "schedule"), (services.cancels, "cancel")):
            monkeypatch.setattr(
                chore, "announce", lambda of=name, announce=chore.announce: (told.append(of), announce())
            )
        with Session(engine) as session:
            session.add(job := enqueue(plain))
            session.commit()
            wait_until(lambda: worker.state().started)
            told.clear()  # of the enqueueing in a queue of that name
            session.execute(cancel_jobs(Job.id == job.id))
            session.commit()
        wait_until(lambda: worker.state().ended)
        assert told == ["cancel"]
        add(engine, Schedule(every(3600), plain))
        wait_until(lambda: len(told) > 1)
        assert told == ["cancel", "schedule"]


def look(url: str, registry: Registry, *, seconds: float = 60.0) -> None:
    """One look of a worker at the schedules, which should take this number of seconds at most."""
    connector = connector_of(url)
    look_again(EnqueueTicks(connector, registry), connector, seconds=seconds)


def connector_of(url: str) -> Connector:
    return Connector(create_engine(url, poolclass=NullPool), 60.0)


def look_again(ticks: EnqueueTicks, connector: Connector, *, seconds: float = 60.0) -> None:
    connection = connector.connect()
    try:
        ticks.do(connection, Turn(monotonic() + seconds, threading.Event()))
    finally:
        connection.close()


def declaring(seconds: int, *names: str) -> Registry:
    """Code that declares schedules of these names, with this interval."""
    registry = Registry()

    @task(registry=registry, name="counted")
    def counted(n: int) -> None: ...

    for name in names:
        registry.schedule(every(seconds), counted, 1, name=name)
    return registry


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says, since the last call, of schedules."""
    found = [record.getMessage() for record in caplog.records if record.name == SAYS]
    caplog.clear()
    return found


def test_the_log_says_what_becomes_of_what_code_declares(
    engine: Engine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """When it is new, changed, or not in use: because a newer release has replaced it, or the name is taken."""
    caplog.set_level("INFO", SAYS)
    look(url, declaring(60, "a"))
    assert said(caplog) == ["schedule 'a' is new"]
    look(url, declaring(90, "a"))
    assert said(caplog) == ["schedule 'a' is changed to what the code declares"]
    look(url, declaring(90, "a"))
    assert said(caplog) == []
    look(url, declaring(60, "a"))
    assert said(caplog) == ["schedule 'a' has a newer definition than this worker's code declares, which is left"]

    later = declaring(60, "b")
    add(engine, Schedule(every(60), later.get("counted"), 1, name="b"))
    look(url, later)
    (line,) = said(caplog)
    assert line == "schedule 'b' was made at run time; the code that declares it must give another name"


def test_a_schedule_is_paused_when_workers_had_the_time_to_declare_it_and_none_did(
    engine: Engine, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five minutes in which they could write. It goes on when code declares it again."""
    look(url, declaring(60, "a"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE sa_jobqueue.schedule SET declared_at = now() - interval '6 minutes'"))
    now = monotonic()
    monkeypatch.setattr(schedules, "monotonic", lambda: now)
    connector = connector_of(url)
    other = EnqueueTicks(connector, Registry())
    look_again(other, connector)
    for seconds in (61, 61, 61, 61, 600, 61, 61, 61, 61):  # an outage of ten minutes, in which no worker could
        now += seconds
        look_again(other, connector)
        assert (row := schedule_of(engine, "a")) is not None
        assert row.paused_at is None
    caplog.clear()
    now += 61
    look_again(other, connector)
    assert said(caplog) == ["schedule 'a' is paused: no code declares it any more"]

    caplog.set_level("INFO", SAYS)
    look(url, declaring(60, "a"))
    assert said(caplog) == ["schedule 'a' goes on: code declares it again"]


def test_schedules_that_cannot_be_used_or_whose_jobs_fail_are_named(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, and with the reason; others are ticked."""

    @task(registry=registry, name="counted")
    def counted(n: int) -> None: ...

    due = text("UPDATE sa_jobqueue.schedule SET next_at = now(), due_at = now()")
    add(engine, *(Schedule(every(60), counted, n, name=str(n), pause_after=1) for n in range(3)))
    look(url, registry)
    with engine.begin() as connection:
        connection.execute(due)
    look(url, registry)
    assert len(jobs(engine)) == 3
    with engine.begin() as connection:
        connection.execute(
            update(Job).where(Job.args["n"].as_integer() == 1).values(status="failed", finished_at=func.now())
        )
        connection.execute(update(SCHEDULE).where(SCHEDULE.c.name == "2").values(expression="every now and then"))
        connection.execute(due)
    for _ in range(2):
        look(url, registry)
    found = said(caplog)
    assert len(found) == 2
    assert found[0].startswith("schedule '2' cannot be used, and is skipped until it is mended: ")
    assert "every now and then" in found[0]
    assert found[1] == "schedule '1' is paused: its last 1 jobs have failed"
    assert sorted(job.args["n"] for job in jobs(engine)) == [0, 0, 1, 2]


def test_a_declaration_that_is_refused_holds_up_no_tick(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """As by a role that may not write schedules, or by a trigger of the application's. It is said."""

    @task(registry=registry, name="counted")
    def counted(n: int) -> None: ...

    add(engine, Schedule(every(1), counted, 1, name="at run time"))
    look(url, registry)
    with engine.begin() as connection:
        connection.execute(text("UPDATE sa_jobqueue.schedule SET next_at = now(), due_at = now()"))
        connection.execute(
            text(
                "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
                "$$BEGIN RAISE insufficient_privilege USING MESSAGE = 'not for you'; END$$"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER refuse BEFORE INSERT ON sa_jobqueue.schedule FOR EACH ROW EXECUTE FUNCTION public.refuse()"
            )
        )
    try:
        registry.schedule(every(60), counted, 2, name="in code")
        look(url, registry)
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP TRIGGER refuse ON sa_jobqueue.schedule"))
    assert [job.args for job in jobs(engine)] == [{"n": 1}]
    refusal = next(line for line in caplog.messages if "not for you" in line)
    assert refusal.startswith("the schedules that this worker's code declares cannot be written down: not for you")
    assert "`sa-jobqueue grants --role ROLE --can schedule`" in refusal


def test_locked_jobs_of_many_schedules_do_not_use_up_the_turn_of_other_chores(
    engine: Engine, url: str, registry: Registry
) -> None:
    """Leases are to be renewed meanwhile. The schedules that had no turn stay due, and come first the next time."""

    @task(registry=registry, name="counted")
    def counted(n: int) -> None: ...

    add(engine, *(Schedule(every(1), counted, n, name=str(n), overlap="cancel_running") for n in range(3)))
    due = text("UPDATE sa_jobqueue.schedule SET next_at = now(), due_at = now()")
    look(url, registry)
    with engine.begin() as connection:
        connection.execute(due)
    look(url, registry)
    assert len(jobs(engine)) == 3
    with engine.begin() as connection:
        connection.execute(due)
    with engine.begin() as connection:
        connection.execute(select(Job.id).with_for_update())
        for turn in range(3):
            look(url, registry, seconds=0.0)
            with Session(engine) as session:
                tried = session.scalars(select(Schedule.error).where(Schedule.error.is_not(None))).all()
            assert len(tried) == turn + 1
