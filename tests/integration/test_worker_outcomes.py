"""What comes of a job: each outcome, returned and raised, with what the handler wrote through `ctx.session`."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import (
    AsyncJobContext,
    Cancel,
    Discard,
    Job,
    JobContext,
    JobStatus,
    RateLimited,
    Registry,
    Retry,
    RetryPolicy,
    Snooze,
    enqueue,
    task,
)
from tests.support.nightly import crossed
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, drain, job_of, working

OUTCOMES: dict[str, tuple[Any, JobStatus]] = {
    "retry": (lambda: Retry(after=3600, reason="later"), JobStatus.QUEUED),
    "snooze": (lambda: Snooze(timedelta(hours=1)), JobStatus.QUEUED),
    "rate limited": (lambda: RateLimited(3_600), JobStatus.QUEUED),
    "cancel": (lambda: Cancel("not wanted"), JobStatus.CANCELLED),
    "discard": (lambda: Discard("hopeless"), JobStatus.FAILED),
}


@pytest.fixture
def notes(engine: Engine) -> Engine:
    """The application's own table."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE note (said text)"))
    return engine


def written(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT said FROM note ORDER BY said")))


def note(name: str) -> Any:
    return text("INSERT INTO note VALUES (:said)").bindparams(said=name)


@pytest.mark.parametrize(("kind", "way", "name"), crossed(["sync", "async"], ["returned", "raised"], OUTCOMES))
def test_a_returned_outcome_keeps_the_writes_and_a_raised_one_does_not(
    notes: Engine, url: str, registry: Registry, name: str, way: str, kind: str
) -> None:
    """Whichever outcome, whichever kind of handler: returned commits what `ctx.session` wrote, raised rolls it back."""
    make, status = OUTCOMES[name]

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext) -> object:
        ctx.session.execute(note(name))
        if way == "raised":
            raise make()
        return make()

    @task(registry=registry, name="async handler")
    async def async_handler(ctx: AsyncJobContext) -> object:
        await ctx.session.execute(note(name))
        if way == "raised":
            raise make()
        return make()

    id = add_one(notes, enqueue(handler if kind == "sync" else async_handler))
    drain(url, registry)
    job = job_of(notes, id)
    assert job.status == status
    assert written(notes) == ([name] if way == "returned" else [])
    assert job.attempt == (0 if name in ("snooze", "rate limited") else 1)
    if status is JobStatus.QUEUED:
        assert timedelta(minutes=59) < job.run_at - job.created_at < timedelta(minutes=61)
    if name not in ("snooze", "rate limited"):
        assert job.errors[0]["message"] in ("later", "not wanted", "hopeless")


@pytest.mark.parametrize(("kind", "outcome"), crossed(["sync", "async"], [Retry, Snooze, RateLimited, Cancel, Discard]))
def test_the_class_of_an_outcome_is_a_mistake(
    notes: Engine, url: str, registry: Registry, outcome: type, kind: str
) -> None:
    """`return Snooze`, the parentheses forgotten, does not complete the job: the attempt fails, its writes are gone."""

    @task(registry=registry, name="sync", max_attempts=1, record=True)
    def handler(ctx: JobContext) -> object:
        ctx.session.execute(note("lost"))
        return outcome

    @task(registry=registry, name="async", max_attempts=1)
    async def async_handler(ctx: AsyncJobContext) -> object:
        await ctx.session.execute(note("lost"))
        return outcome

    id = add_one(notes, enqueue(handler if kind == "sync" else async_handler))
    drain(url, registry)
    job = job_of(notes, id)
    name = outcome.__name__
    assert job.status == JobStatus.FAILED
    assert job.errors[0]["type"] == "TypeError"
    assert job.errors[0]["message"] == f"the handler returned the class {name}: write {name}(...)"
    assert written(notes) == []


async def _coroutine() -> None: ...


def _generator() -> Iterator[None]:
    yield


