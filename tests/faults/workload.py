"""A workload that keeps a record of itself, for `auditor` to check.

Handlers write what they do twice: through `ctx.session` (the table `audit.effect`), and outside it (a file for each
process, only appended to, each line on the disk before the handler goes on). A trigger, the observer, notes every change of
a job's state in `audit.history`, in the transaction that makes it.

    prepare(url)    # the tables of the audit; workers: sa-jobqueue work --app tests.faults.workload:registry
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, MetaData, create_engine, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    AsyncJobContext,
    Discard,
    Failed,
    Job,
    JobContext,
    Registry,
    RetryPolicy,
    Schedule,
    Signal,
    Snooze,
    Unique,
    enqueue,
    every,
    task,
)
from sa_jobqueue.tasks.tasks import AnyTask

FOLDER = "SA_FAULTS_FOLDER"
"""The environment variable that says where the handlers' files are."""

#: How often a job may fail, or lose its worker: more than any run of faults should cost it.
MAX_ATTEMPTS, MAX_RESCUES = 20, 12
DOOMED_ATTEMPTS = 2
#: Seconds that a handler takes at most; long enough that there is always one in the middle of something.
LONGEST = 0.4

registry = Registry()
_SOON = RetryPolicy(base=0.2, factor=1.5, cap=3.0, jitter=0.5)


class Base(DeclarativeBase):
    metadata = MetaData(schema="audit")


class Effect(Base):
    """What a handler has written through its session; `xid` is the transaction that did."""

    __tablename__ = "effect"

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int]
    token: Mapped[int] = mapped_column(BigInteger)
    key: Mapped[str]
    pid: Mapped[int]
    xid: Mapped[str] = mapped_column(server_default=text("pg_current_xact_id()::text"))


class StepEffect(Base):
    """A write of a durable step through its session."""

    __tablename__ = "step_effect"

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str]
    xid: Mapped[str] = mapped_column(server_default=text("pg_current_xact_id()::text"))


_OBSERVER = (
    """
    CREATE TABLE audit.history (
        n bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
        xid text NOT NULL DEFAULT pg_current_xact_id()::text,
        job_id bigint NOT NULL, key text, worker text,
        was text, claims_was integer, rescues_was integer, lease_was timestamptz,
        now text, claims integer, rescues integer, attempt integer, error text, token bigint)
    """,
    # What tells a job from all others: its producer's key, or of which tick it is.
    """
    CREATE FUNCTION audit.key(job sa_jobqueue.job) RETURNS text LANGUAGE sql STABLE AS $body$
        SELECT coalesce(job.meta->>'key',
                        (job.meta->>'schedule') || '@' || (extract(epoch FROM job.tick_at) * 1000000)::bigint)
    $body$
    """,
    """
    CREATE FUNCTION audit.observe() RETURNS trigger LANGUAGE plpgsql AS $body$
    BEGIN
        INSERT INTO audit.history (job_id, key, worker, was, claims_was, rescues_was, lease_was, now, claims, rescues, attempt,
                                   error, token)
        VALUES (coalesce(NEW.id, OLD.id), coalesce(audit.key(NEW), audit.key(OLD)), coalesce(NEW.worker, OLD.worker),
                OLD.status, OLD.claims, OLD.rescues, OLD.lease_expires_at, NEW.status, NEW.claims, NEW.rescues, NEW.attempt,
                NEW.errors->-1->>'type', NEW.claim_token);
        RETURN NULL;
    END
    $body$
    """,
    "CREATE TRIGGER audit_made AFTER INSERT OR DELETE ON sa_jobqueue.job FOR EACH ROW EXECUTE FUNCTION audit.observe()",
    """
    CREATE TRIGGER audit_changed AFTER UPDATE ON sa_jobqueue.job FOR EACH ROW
    WHEN ((OLD.status, OLD.claims) IS DISTINCT FROM (NEW.status, NEW.claims)) EXECUTE FUNCTION audit.observe()
    """,
    """
    CREATE TABLE audit.recorded (
        n bigint NOT NULL DEFAULT nextval('audit.history_n_seq'), xid text NOT NULL DEFAULT pg_current_xact_id()::text,
        key text, name text, kind text, token bigint)
    """,
    """
    CREATE TABLE audit.signalled (
        n bigint NOT NULL DEFAULT nextval('audit.history_n_seq'), xid text NOT NULL DEFAULT pg_current_xact_id()::text,
        id bigint, name text, was_sent boolean)
    """,
    """
    CREATE FUNCTION audit.record() RETURNS trigger LANGUAGE plpgsql AS $body$
    BEGIN
        INSERT INTO audit.recorded (key, name, kind, token)
        SELECT audit.key(job), NEW.name, NEW.kind, NEW.claim_token FROM sa_jobqueue.job WHERE job.id = NEW.job_id;
        RETURN NULL;
    END
    $body$
    """,
    """
    CREATE FUNCTION audit.hear() RETURNS trigger LANGUAGE plpgsql AS $body$
    BEGIN
        INSERT INTO audit.signalled (id, name, was_sent)
        VALUES (coalesce(NEW.id, OLD.id), coalesce(NEW.name, OLD.name), TG_OP = 'INSERT');
        RETURN NULL;
    END
    $body$
    """,
    "CREATE TRIGGER audit_recorded AFTER INSERT OR UPDATE ON sa_jobqueue.step FOR EACH ROW EXECUTE FUNCTION audit.record()",
    "CREATE TRIGGER audit_heard AFTER INSERT OR DELETE ON sa_jobqueue.signal FOR EACH ROW EXECUTE FUNCTION audit.hear()",
)


