"""Progress seen from outside: what another connection sees is durable."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import sqlalchemy as sa

from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.lifecycle import JobStatus
from sa_jobqueue.models import Job, status_literal

from .processes import Processes

__all__ = ["Tell", "live_numbers", "seconds_to_drain"]

T = TypeVar("T")

#: Called with the number of jobs done and the number of all.
Tell = Callable[[int, int], None]

#: Seconds without any progress after which something must be wrong.
_STALLED = 60.0
_QUEUED, _RUNNING = status_literal(JobStatus.QUEUED), status_literal(JobStatus.RUNNING)
#: Those that run, and those that wait, each as an index has them: a measured job has no concurrency key.
_LIVE = (Job.status == _RUNNING, sa.and_(Job.status == _QUEUED, Job.concurrency_key.is_(None)))


def seconds_to_drain(
    connection: sa.Connection, group: Processes, *, last: int | None = None, tell: Tell | None = None
) -> float:
    """Let the processes begin and return the seconds from the start of the first claim to the last durable completion.

    `last`: the id of the job that comes last; without one, the highest there is. The clock is the database's. It begins
    with the first claim's transaction, so the start of a process is no part of it, and ends when this connection sees
    no job, up to `last`, that is queued or running.
    """
    final: int = connection.scalars(sa.select(sa.func.max(Job.id))).one() if last is None else last
    progress = _Progress(connection, group, final, tell)
    group.go()
    seen = progress.until(progress.begun, 0.002)
    # One row by its key, until that one is done; only then what costs more.
    progress.until(progress.last_is_done, 0.01)
    ended = progress.until(progress.ended, 0.002)
    # A job that was claimed and completed between two queries is still in the table, unless it was deleted.
    begun = connection.scalar(sa.select(sa.func.min(Job.claimed_at)).where(Job.id <= final))
    return (ended - min(seen, begun or seen)).total_seconds()


class _Progress:
    def __init__(self, connection: sa.Connection, group: Processes, last: int, tell: Tell | None) -> None:
        self._connection, self._group, self._last, self._tell = connection, group, last, tell
        self._first = self._front()
        self._start: datetime = connection.scalars(sa.select(sa.func.statement_timestamp())).one()

    def begun(self) -> datetime | None:
        """When the first claim began, once it is there."""
        at = self._connection.scalar(sa.select(sa.func.min(Job.claimed_at)).where(Job.status == _RUNNING))
        return self._start if at is None and self.last_is_done() else at

    def last_is_done(self) -> bool:
        live = sa.or_(Job.status == _QUEUED, Job.status == _RUNNING)
        return self._connection.scalar(sa.select(Job.id).where(Job.id == self._last, live)) is None

    def ended(self) -> datetime | None:
        """The time now, if nothing is live any more."""
        live = [sa.select(Job.id).where(one, Job.id <= self._last).exists() for one in _LIVE]
        return self._connection.scalar(sa.select(sa.func.statement_timestamp()).where(~live[0], ~live[1]))

    def _front(self) -> int:
        """The id of the next job to be claimed: nearly all before it are done. One look at an index."""
        due = sa.select(Job.id).where(_LIVE[1], Job.queue == "default", Job.priority == 4)
        found = self._connection.scalar(due.order_by(Job.run_at, Job.id).limit(1))
        return self._last + 1 if found is None else found

    def _live(self) -> int:
        """How many jobs are queued or running; a slow query."""
        both = [sa.select(Job.id).where(one, Job.id <= self._last) for one in _LIVE]
        return self._connection.scalars(
            sa.select(sa.func.count()).select_from(both[0].union_all(both[1]).subquery())
        ).one()

    def until(self, look: Callable[[], T | None], pause: float) -> T:
        """What `look` returns, once that is true."""
        live, asked_at, said_at = -1, time.monotonic(), 0.0
        while not (found := look()):
            self._group.check()
            now = time.monotonic()
            if self._tell is not None and now - said_at >= 0.25:
                said_at = now
                self._tell(self._front() - self._first, self._last + 1 - self._first)
            if now - asked_at > _STALLED:
                if live == (live := self._live()):
                    raise JobQueueError(f"no job has come to an end for {_STALLED:g} s, and {live} are left")
                asked_at = now
            time.sleep(pause)
        return found


def live_numbers(connection: sa.Connection) -> set[int]:
    """The numbers of the jobs that are queued or running."""
    number = Job.args["n"].astext.cast(sa.Integer)
    running, queued = (sa.select(number).where(one) for one in _LIVE)
    return set(connection.scalars(queued.union_all(running)))