async def _async_generator() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("body", "what"),
    [(_coroutine, "coroutine"), (_generator, "generator"), (_async_generator, "async_generator")],
    ids=["coroutine", "generator", "async generator"],
)
def test_a_handler_whose_decorator_does_not_run_it_is_a_mistake(
    notes: Engine, url: str, registry: Registry, body: Callable[[], Any], what: str
) -> None:
    """The body behind the decorator has not begun: the job is not completed, and Python has nothing to warn of."""

    @functools.wraps(body)
    def decorated() -> Any:
        return body()

    id = add_one(notes, enqueue(task(registry=registry, name="decorated", max_attempts=1)(decorated)))
    drain(url, registry)
    job = job_of(notes, id)
    assert job.status == JobStatus.FAILED
    assert job.errors[0]["message"].startswith(f"the handler returned a {what}, and nothing runs it")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_writes_commit_together_with_the_completion(notes: Engine, url: str, registry: Registry, kind: str) -> None:
    """A plain return completes the job in the very transaction of the handler's writes."""

    @task(registry=registry, name="sync")
    def handler(ctx: JobContext) -> None:
        ctx.session.execute(note("done"))

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(note("done"))

    id = add_one(notes, enqueue(handler if kind == "sync" else async_handler))
    drain(url, registry)
    with notes.connect() as connection:
        same = connection.scalar(
            text("SELECT count(*) FROM note, sa_jobqueue.job WHERE note.xmin = job.xmin AND job.id = :id"), {"id": id}
        )
    assert same == 1
    assert job_of(notes, id).status == JobStatus.COMPLETED


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_the_commit_refuses_fails_the_attempt(notes: Engine, url: str, registry: Registry, kind: str) -> None:
    """A deferred constraint speaks only at the COMMIT, after the completion was written: neither of them stays."""
    with notes.begin() as connection:
        connection.execute(text("ALTER TABLE note ADD UNIQUE (said) DEFERRABLE INITIALLY DEFERRED"))

    @task(registry=registry, name="sync", max_attempts=1)
    def handler(ctx: JobContext, said: str) -> None:
        ctx.session.execute(note(said))

    @task(registry=registry, name="async", max_attempts=1)
    async def async_handler(ctx: AsyncJobContext, said: str) -> None:
        await ctx.session.execute(note(said))

    chosen = handler if kind == "sync" else async_handler
    first, second, other = (add_one(notes, enqueue(chosen, said)) for said in ("once", "once", "other"))
    drain(url, registry, queues={"default": 1})
    assert written(notes) == ["once", "other"]
    assert job_of(notes, first).status == job_of(notes, other).status == JobStatus.COMPLETED
    refused = job_of(notes, second)
    assert refused.status == JobStatus.FAILED
    assert refused.errors[0]["type"] == "sqlalchemy.exc.IntegrityError"
    assert "already exists" in refused.errors[0]["message"]


def test_after_commit_is_heard_just_before_the_real_commit(notes: Engine, url: str, registry: Registry) -> None:
    """The session's own commit is inside the worker's transaction: docs/howto/sessions.md says so."""
    heard: list[list[str]] = []

    class Listened(Session):
        """A session class with a listener."""

    event.listen(Listened, "after_commit", lambda session: heard.append(written(notes)))

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext) -> None:
        ctx.session.execute(note("done"))

    id = add_one(notes, enqueue(handler))
    drain(notes, registry, sessionmaker=sessionmaker(notes, class_=Listened))
    assert heard == [[]]
    assert written(notes) == ["done"]
    assert job_of(notes, id).status == JobStatus.COMPLETED


def test_a_handlers_commit_publishes_nothing_early(notes: Engine, url: str, registry: Registry) -> None:
    """A failure after `ctx.session.commit()` takes the writes back."""
    seen: list[list[str]] = []

    @task(registry=registry, name="handler", max_attempts=1)
    def handler(ctx: JobContext) -> None:
        ctx.session.execute(note("early"))
        ctx.session.commit()
        seen.append(written(notes))
        raise RuntimeError("too bad")

    id = add_one(notes, enqueue(handler))
    drain(url, registry)
    assert seen == [[]]
    assert written(notes) == []
    assert job_of(notes, id).status == JobStatus.FAILED