def prepare(url: str) -> None:
    """Make the audit's tables and its observer."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA audit"))
        Base.metadata.create_all(connection)
        for statement in _OBSERVER:
            connection.execute(text(statement))
    engine.dispose()


# ---- what handlers leave behind


class Word(StrEnum):
    """What a handler says in its file."""

    BEGAN = "began"
    DID = "did"  # the effect outside the database
    STEPPED = "stepped"  # the effect of a durable step
    FAILED = "failed"  # on purpose


_MICROSECOND = timedelta(microseconds=1)


def key_of(ctx: JobContext | AsyncJobContext) -> str:
    """The job's key, as `audit.key` says it."""
    if ctx.tick_at is None:
        return str(ctx.meta["key"])
    return f"{ctx.meta['schedule']}@{(ctx.tick_at - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND}"


def token_of(ctx: JobContext | AsyncJobContext) -> int:
    """Of which claim of the job this is the run."""
    return ctx._job.claim_token


def say(ctx: JobContext | AsyncJobContext, word: Word) -> None:
    """Append a line to this process's file, and return when it is on the disk."""
    # CLOCK_MONOTONIC is the host's: the same in all its processes, and none of their clocks can be wrong.
    line = {
        "what": word, "job": ctx.job_id, "key": key_of(ctx), "token": token_of(ctx), "attempt": ctx.attempt,
        "pid": os.getpid(), "at": time.monotonic(),
    }  # fmt: skip
    file = os.open(Path(os.environ[FOLDER]) / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)


def _effect(ctx: JobContext | AsyncJobContext) -> Effect:
    return Effect(job_id=ctx.job_id, token=token_of(ctx), key=key_of(ctx), pid=os.getpid())


def _task(function: Any) -> Any:
    return task(registry=registry, retry=_SOON, max_attempts=MAX_ATTEMPTS)(function)


@_task
def plain(ctx: JobContext, seconds: float) -> None:
    """Has no effect in the database."""
    say(ctx, Word.BEGAN)
    time.sleep(seconds)
    say(ctx, Word.DID)


@_task
async def plain_async(ctx: AsyncJobContext, seconds: float) -> None:
    """The same on the event loop."""
    say(ctx, Word.BEGAN)
    await asyncio.sleep(seconds)
    say(ctx, Word.DID)


@_task
def write(ctx: JobContext, seconds: float) -> None:
    """Writes through its session, and takes its time in the middle of the transaction."""
    say(ctx, Word.BEGAN)
    ctx.session.add(_effect(ctx))
    ctx.session.flush()
    time.sleep(seconds)
    say(ctx, Word.DID)


