"""A worker counts what its jobs came to, and adds it to the table `stat`."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import Cancel, Discard, Job, JobContext, Registry, Snooze, TaskName, enqueue, task
from sa_jobqueue.rules.lifecycle import Event
from sa_jobqueue.sql.readings.stats import sum_stats
from sa_jobqueue.sql.store import Store
from sa_jobqueue.statements import cancel_jobs
from sa_jobqueue.worker.maintenance import notes as stats
from sa_jobqueue.worker.maintenance.presence import Presence
from sa_jobqueue.worker.services import Services
from sa_jobqueue.worker.tally import Tally
from tests.support.waiting import wait_until
from tests.support.working import add, drain, job_of, services_of, worker_for, working


def stat(engine: Engine) -> dict[str, Any]:
    """What the table says, by task."""
    with engine.connect() as connection:
        rows = connection.execute(sum_stats(since=timedelta(hours=1), by=("task",))).all()
    return {row.task: row for row in rows}


def outcomes(row: Any) -> dict[str, int]:
    names = ("completed", "retried", "failed", "cancelled", "snoozed", "released", "rescued", "lost")
    return {name: getattr(row, name) for name in names if getattr(row, name)}


def test_an_outcome_is_counted_before_its_worker_has_left(
    engine: Engine, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted even if the handler's thread, which has committed, is slow at that moment."""

    @task(registry=registry, name="counted")
    def counted(ctx: JobContext) -> None:
        ctx.session.execute(text("SELECT 1"))

    add(engine, enqueue(counted))
    worker, add_to, is_reporting = worker_for(engine, registry), Tally.add, Services.reporting
    is_asked = threading.Event()

    def slowly(tally: Tally, *args: Any) -> None:
        assert is_asked.wait(30)
        add_to(tally, *args)

    def reporting(services: Services) -> bool:
        is_asked.set()
        return is_reporting(services)

    monkeypatch.setattr(Tally, "add", slowly)
    monkeypatch.setattr(Services, "reporting", reporting)
    worker.run(until_idle=True)

    assert worker.counts["completed"] == 1
    assert stat(engine)["counted"].completed == 1


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_each_outcome_is_counted_for_its_task(engine: Engine, registry: Registry, kind: str) -> None:
    """In the worker and, when it has left, in the table; with one run and one wait for each start."""

    def act(what: str) -> Any:
        match what:
            case "fail":
                raise ValueError("no")
            case "snooze":
                return Snooze(3_600)
            case "cancel":
                return Cancel("not wanted")
            case "discard":
                return Discard("never")

    if kind == "def":

        @task(registry=registry, name="acts", max_attempts=2)
        def acts(what: str) -> Any:
            return act(what)
    else:

        @task(registry=registry, name="acts", max_attempts=2)
        async def acts(what: str) -> Any:
            return act(what)

    @task(registry=registry, name="writes")
    def writes(ctx: JobContext) -> None:
        ctx.session.execute(text("SELECT 1"))

    add(
        engine,
        *(enqueue(acts, what) for what in ("", "", "fail", "snooze", "cancel", "discard")),
        enqueue(acts.options(max_attempts=1), "fail"),
        enqueue(writes),
        enqueue(TaskName("nobody.knows").options(queue="default")),
    )

    worker = drain(engine, registry)

    expected = {"completed": 2, "retried": 1, "failed": 2, "cancelled": 1, "snoozed": 1}
    found = stat(engine)
    assert {name: outcomes(row) for name, row in found.items()} == {
        "acts": expected,
        "writes": {"completed": 1},
        "(unknown)": {"released": 1},
    }
    assert (sum(found["acts"].runs), sum(found["acts"].waits)) == (7, 7)
    assert found["acts"].run_seconds > 0
    assert 0 < found["acts"].wait_seconds < 60
    assert worker.counts == {**expected, "completed": 3, "released": 1, "unknown": 1}


def test_a_job_that_is_cancelled_as_it_fails_counts_as_cancelled(engine: Engine, registry: Registry) -> None:
    """The column decides what it becomes, and the database says so."""
    begun, go_on = threading.Event(), threading.Event()

    @task(registry=registry, name="fails")
    def fails() -> None:
        begun.set()
        go_on.wait(30)
        raise ValueError("no")

    (id,) = add(engine, enqueue(fails))
    with working(engine, registry, lease=60.0) as worker:
        begun.wait(30)
        # Not through a statement of ours, which would tell the worker, so that the run would know of it.
        with engine.begin() as connection:
            connection.execute(text("UPDATE sa_jobqueue.job SET cancel_requested_at = now()"))
        go_on.set()
        wait_until(lambda: job_of(engine, id).status == "cancelled")
        wait_until(lambda: worker.counts == {"cancelled": 1})
    assert outcomes(stat(engine)["fails"]) == {"cancelled": 1}