def commit(session: Session) -> None:
    session.commit()


def rollback(session: Session) -> None:
    session.rollback()


def block(session: Session) -> None:
    """A transaction that the handler begins by itself."""
    session.commit()
    with session.begin():
        session.execute(note("in a block"))


def failed_block(session: Session) -> None:
    session.commit()
    with suppress(LookupError), session.begin():
        session.execute(note("lost"))
        raise LookupError


def refused(session: Session) -> None:
    """A statement that the database refuses, undone by a savepoint."""
    with suppress(DBAPIError), session.begin_nested():
        session.execute(text("SELECT 1 / 0"))


#: What a handler does one after the other, and what of it stays when it returns.
STEPS: dict[str, tuple[list[Any], list[str]]] = {
    "committed, then rolled back": (["a", commit, "b", rollback], ["a"]),
    "and again": (["a", commit, "b", commit, "c", rollback, "d", rollback, "e"], ["a", "b", "e"]),
    "rolled back, then written": (["a", rollback, "b"], ["b"]),
    "rolled back, committed, rolled back": (["a", rollback, "b", commit, "c", rollback], ["b"]),
    "all rolled back": (["a", rollback], []),
    "rolled back twice": (["a", rollback, rollback, "b", rollback], []),
    "a block": (["a", block, "b"], ["a", "b", "in a block"]),
    "a block that failed": (["a", failed_block, "b"], ["a", "b"]),
    "refused in a savepoint": (["a", refused, "b", rollback, "c", refused], ["c"]),
    "only committed": ([commit], []),
}


@pytest.mark.parametrize(("ending", "steps"), crossed(["returns", "raises", "returns async", "raises async"], STEPS))
def test_a_handlers_commits_and_rollbacks_mean_what_they_say_within_the_job(
    notes: Engine, url: str, registry: Registry, steps: str, ending: str
) -> None:
    """Whatever it commits is safe from its later rollbacks, and public only with the completion."""
    does, stays = STEPS[steps]

    def go(session: Session) -> None:
        for step in does:
            if callable(step):
                step(session)
            else:
                session.execute(note(step))
            with notes.connect() as outside:
                assert outside.scalar(text("SELECT count(*) FROM note")) == 0
        if ending.startswith("raises"):
            raise Discard("after all")

    @task(registry=registry, name="sync")
    def handler(ctx: JobContext) -> None:
        go(ctx.session)

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        await ctx.session.run_sync(go)

    id = add_one(notes, enqueue(async_handler if ending.endswith("async") else handler))
    drain(url, registry)

    kept = ending.startswith("returns")
    assert written(notes) == (stays if kept else [])
    assert job_of(notes, id).status == (JobStatus.COMPLETED if kept else JobStatus.FAILED)


def test_a_handlers_rollback_takes_back_its_own_writes_only(notes: Engine, url: str, registry: Registry) -> None:
    """A handler may roll back and go on, as in any session."""

    @task(registry=registry, name="handler")
    def handler(ctx: JobContext) -> None:
        ctx.session.execute(note("first"))
        ctx.session.rollback()
        ctx.session.execute(note("second"))

    id = add_one(notes, enqueue(handler))
    drain(url, registry)
    assert written(notes) == ["second"]
    assert job_of(notes, id).status == JobStatus.COMPLETED


