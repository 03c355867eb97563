"""Workers that share a queue, a transaction with the application, a database with its tables."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, TaskName, enqueue, enqueue_many
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.statements import retry_jobs
from tests.acceptance import app
from tests.acceptance.conftest import APP, Shop
from tests.support.commands import run_command
from tests.support.nightly import nightly
from tests.support.waiting import wait_until


@pytest.mark.parametrize("number", [1_000, *nightly(5_000)])
def test_two_processes_share_thousands_of_jobs_and_run_none_twice(shop: Shop, number: int) -> None:
    """Every job is started once and has its effect once; both processes took part."""
    writing, others = (app.write, app.write_async), (app.nothing, app.nothing_async)
    calls = [writing[n % 2].call(str(n)) if n % 10 < 4 else others[n % 2].call(n) for n in range(number)]
    counted = text("SELECT status, attempt, rescues, count(*) FROM sa_jobqueue.job GROUP BY 1, 2, 3")
    with shop.work("--queue=default=20") as first, shop.work("--queue=default=20") as second:
        shop.execute(enqueue_many(calls))
        wait_until(lambda: shop.execute(counted) == [("completed", 1, 0, number)], 120)
        for worker in (first, second):
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0
    effects = shop.effects()
    assert len({effect.job_id for effect in effects}) == len(effects) == number * 4 // 10
    assert len({effect.pid for effect in effects}) == 2


def test_a_business_row_and_its_job_commit_together_or_not_at_all(shop: Shop) -> None:
    """What is rolled back has never been enqueued."""
    with shop.work_here():
        with Session(shop.engine) as session:
            session.add_all([app.Effect(job_id=0, pid=0, note="order 1"), enqueue(app.write, "receipt 1")])
            session.flush()
            session.rollback()
            session.add_all([app.Effect(job_id=0, pid=0, note="order 2"), enqueue(app.write, "receipt 2")])
            session.commit()
        shop.wait_for()
    assert sorted(effect.note for effect in shop.effects()) == ["order 2", "receipt 2"]
    assert len(shop.jobs()) == 1


def test_what_a_failing_handler_wrote_is_rolled_back(shop: Shop) -> None:
    """Each of its attempts is kept in `errors`, and none of its writes."""
    (job_id,) = shop.add(enqueue(app.write_and_fail, "never"))
    with shop.work_here():
        (job,) = shop.wait_for(job_id, status=JobStatus.FAILED)
    assert [(error["attempt"], error["type"], error["message"]) for error in job.errors] == [
        (1, "ValueError", "after the write"),
        (2, "ValueError", "after the write"),
    ]
    assert shop.effects() == []


def test_a_task_is_renamed_while_both_releases_run(shop: Shop) -> None:
    """By its alias the new release runs the old jobs; the old one gives back, unharmed, what it does not know yet."""
    with shop.work(app="tests.acceptance.app:old_release") as old:
        (unknown,) = shop.add(enqueue(TaskName("acceptance.deliver"), note="1"))
        old.wait_for("no task named 'acceptance.deliver'")
        (returned,) = shop.wait_for(unknown, status=JobStatus.QUEUED)
        assert (returned.attempt, returned.is_scheduled) == (0, True)
        shop.wait_for(*shop.add(enqueue(TaskName("acceptance.send"), note="2")))
    late = shop.add(enqueue(TaskName("acceptance.send"), note="3"))
    with shop.work_here(app.new_release):
        shop.execute(retry_jobs(Job.id == unknown))
        shop.wait_for(*late, unknown)
    assert sorted(effect.note for effect in shop.effects()) == ["new 1", "new 3", "old 2"]


@pytest.mark.parametrize("options", [(), *nightly(("--processes=2",))], ids=["one", "two"])
@pytest.mark.usefixtures("measured")
def test_everything_works_in_another_schema_and_the_applications_tables_stay(
    shop: Shop, options: tuple[str, ...]
) -> None:
    """Enqueued, claimed, completed and listed in `jobs`; the handler's writes are where they always are."""
    upgrade_database(shop.url, schema="jobs")
    shop.execute(text("DROP SCHEMA sa_jobqueue CASCADE"))
    engine = create_engine(shop.url, execution_options={"schema_translate_map": {"sa_jobqueue": "jobs"}})
    there = Shop(shop.url, engine, shop.folder, schema="jobs")
    ids = there.add(
        *(enqueue(task, name) for task, name in ((app.write, "a"), (app.write_async, "d"), (app.held, "b"))),
        enqueue(app.write_and_fail, "c"),
    )
    with there.work(*options) as worker:
        there.wait_said("started-b")
        there.go("b")
        there.wait_for(*ids[:3])
        there.wait_for(ids[3], status=JobStatus.FAILED)
        assert {row.note for row in there.effects()} == {"a", "b", "d"}
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    assert inspect(engine).get_table_names("public") == ["effect"]
    engine.dispose()


@pytest.mark.usefixtures("measured")
def test_drain_ends_when_nothing_is_due(shop: Shop) -> None:
    """`--drain` runs what is due and leaves the rest for later."""
    due = shop.add(*(enqueue(app.write, str(n)) for n in range(50)))
    (later,) = shop.add(enqueue(app.write.options(delay=3_600), "later"))
    result = run_command(
        "work",
        f"--app={APP}",
        "--drain",
        "--log-format=json",
        url=shop.url,
        env={"ACCEPTANCE_FOLDER": str(shop.folder)},
    )
    assert result.returncode == 0, result.stderr
    assert Counter(job.status for job in shop.jobs(Job.id.in_(due))) == {JobStatus.COMPLETED: 50}
    assert shop.job(later).status == JobStatus.QUEUED