def test_jobs_that_are_ended_while_they_wait_are_counted(engine: Engine, registry: Registry) -> None:
    """Those past their expiry are cancelled, those past their deadline fail; an operator's cancel is not a worker's."""

    @task(registry=registry, name="waits")
    def waits() -> None: ...

    ids = add(
        engine,
        enqueue(waits.options(delay=3_600, expires_in=7_200)),
        enqueue(waits.options(delay=3_600, deadline=7_200)),
        enqueue(waits.options(delay=3_600)),
    )
    with engine.begin() as connection:
        past = "now() - interval '1 second'"
        connection.execute(text(f"UPDATE sa_jobqueue.job SET expires_at = {past} WHERE expires_at IS NOT NULL"))
        connection.execute(text(f"UPDATE sa_jobqueue.job SET deadline_at = {past} WHERE deadline_at IS NOT NULL"))
        connection.execute(cancel_jobs(Job.id == ids[2]))
    with working(engine, registry) as worker:
        for chore in services_of(worker).maintenance.chores:
            chore.at = 0.0
        services_of(worker).maintenance.wake()
        wait_until(lambda: sum(worker.counts.values()) == 2)
    assert outcomes(stat(engine)["waits"]) == {"cancelled": 1, "failed": 1}


def test_a_long_lived_worker_adds_what_it_counted_while_it_works(
    engine: Engine, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every few seconds, and what came later at its end; nothing twice."""
    monkeypatch.setattr(stats, "_STATS_EVERY", 0.2)

    @task(registry=registry, name="quick")
    def quick() -> None: ...

    add(engine, *(enqueue(quick) for _ in range(10)))
    with working(engine, registry) as worker:
        wait_until(lambda: "quick" in stat(engine) and stat(engine)["quick"].completed == 10)
        add(engine, *(enqueue(quick) for _ in range(5)))
        wait_until(lambda: worker.counts["completed"] == 15)
    assert stat(engine)["quick"].completed == 15


def test_a_worker_that_serves_again_goes_on_counting(
    engine: Engine, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its row was left in the table, as by an outage: the row has the number of the last batch."""
    monkeypatch.setattr(Presence, "leave", lambda self, connection: None)

    @task(registry=registry, name="quick")
    def quick() -> None: ...

    worker = worker_for(engine, registry)
    for jobs in (1, 2):
        add(engine, *(enqueue(quick) for _ in range(jobs)))
        asyncio.run(worker.serve(until_idle=True))
    assert worker.counts == {"completed": 3}
    assert stat(engine)["quick"].completed == 3


def test_a_worker_with_many_tasks_adds_them_in_parts(
    engine: Engine, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, while it works and when it leaves."""
    monkeypatch.setattr(stats, "_STATS_EVERY", 0.2)
    monkeypatch.setattr(stats, "_MOST", 2)

    def quick() -> None: ...

    tasks = [task(registry=registry, name=f"quick {number}")(quick) for number in range(5)]
    add(engine, *(enqueue(one) for one in tasks))
    with working(engine, registry) as worker:
        wait_until(
            lambda: {name: row.completed for name, row in stat(engine).items()} == {one.name: 1 for one in tasks}
        )
        add(engine, *(enqueue(one) for one in tasks))
        wait_until(lambda: worker.counts["completed"] == 10)
    assert {name: row.completed for name, row in stat(engine).items()} == {one.name: 2 for one in tasks}


def test_what_is_counted_meanwhile_is_written_the_next_time(
    engine: Engine, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is never idle writes every few seconds, and not without a pause."""
    monkeypatch.setattr(stats, "_STATS_EVERY", 0.1)
    written: list[float] = []
    add_stats = Store.add_stats

    def count() -> None:
        worker._tally.add_one("default", "quick", Event.RESCUE)

    def add_and_count(*args: Any, **options: Any) -> bool:
        written.append(monotonic())
        count()
        return add_stats(*args, **options)

    monkeypatch.setattr(Store, "add_stats", add_and_count)
    with working(engine, registry) as worker:
        count()
        wait_until(lambda: len(written) > 5)
        # Each pause is nine tenths of that at least; by the thread's own clock, which is a little ahead of this one.
        assert len(written) <= 2 + (monotonic() - written[0]) / 0.09


def test_a_worker_that_may_not_write_the_table_says_so_and_works(
    engine: Engine, registry: Registry, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The jobs are done; the log names the command that prints the right."""

    @task(registry=registry, name="quick")
    def quick() -> None: ...

    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE sa_jobqueue.stat RENAME TO elsewhere"))
    add(engine, enqueue(quick))
    worker = drain(engine, registry)
    assert worker.counts == {"completed": 1}
    assert "could not be added to the table stat" in caplog.text


def test_a_row_that_is_locked_for_a_moment_is_not_worth_a_line(
    engine: Engine, registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Other workers add to it, too. What was counted comes later; a lock that stays is said."""
    monkeypatch.setattr(stats, "_STATS_EVERY", 0.2)
    monkeypatch.setattr(stats, "_STATS_LOCKED", 0.05)
    tries: list[int] = []
    add_stats = Store.add_stats

    def counted(*args: Any, **options: Any) -> bool:
        tries.append(1)
        return add_stats(*args, **options)

    @task(registry=registry, name="quick")
    def quick() -> None: ...

    with working(engine, registry) as worker, engine.connect() as holder:
        holder.execute(text("LOCK sa_jobqueue.stat IN EXCLUSIVE MODE"))
        monkeypatch.setattr(Store, "add_stats", counted)
        add(engine, enqueue(quick))
        wait_until(lambda: len(tries) > 2)
        assert (worker.counts, caplog.text.count("table stat")) == ({"completed": 1}, 0)
        monkeypatch.setattr(stats, "_STATS_LOG_EVERY", 0.0)
        holder.rollback()
        wait_until(lambda: "quick" in stat(engine))
        holder.execute(text("LOCK sa_jobqueue.stat IN EXCLUSIVE MODE"))
        add(engine, enqueue(quick))
        wait_until(lambda: "cannot be added to the table stat, and is kept: canceling statement" in caplog.text)
        holder.rollback()
        wait_until(lambda: stat(engine)["quick"].completed == 2)


def test_a_worker_counts_the_backlog_at_the_end_of_a_minute(
    engine: Engine, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And comes again at the end of the next."""
    monkeypatch.setattr(stats, "_COUNT_AT", 0.0)

    @task(registry=registry, name="waits")
    def waits() -> None: ...

    add(engine, enqueue(waits.options(queue="nobody's")))

    def found() -> Any:
        with engine.connect() as connection:
            return connection.execute(text("SELECT queue, due FROM sa_jobqueue.backlog ORDER BY 1")).all()

    with working(engine, registry) as worker:
        (chore,) = [chore for chore in services_of(worker).maintenance.chores if isinstance(chore, stats.CountBacklog)]
        chore.at = 0.0
        services_of(worker).maintenance.wake()
        wait_until(lambda: found() == [("", 0), ("nobody's", 1)])
        assert 0 < chore.at <= monotonic() + 60 + stats._COUNT_SPREAD


def test_a_worker_says_how_it_is_in_its_row(engine: Engine, registry: Registry) -> None:
    """Its lease, the tasks it knows with their timeouts, its memory, the lag of its loop, and its version of the schema."""

    @task(registry=registry, name="quick", timeout=30, aliases=["fast"], queue="mail")
    def quick() -> None: ...

    with working(engine, registry, lease=3.0) as worker:

        def row() -> Any:
            with engine.connect() as connection:
                return connection.execute(text("SELECT * FROM sa_jobqueue.worker")).one_or_none()

        wait_until(lambda: row() is not None)
        found = row()
        assert (found.lease, found.schema_version, found.id) == (3.0, 1, worker.id)
        assert found.tasks == {"quick": {"queue": "mail", "timeout": 30.0, "aliases": ["fast"]}}
        assert found.memory > 10_000_000
        assert 0 <= found.loop_lag < 5
        assert found.pressure is None
        wait_until(lambda: sum(worker.state().claims))
        state = worker.state()
        assert (state.memory > 10_000_000, state.claim_seconds > 0) == (True, True)


def test_a_worker_that_leaves_waits_for_another_that_adds_to_the_same_rows(engine: Engine, registry: Registry) -> None:
    """Workers that are stopped together all do so at the same moment. What one of them counted is not lost by that."""

    @task(registry=registry, name="quick")
    def quick() -> None: ...

    add(engine, enqueue(quick))
    assert drain(engine, registry).counts == {"completed": 1}
    add(engine, enqueue(quick))
    released = threading.Event()
    with working(engine, registry) as worker:
        wait_until(lambda: worker.counts["completed"] == 1)
        holder = engine.connect()
        holder.execute(text("LOCK TABLE sa_jobqueue.stat IN SHARE ROW EXCLUSIVE MODE"))

        def release() -> None:
            first = wait_until(lambda: waits_since(engine))
            wait_until(lambda: waits_since(engine) not in (None, first))  # it tries again
            holder.rollback()
            released.set()

        threading.Thread(target=release, daemon=True).start()
    assert released.wait(30)
    holder.close()
    assert stat(engine)["quick"].completed == 2


def waits_since(engine: Engine) -> Any:
    """When the statement began that waits for the table."""
    with engine.connect() as connection:
        waiting = "relation = 'sa_jobqueue.stat'::regclass AND NOT granted"
        return connection.scalar(
            text(f"SELECT query_start FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE {waiting}")
        )
