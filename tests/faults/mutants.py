"""Workers whose code is broken on purpose, to show that the auditor sees it.

The environment variable `SA_FAULTS_MUTANT` names the mutation, done when this module is imported:
`sa-jobqueue work --app tests.faults.mutants:registry`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger, Connection, Text, bindparam, cast, func, select, text, update

from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.models import Job
from sa_jobqueue.rules import lifecycle
from sa_jobqueue.rules.lifecycle import Change, Event
from sa_jobqueue.rules.schedules import due_ticks
from sa_jobqueue.sql import steps
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.sql.claims import ClaimRequest, new_token
from sa_jobqueue.sql.leases import Renewal
from sa_jobqueue.sql.parts import materialized
from sa_jobqueue.sql.schedules import due as schedules
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.sql.tables import Flight
from sa_jobqueue.worker.claiming import intake
from sa_jobqueue.worker.running import transaction as libpq
from sa_jobqueue.worker.running import verdict
from sa_jobqueue.worker.running.attempt_end import LOST, Written
from sa_jobqueue.worker.running.transaction import HandlerTransaction
from tests.faults.workload import registry

__all__ = ["MUTANT", "MUTATIONS", "registry"]

MUTANT = "SA_FAULTS_MUTANT"

_apply, _apply_one, _renew, _complete = (
    default_store.apply,
    default_store.apply_one,
    default_store.renew,
    HandlerTransaction.complete,
)
_COLUMNS = Job.__table__.c

_COMPLETED = text(
    "UPDATE sa_jobqueue.job SET status = 'completed', finished_at = now(), lease_expires_at = NULL WHERE id = ANY (:ids)"
)


def _complete_regardless(connection: Connection, changes: Any, **options: Any) -> dict[int, Answer]:
    """Completions are written although the claim is over."""
    done = [change for change in changes if change.event is Event.COMPLETE]
    others = [change for change in changes if change.event is not Event.COMPLETE]
    connection.execute(_COMPLETED, {"ids": [change.id for change in done]})
    return {change.id: Answer.APPLIED for change in done} | _apply(connection, others, **options)


def _complete_one_regardless(connection: Connection, change: Change, **options: Any) -> Answer:
    """The same, in the transaction of its handler."""
    if change.event is not Event.COMPLETE:
        return _apply_one(connection, change, **options)
    connection.execute(_COMPLETED, {"ids": [change.id]})
    return Answer.APPLIED


def _renew_regardless(connection: Connection, held: Any, **options: Any) -> Renewal:
    """No claim is said to be lost, so that no handler is stopped for it."""
    return replace(_renew(connection, held, **options), lost=frozenset())


def remove_the_fence() -> None:
    """A completion does not look whether its claim is still valid, nor does a renewal."""
    default_store.apply, default_store.apply_one = _complete_regardless, _complete_one_regardless
    default_store.renew = _renew_regardless
    libpq.command = lambda *_, **__: None


def remove_the_fence_of_batches() -> None:
    """The same; only where a handler used `ctx.session` is its completion fenced."""
    default_store.apply, default_store.renew = _complete_regardless, _renew_regardless


def split_the_claim() -> None:
    """Claiming is a SELECT, and then an UPDATE of what was seen."""
    send = default_store.send_exchange

    def claim(connection: Connection, request: ClaimRequest) -> Any:
        due = select(_COLUMNS.id).where(_COLUMNS.status == "queued", _COLUMNS.run_at <= func.now())
        seen = list(connection.scalars(due.order_by(_COLUMNS.id).limit(sum(request.queues.values()))))
        time.sleep(0.01)  # others may look at the same moment
        taken = (
            update(Job.__table__)
            .where(_COLUMNS.id.in_(seen))
            .values(
                status="running",
                claims=_COLUMNS.claims + 1,
                claim_token=new_token(),
                attempt=_COLUMNS.attempt + 1,
                worker=request.worker,
                claimed_at=func.now(),
                lease_expires_at=func.now() + text(f"interval '{request.lease} s'"),
            )
        )
        columns = [
            cast(_COLUMNS[name], Text) if name in ("args", "meta") else _COLUMNS[name]
            for name in ClaimedJob._fields
            if name != "extra"
        ]
        return [ClaimedJob(*row) for row in connection.execute(taken.returning(*columns))]

    def send_claim(connection: Connection, changes: Any, request: ClaimRequest) -> Flight:
        if changes:
            return send(connection, changes, request)
        with connection.begin():
            return Flight(connection, rows=claim(connection, request))

    default_store.send_exchange = send_claim  # type: ignore[method-assign]


def _complete_first(self: HandlerTransaction, change: Any) -> Any:
    """The completion in a transaction of its own."""
    assert self.engine is not None
    with self.engine.begin() as before:
        answer = _apply(before, [change])[change.id]
    self.session.flush()
    return answer


def complete_first() -> None:
    """The completion is committed before what the handler wrote."""

    def complete(self: HandlerTransaction, changes: Any) -> Any:
        if self.connection is None:
            return _complete(self, changes)
        (change,) = changes
        try:
            answer = _complete_first(self, change)
            self.session.commit()
            if self.connection is not None:
                self.connection.commit()
            return [Written(change) if answer is Answer.APPLIED else LOST]
        finally:
            self.close()

    HandlerTransaction.complete = complete  # type: ignore[method-assign]


def complete_and_die() -> None:
    """The same, in a worker that is killed between the two from time to time."""

    def complete(self: HandlerTransaction, changes: Any) -> Any:
        (change,) = changes
        if self.connection is None or change.id % 10:
            return _complete(self, changes)
        _complete_first(self, change)
        os._exit(9)

    HandlerTransaction.complete = complete  # type: ignore[method-assign]


def keep_the_keys() -> None:
    """Nothing of a claim says that its job has a unique key, so its end does not give it back."""
    extra = lifecycle.extra
    lifecycle.extra = lambda claim: {name: value for name, value in extra(claim).items() if name != "unique"}


def forget_the_workflow() -> None:
    """Nothing of a claim says that its job is a member of a workflow, so its end appends no event."""
    extra = lifecycle.extra
    lifecycle.extra = lambda claim: {name: value for name, value in extra(claim).items() if name != "workflow"}


def free_keys_at_the_start() -> None:
    """The unique keys of all jobs are free when they start."""

    def free(connection: Connection, started: Any) -> set[int]:
        connection.execute(text("DELETE FROM sa_jobqueue.unique_key WHERE job_id = ANY (:ids)"), {"ids": list(started)})
        return set()

    intake.started_keys = lambda jobs: dict.fromkeys((job.id for job in jobs), "")
    default_store.free_started_keys = free  # type: ignore[method-assign]


def look_without_a_lock() -> None:
    """Due schedules are read, and not locked."""
    due_schedules = schedules.due_schedules

    def look(**options: Any) -> Any:
        return due_schedules(**options).with_for_update(read=True, key_share=True)

    def live(self: Any, connection: Connection, looks: Any) -> set[int]:
        time.sleep(0.3)  # others look at the same tick meanwhile
        return set()

    schedules.due_schedules = look
    schedules.Schedules._live = live  # type: ignore[method-assign]


def forget_missed_ticks() -> None:
    """Only the last tick has a job, whatever was missed."""
    schedules.due_ticks = lambda *given, **_: due_ticks(*given, missed="once")._replace(
        ticks=[(at, 1) for at, _ in due_ticks(*given, missed="once").ticks]
    )


def catch_up_nothing() -> None:
    """What is late by half a second is left out, where a schedule has any limit."""
    schedules.due_ticks = lambda *given, catch_up=None, **options: due_ticks(
        *given, catch_up=None if catch_up is None else timedelta(seconds=0.5), **options
    )


def tick_past_live_jobs() -> None:
    """No job is in the way of the next tick."""
    schedules.Schedules._live = lambda *_: set()  # type: ignore[method-assign]


def start_what_is_late() -> None:
    """The worker does not look at expiries and deadlines before it calls a handler."""
    verdict.not_started = lambda *_: None


def record_without_the_fence() -> None:
    """A step is recorded and its writes are kept, although its claim is over."""

    def held(table: Any) -> Any:
        return materialized(select(table.c.id).where(table.c.id == bindparam("of_job", type_=BigInteger)), "held")

    steps._held = held
    default_store.renew = _renew_regardless


def take_signals_early() -> None:
    """A signal is taken in one transaction, and recorded in the next."""

    def take(connection: Connection, id: int, token: int, *, step: str, signal: str) -> str | None:
        taken = "DELETE FROM sa_jobqueue.signal WHERE name = :name RETURNING payload::text"
        with connection.engine.begin() as early:
            payload = early.execute(text(taken), {"name": signal}).scalar()
        if payload is not None:
            default_store.record_step(
                connection, id, token, steps.Recorded(step, "signal", 1, None, payload, is_ours=True)
            )
        return payload

    default_store.take_signal = take


def commit_blocks_first() -> None:
    """The writes of a step are committed before the step is recorded."""

    def commit_step(self: HandlerTransaction, record: Any) -> bool:
        self.session.commit()
        if self.connection is not None:
            self.connection.commit()
        return False

    HandlerTransaction.commit_step = commit_step  # type: ignore[method-assign]


MUTATIONS: dict[str, Callable[[], None]] = {
    mutate.__name__: mutate
    for mutate in (
        remove_the_fence,
        remove_the_fence_of_batches,
        split_the_claim,
        complete_first,
        complete_and_die,
        keep_the_keys,
        forget_the_workflow,
        free_keys_at_the_start,
        look_without_a_lock,
        forget_missed_ticks,
        catch_up_nothing,
        tick_past_live_jobs,
        start_what_is_late,
        record_without_the_fence,
        take_signals_early,
        commit_blocks_first,
    )
}

if mutant := os.environ.get(MUTANT):
    MUTATIONS[mutant]()
