"""Arguments and meta that are too long to come with the claim are fetched job by job, and hold up no other job."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, Registry, enqueue, task
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.worker.claiming import intake
from sa_jobqueue.worker.claiming.claimer import Claimer, Exchange
from tests.support.factory import unfolding
from tests.support.waiting import wait_until
from tests.support.working import add, assert_nothing_leaked, drain, finished, job_of, working


def test_a_job_that_is_deleted_before_its_large_arguments_came_is_not_run(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours run."""
    ran: list[str] = []

    @task(registry=registry, name="large")
    async def large(text: str) -> None:
        ran.append(text[:4])

    def delete_first(_: Connection, id: int) -> None:
        if id == gone:
            with engine.begin() as other:
                other.execute(delete(Job).where(Job.id == id))

    before_each_fetch(monkeypatch, delete_first)
    gone, kept = add(engine, *(enqueue("large", text=name + "a" * 100_000) for name in ("gone", "kept")))
    drain(engine, registry)
    assert job_of(engine, kept).status == "completed"
    assert ran == ["kept"]


def before_each_fetch(monkeypatch: pytest.MonkeyPatch, do: Any) -> None:
    """`do(connection, id)` before the arguments of a job are fetched."""
    own = default_store.fetch_args

    def fetch_args(connection: Connection, id: int, **options: Any) -> Any:
        do(connection, id)
        return own(connection, id, **options)

    monkeypatch.setattr(default_store, "fetch_args", fetch_args)


def large(name: str) -> Job:
    """Its arguments do not come with the claim."""
    return enqueue("runs", name=name, text="a" * 100_000)


def test_a_job_runs_as_soon_as_its_large_arguments_are_there(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First what came with the claim, then each as it comes, while the next one's are on their way."""
    ran: list[str] = []

    @task(registry=registry, name="runs")
    def runs(name: str, text: str) -> None:
        ran.append(name)

    before: list[list[str]] = []

    def wait_for_those_before(*_: Any) -> None:
        wait_until(lambda: len(ran) > len(before))
        before.append(list(ran))

    before_each_fetch(monkeypatch, wait_for_those_before)
    add(engine, large("first"), large("second"), enqueue("runs", name="small", text=""))
    drain(engine, registry, lease=60)
    assert before == [["small"], ["small", "first"]]
    assert ran == ["small", "first", "second"]


@pytest.mark.parametrize(("limit", "most"), [(1_000, 64 * 2**20), (4 * 2**20, 256 * 2**20), (268_435_455, 2**30)])
def test_all_that_may_be_enqueued_is_fetched(
    engine: Engine, url: str, monkeypatch: pytest.MonkeyPatch, limit: int, most: int
) -> None:
    """A registry may accept more than usual; and a float of 6 characters comes back with 309 digits."""
    registry = Registry(max_payload=limit)
    asked: list[int] = []

    @task(registry=registry, name="runs")
    async def runs(name: str, text: str) -> None: ...

    own = default_store.fetch_args

    def fetch_args(*args: Any, most: int, **options: Any) -> Any:
        asked.append(most)
        return own(*args, most=most, **options)

    monkeypatch.setattr(default_store, "fetch_args", fetch_args)
    (id,) = add(engine, large("a"))
    drain(engine, registry)
    assert asked == [most]
    assert job_of(engine, id).status == "completed"


def test_what_cannot_be_fetched_in_time_goes_back(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one lease runs out, no attempt is spent, and with every claim there is one job less, however slow the network."""
    late = 0.0

    @task(registry=registry, name="runs")
    async def runs(name: str, text: str) -> None: ...

    def be_slow(*_: Any) -> None:
        nonlocal late
        late += 20

    before_each_fetch(monkeypatch, be_slow)
    own = intake.monotonic
    monkeypatch.setattr(intake, "monotonic", lambda: own() + late)
    ids = add(engine, *map(large, "abc"), enqueue("runs", name="small", text=""))
    worker = drain(engine, registry, lease=60)
    jobs = [job_of(engine, id) for id in ids]
    assert [(job.status, job.attempt, job.rescues) for job in jobs] == [("completed", 1, 0)] * 4
    assert [job.claims for job in jobs] == [1, 2, 3, 1]
    assert worker.counts["released"] == 3


@pytest.mark.parametrize("state", ["57014", "53200"])
def test_a_fetch_that_takes_too_much_holds_up_no_other_job(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, state: str
) -> None:  # fmt: skip
    """Perhaps it is the server's fault: the job goes back for a while, and its neighbours run meanwhile."""
    failed: list[int] = []

    @task(registry=registry, name="runs")
    async def runs(name: str, text: str) -> None: ...

    def fail_once(connection: Connection, id: int) -> None:
        if not failed:
            failed.append(id)
            connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'too much' USING ERRCODE = '{state}'; END $$"))

    before_each_fetch(monkeypatch, fail_once)
    monkeypatch.setattr(intake, "_LATER", 0.2)
    ids = add(engine, *map(large, "abc"))
    with working(engine, registry, lease=60) as worker:
        wait_until(lambda: finished(engine, *ids))
        assert_nothing_leaked(engine, worker)
    assert [(job_of(engine, id).attempt, job_of(engine, id).claims) for id in ids] == [(1, 2), (1, 1), (1, 1)]
    assert f"job {failed[0]} goes back" in caplog.text
    assert "the database does not answer" not in caplog.text


def test_a_claim_that_fails_by_a_row_is_tried_again_without_arguments(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; the one after it brings them along again."""
    asked: list[bool] = []

    @task(registry=registry, name="runs")
    async def runs(name: str, text: str) -> None: ...

    own = Claimer._request

    def request(self: Claimer, exchange: Exchange) -> ClaimRequest:
        asked.append((made := own(self, exchange)).inline)
        return made

    monkeypatch.setattr(Claimer, "_request", request)
    bad, good = add(engine, *map(large, "ab"))
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE sa_jobqueue.job SET args = {unfolding(9_000)} WHERE id = {bad}"))
    drain(engine, registry, lease=60)
    assert asked.count(False) == 1
    assert asked[0]
    assert asked[-1]
    with Session(engine) as session:
        status, errors = session.execute(select(Job.status, Job.errors).where(Job.id == bad)).one()
    assert (status, errors[0]["type"]) == ("failed", "sa_jobqueue.errors.PayloadError")
    assert job_of(engine, good).status == "completed"


def test_an_unreadable_job_of_an_unknown_task_is_kept(engine: Engine, url: str, registry: Registry) -> None:
    """Another release may know the task."""
    (id,) = add(engine, large("a"))
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE sa_jobqueue.job SET args = {unfolding(9_000)} WHERE id = {id}"))
    worker = drain(engine, registry, lease=60)
    assert worker.counts["unknown"] == 1
    with Session(engine) as session:
        assert session.execute(select(Job.status, Job.attempt, Job.errors)).one() == ("queued", 0, [])