def test_jobs_enqueued_in_the_session_of_a_failing_handler_are_not_there(
    notes: Engine, url: str, registry: Registry
) -> None:
    """Further jobs are atomic with the completion."""
    ran: list[str] = []

    @task(registry=registry, name="next")
    def following(of: str) -> None:
        ran.append(of)

    @task(registry=registry, name="handler", max_attempts=1)
    def handler(ctx: JobContext, fail: bool) -> None:
        ctx.session.add(enqueue(following, "bad" if fail else "good"))
        ctx.session.flush()
        if fail:
            raise RuntimeError

    add_one(notes, enqueue(handler, True))
    add_one(notes, enqueue(handler, False))
    drain(url, registry)
    assert ran == ["good"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_flush_that_fails_at_the_end_is_the_handlers_failure(
    notes: Engine, url: str, registry: Registry, kind: str
) -> None:
    """What was only added to the session is flushed before the completion; its error counts as an attempt."""

    @task(registry=registry, name="sync", max_attempts=1)
    def handler(ctx: JobContext) -> None:
        ctx.session.add(Job(task="x" * 201, queue="q", args={}, meta={}))

    @task(registry=registry, name="async", max_attempts=1)
    async def async_handler(ctx: AsyncJobContext) -> None:
        ctx.session.add(Job(task="x" * 201, queue="q", args={}, meta={}))

    id = add_one(notes, enqueue(handler if kind == "sync" else async_handler))
    drain(url, registry)
    job = job_of(notes, id)
    assert job.status == JobStatus.FAILED
    assert "job_task_check" in job.errors[0]["message"]


def test_an_exception_is_retried_until_the_attempts_are_spent(notes: Engine, url: str, registry: Registry) -> None:
    """Every failed attempt is kept, with time, attempt, type, message and the handler's part of the traceback."""

    @task(registry=registry, name="handler", max_attempts=3, retry=RetryPolicy(base=0))
    def handler(n: int) -> None:
        raise LookupError(f"no {n}\x00")

    id = add_one(notes, enqueue(handler, 7))
    drain(url, registry)
    job = job_of(notes, id)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 3)
    assert [(e["attempt"], e["type"], e["message"]) for e in job.errors] == [
        (n, "LookupError", "no 7\ufffd") for n in (1, 2, 3)
    ]
    assert "in handler" in job.errors[0]["traceback"]
    assert "executor.py" not in job.errors[0]["traceback"]


def test_no_retry_ends_at_once(notes: Engine, url: str, registry: Registry) -> None:
    """Exceptions named in `no_retry` are final."""

    @task(registry=registry, name="handler", retry=RetryPolicy(no_retry=(ValueError,)))
    def handler() -> None:
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "a ValueError, too")

    id = add_one(notes, enqueue(handler))
    drain(url, registry)
    assert (job_of(notes, id).status, job_of(notes, id).attempt) == (JobStatus.FAILED, 1)


def test_a_result_is_recorded_where_the_task_says_so(notes: Engine, url: str, registry: Registry) -> None:
    """`record=True` keeps the return value; one that cannot be stored does not lose the job, and is said."""

    @task(registry=registry, name="good", record=True)
    def good() -> dict[str, int]:
        return {"sum": 3}

    @task(registry=registry, name="bad", record=True)
    def bad() -> float:
        return float("nan")

    kept, lost = add_one(notes, enqueue(good)), add_one(notes, enqueue(bad))
    drain(url, registry)
    assert job_of(notes, kept).result == {"sum": 3}
    assert good.result(job_of(notes, kept)) == {"sum": 3}
    job = job_of(notes, lost)
    assert (job.status, job.result) == (JobStatus.COMPLETED, None)
    assert "result" in job.errors[0]["message"]


def test_retain_zero_deletes_the_row_on_completion(notes: Engine, url: str, registry: Registry) -> None:
    """And a failed job is kept all the same."""

    @task(registry=registry, name="handler", retain=0, max_attempts=1)
    def handler(fail: bool) -> None:
        if fail:
            raise RuntimeError

    add_one(notes, enqueue(handler, False))
    id = add_one(notes, enqueue(handler, True))
    drain(url, registry)
    with Session(notes) as session:
        left = session.query(Job).all()
    assert [(job.id, job.status) for job in left] == [(id, JobStatus.FAILED)]