@_task
async def write_async(ctx: AsyncJobContext, seconds: float) -> None:
    """The same on the event loop."""
    say(ctx, Word.BEGAN)
    ctx.session.add(_effect(ctx))
    await ctx.session.flush()
    await asyncio.sleep(seconds)
    say(ctx, Word.DID)


@_task
def write_late(ctx: JobContext, seconds: float) -> None:
    """Takes its time first, and opens its session only then."""
    say(ctx, Word.BEGAN)
    time.sleep(seconds)
    ctx.session.add(_effect(ctx))
    say(ctx, Word.DID)


@_task
def stumble(ctx: JobContext, seconds: float) -> None:
    """Fails at its first attempt, after it has written."""
    say(ctx, Word.BEGAN)
    ctx.session.add(_effect(ctx))
    ctx.session.flush()
    time.sleep(seconds)
    if ctx.attempt == 1:
        say(ctx, Word.FAILED)
        raise RuntimeError("on purpose")
    say(ctx, Word.DID)


@_task
async def snooze(ctx: AsyncJobContext, seconds: float) -> Snooze | None:
    """Asks for later at its first claim."""
    say(ctx, Word.BEGAN)
    if await ctx.session.scalar(select(Job.claims).where(Job.id == ctx.job_id)) == 1:
        return Snooze(0.2)
    ctx.session.add(_effect(ctx))
    await asyncio.sleep(seconds)
    say(ctx, Word.DID)
    return None


SENT = "/go"
"""The suffix in the key of a job that sends a signal, after the key of the job that waits for the signal."""


def signal_of(key: str) -> str:
    """The signal that the job of this key waits for."""
    return f"go:{key.removesuffix(SENT)}"


@_task
async def ship(ctx: AsyncJobContext, seconds: float) -> None:
    """Has durable steps outside the database and in it, waits for a signal and sleeps, and then writes."""
    say(ctx, Word.BEGAN)
    await ctx.step("outside", say, ctx, Word.STEPPED)
    async with ctx.step_session("inside") as session:
        session.add(StepEffect(key=key_of(ctx)))
        await session.flush()
        await asyncio.sleep(seconds / 2)
    await ctx.wait_signal(signal_of(key_of(ctx)))
    await ctx.sleep_for(seconds / 2)
    ctx.session.add(_effect(ctx))
    say(ctx, Word.DID)


@_task
def send(ctx: JobContext, seconds: float) -> None:
    """Sends the signal of `ship` with its completion. The first attempt fails after it has sent."""
    say(ctx, Word.BEGAN)
    ctx.session.add_all([_effect(ctx), Signal(signal_of(key_of(ctx)))])
    ctx.session.flush()
    time.sleep(seconds)
    if ctx.attempt == 1:
        say(ctx, Word.FAILED)
        raise RuntimeError("on purpose")
    say(ctx, Word.DID)


@task(registry=registry, retry=_SOON, max_attempts=DOOMED_ATTEMPTS)
def doomed(ctx: JobContext, seconds: float) -> None:
    """Always fails, after it has written."""
    say(ctx, Word.BEGAN)
    ctx.session.add(_effect(ctx))
    ctx.session.flush()
    time.sleep(seconds)
    say(ctx, Word.FAILED)
    raise RuntimeError("on purpose")


@task(registry=registry, retry=_SOON, max_attempts=MAX_ATTEMPTS, record=True)
def part(ctx: JobContext, seconds: float, fails: bool) -> str:
    """Returns its key, or always fails. Of workflows: others take what it returns."""
    say(ctx, Word.BEGAN)
    time.sleep(seconds)
    if fails:
        say(ctx, Word.FAILED)
        raise RuntimeError("on purpose")
    say(ctx, Word.DID)
    return key_of(ctx)


@_task
def take(ctx: JobContext, parts: Sequence[str | Failed], wanted: list[str | None], seconds: float) -> None:
    """Takes what others return, and writes. `wanted`: None in place of what failed; with anything else it gives up."""
    say(ctx, Word.BEGAN)
    if [None if isinstance(one, Failed) else one for one in parts] != wanted:
        raise Discard(f"{parts} came, and not {wanted}")
    ctx.session.add(_effect(ctx))
    time.sleep(seconds)
    say(ctx, Word.DID)