@pytest.mark.parametrize("kind", ["sync", "async", "commits"])
def test_retain_zero_keeps_a_row_that_the_application_needs_together_with_the_writes(
    notes: Engine, url: str, registry: Registry, kind: str
) -> None:
    """`ctx.session` and the completion are one transaction: a foreign key refuses the deletion alone."""
    with notes.begin() as connection:
        connection.execute(text("CREATE TABLE invoice (job_id bigint REFERENCES sa_jobqueue.job)"))

    @task(registry=registry, name="sync", retain=0)
    def handler(ctx: JobContext, said: str) -> None:
        ctx.session.execute(note(said))

    @task(registry=registry, name="async", retain=0)
    async def async_handler(ctx: AsyncJobContext, said: str) -> None:
        await ctx.session.execute(note(said))

    @task(registry=registry, name="commits", retain=0)
    def handler_that_commits(ctx: JobContext, said: str) -> None:
        ctx.session.execute(note(said))
        ctx.session.commit()
        ctx.session.execute(note("more"))

    chosen = {"sync": handler, "async": async_handler, "commits": handler_that_commits}[kind]
    needed, _ = (add_one(notes, enqueue(chosen, said)) for said in ("needed", "free"))
    with notes.begin() as connection:
        connection.execute(text("INSERT INTO invoice VALUES (:id)"), {"id": needed})
    drain(url, registry)
    with Session(notes) as session:
        (kept,) = session.query(Job).all()
    assert (kept.id, kept.status, kept.attempt, kept.errors) == (needed, JobStatus.COMPLETED, 1, [])
    assert kept.finished_at is not None
    assert kept.purge_at == kept.finished_at + timedelta(days=1)
    assert written(notes) == sorted(["needed", "free", *["more", "more"] * (kind == "commits")])


def test_retain_zero_commits_the_writes_if_the_row_cannot_be_deleted_in_time(
    notes: Engine, url: str, registry: Registry
) -> None:
    """As long as the `lock_timeout` of the handler's connection says; pruning tries again a minute later."""
    with notes.begin() as connection:
        connection.execute(text("CREATE TABLE email (job_id bigint REFERENCES sa_jobqueue.job ON DELETE SET NULL)"))

    @task(registry=registry, name="handler", retain=0)
    def handler(ctx: JobContext) -> None:
        ctx.session.execute(text("SET LOCAL lock_timeout = '50ms'"))
        ctx.session.execute(note("done"))

    id = add_one(notes, enqueue(handler))
    with notes.begin() as connection:
        connection.execute(text("INSERT INTO email VALUES (:id)"), {"id": id})
    with notes.begin() as connection:
        connection.execute(text("SELECT FROM email FOR UPDATE"))
        drain(url, registry)
    kept = job_of(notes, id)
    assert (kept.status, kept.attempt, kept.errors) == (JobStatus.COMPLETED, 1, [])
    assert kept.finished_at is not None
    assert kept.purge_at == kept.finished_at + timedelta(minutes=1)
    assert written(notes) == ["done"]


def test_stored_arguments_that_do_not_fit_fail_the_job_and_can_be_retried(
    notes: Engine, url: str, registry: Registry
) -> None:
    """Undecodable is failed, with the reason; after a fix an operator retries it. Rows of any shape are survived."""
    from sa_jobqueue.statements import retry_jobs

    @task(registry=registry, name="handler")
    def handler(n: int) -> None: ...

    with notes.begin() as connection:
        for args in ('{"n": "seven"}', "[1]", "null", "17"):
            connection.execute(
                text("INSERT INTO sa_jobqueue.job (task, args) VALUES ('handler', CAST(:a AS jsonb))"), {"a": args}
            )
    drain(url, registry)
    with Session(notes) as session:
        jobs = session.query(Job).order_by(Job.id).all()
        ids = [job.id for job in jobs]
        assert {job.status for job in jobs} == {JobStatus.FAILED}
        assert "argument n" in jobs[0].errors[0]["message"]
        session.execute(text("UPDATE sa_jobqueue.job SET args = '{\"n\": 7}'"))
        session.execute(retry_jobs(Job.status == JobStatus.FAILED))
        session.commit()
    drain(url, registry)
    assert {job_of(notes, id).status for id in ids} == {JobStatus.COMPLETED}


def test_an_unknown_task_goes_back_and_no_attempt_is_spent(
    notes: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """During a rolling deploy another worker may know it."""
    id = add_one(notes, enqueue("of.the.next.release", n=1))
    with caplog.at_level(logging.WARNING):
        worker = drain(url, registry)
    job = job_of(notes, id)
    assert (job.status, job.attempt, job.errors) == (JobStatus.QUEUED, 0, [])
    assert job.run_at - job.created_at > timedelta(seconds=50)
    assert worker.counts["unknown"] == 1
    assert "of.the.next.release" in caplog.text


def test_jobs_of_an_unknown_task_are_sent_away_for_ever_longer(
    notes: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """Else they would keep the worker busy for ever. The log says it once, and a worker that knows the task takes them when they are due."""
    add(notes, *(enqueue("of.the.next.release", n=n) for n in range(30)))
    away = select(func.count()).where(Job.run_at > func.now() + timedelta(seconds=0.5))
    with (
        caplog.at_level(logging.WARNING),
        working(url, registry, unknown_delay=0.05) as worker,
        Session(notes) as session,
    ):
        wait_until(lambda: (session.rollback(), session.scalar(away))[1] == 30)
        claims = worker.counts["unknown"]
    assert claims < 30 * 20
    assert caplog.text.count("no task named 'of.the.next.release'") == 1
    ran: list[int] = []

    @task(registry=registry, name="of.the.next.release")
    def handler(n: int) -> None:
        ran.append(n)

    with working(url, registry):
        wait_until(lambda: len(ran) == 30)


def test_an_alias_runs_the_renamed_handler(notes: Engine, url: str, registry: Registry) -> None:
    """Rows that bear the old name are served."""
    ran: list[int] = []

    @task(registry=registry, name="new.name", aliases=["old.name"])
    def handler(n: int) -> None:
        ran.append(n)

    add_one(notes, enqueue("old.name", n=5))
    drain(url, registry)
    assert ran == [5]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_context_shows_the_job(notes: Engine, url: str, registry: Registry, kind: str) -> None:
    """id, attempt, limits, meta, times, and a logger with the job's fields."""
    seen: dict[str, Any] = {}

    def look(ctx: Any) -> None:
        seen.update(
            job_id=ctx.job_id, attempt=ctx.attempt, max_attempts=ctx.max_attempts, meta=ctx.meta,
            queue=ctx.queue, task=ctx.task, enqueued_at=ctx.enqueued_at, cancelled=ctx.cancelled,
        )  # fmt: skip
        seen["logged"] = ctx.logger.process("x", {"extra": {"more": 1}})[1]["extra"]

    @task(registry=registry, name="sync")
    def handler(ctx: JobContext) -> None:
        look(ctx)

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        look(ctx)

    chosen = handler if kind == "sync" else async_handler
    id = add_one(notes, enqueue(chosen.options(meta={"trace": "abc"}, tags=["x"], max_attempts=7)))
    drain(url, registry)
    assert seen["logged"] == {"job_id": id, "task": kind, "queue": "default", "attempt": 1, "more": 1}
    assert seen["enqueued_at"] == job_of(notes, id).created_at
    assert (seen["job_id"], seen["attempt"], seen["max_attempts"]) == (id, 1, 7)
    assert seen["meta"] == {"trace": "abc", "tags": ["x"]}
    assert (seen["queue"], seen["task"], seen["cancelled"]) == ("default", kind, False)


@pytest.mark.parametrize("size", [70_000, 900_000])
def test_large_arguments_arrive(notes: Engine, url: str, registry: Registry, size: int) -> None:
    """Beyond the claim's limit they are fetched one by one."""
    import random

    sent = "".join(random.Random(1).choices("abcdefghij é", k=size))
    got: list[str] = []

    @task(registry=registry, name="handler")
    def handler(content: str) -> None:
        got.append(content)

    add_one(notes, enqueue(handler, sent))
    drain(url, registry)
    assert got == [sent]