@_task
def held(ctx: JobContext, seconds: float) -> None:
    """Has no effect in the database, and takes as long as the test wants: until this run of it is let go."""
    say(ctx, Word.BEGAN)
    gate = _gate(Path(os.environ[FOLDER]), ctx.attempt + ctx._job.rescues)
    while not gate.exists():
        time.sleep(0.01)
    say(ctx, Word.DID)


@_task
def write_when_told(ctx: JobContext, gate: str) -> None:
    """Takes as long as the test wants, until this gate is open, and opens its session only then."""
    say(ctx, Word.BEGAN)
    while not _gate(Path(os.environ[FOLDER]), gate).exists():
        time.sleep(0.01)
    ctx.session.add(_effect(ctx))
    say(ctx, Word.DID)


@task(registry=registry, max_attempts=1)
def write_at_first(ctx: JobContext, seconds: float) -> None:
    """Has one attempt. Only for faults that end no transaction."""
    say(ctx, Word.BEGAN)
    ctx.session.add(_effect(ctx))
    ctx.session.flush()
    time.sleep(seconds)
    say(ctx, Word.DID)


@_task
def kill(ctx: JobContext, seconds: float) -> None:
    """Kills its process in its first run."""
    say(ctx, Word.BEGAN)
    time.sleep(seconds)
    if ctx._job.rescues == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    ctx.session.add(_effect(ctx))
    say(ctx, Word.DID)


def let_go(folder: Path, gate: int | str) -> None:
    """Let the handlers come to their end that wait at this gate; those of `held` wait in their run of it, 1 or later."""
    _gate(folder, gate).touch()


def _gate(folder: Path, gate: int | str) -> Path:
    return folder / f"go-{gate}"


#: What is enqueued, and how often compared with the others.
MIX: dict[AnyTask, int] = {
    plain: 4, plain_async: 4, write: 4, write_async: 4, write_late: 2, stumble: 1, snooze: 1, doomed: 1, ship: 1
}  # fmt: skip
WITHOUT_SESSION = frozenset({plain.name, plain_async.name, part.name, held.name})
"""The tasks that write nothing through `ctx.session`."""
DOOMED, SHIP = doomed.name, ship.name


#: The schedules, by name: seconds between their ticks, their task, and the other options.
SCHEDULES: dict[str, tuple[float, AnyTask, dict[str, Any]]] = {
    "each": (1.0, plain, {"missed": "all"}),
    "fresh": (2.0, plain_async, {"missed": "all", "catch_up": 3.0}),
    "once": (2.0, write, {"missed": "once"}),
    "skip": (2.0, write_async, {"overlap": "skip"}),
    "queue one": (2.0, plain, {"overlap": "queue_one"}),
    "cancel": (2.0, plain_async, {"overlap": "cancel_running"}),
}
TICKS = sum(1 / seconds for seconds, _, _ in SCHEDULES.values())
"""Ticks a second."""


def add_schedules(url: str, schedules: Mapping[str, tuple[float, AnyTask, dict[str, Any]]] = SCHEDULES) -> None:
    """Make schedules."""
    engine = create_engine(url)
    with Session(engine) as session:
        for name, (seconds, kind, options) in schedules.items():
            task = kind.options(meta={"schedule": name})
            session.add(Schedule(every(seconds), task, LONGEST, name=name, **options))
        session.commit()
    engine.dispose()


# ---- jobs


class Fate(StrEnum):
    """What came of the transaction that enqueued a job."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"  # the answer to its COMMIT was lost, or a failover may have lost the transaction


def job(
    kind: AnyTask,
    key: str,
    argument: float | str = 0.0,
    unique: Unique | None = None,
    expires: float | None = None,
    deadline: float | None = None,
) -> Job:
    """A job that the audit can follow. `expires`, `deadline`: seconds from now."""
    options = kind.options(
        meta={"key": key}, unique=unique or False, expires_in=expires or False, deadline=deadline or False
    )
    return enqueue(options, argument)
