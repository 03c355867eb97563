"""What happens before and after a flush, and after a rollback."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from ..models import JobMixin, JsonText, UnfinishedJson, put_in_order
from ..objects import Waiting, as_text
from .links import linked
from .pending import Pending, is_settled, waiting_of
from .writing import complete, insert

__all__ = ["wait_for_keys"]

#: The keys of `Session.info`: the jobs that are set aside, and those that the flush writes and that are completed after it.
_ASIDE, _LINKED = "sa_jobqueue.aside", "sa_jobqueue.linked"
#: What was completed in transactions that may still be rolled back.
_DONE = "sa_jobqueue.completed"


def wait_for_keys(job: JobMixin, waiting: Waiting) -> None:
    """Let the flush that writes `job` complete its arguments."""
    _listen()
    waiting_of(job, waiting)
    vars(job)["args"] = UnfinishedJson(vars(job)["args"])


@cache
def _listen() -> None:
    """Called with the first such job, so that a program without them pays nothing."""
    event.listen(Session, "before_flush", _before_flush)
    event.listen(Session, "after_flush", _after_flush)
    event.listen(Session, "after_soft_rollback", _after_rollback)


def _before_flush(session: Session, *_: Any) -> None:
    """Set aside what has to wait. Everything is checked before anything is changed."""
    # Some are still aside if another listener has refused the last flush.
    before: Sequence[JobMixin] = session.info.get(_ASIDE, ())
    jobs = [*before, *(cast(JobMixin, one) for one in session.new if waiting_of(one) is not None)]
    if not jobs:
        return
    dirty = session.dirty
    late = {id(job): job for job in jobs if not is_settled(job, session, dirty)}
    referred_to = linked(session, list(late.values())) if late else []
    _refuse_unknown_keys(referred_to)
    session.info.pop(_ASIDE, None)
    if settled := [job for job in jobs if id(job) not in late]:
        _remember(session, [Pending.completed(job, session) for job in settled])
        session.add_all(settled)
        put_in_order(session, JobMixin)  # some have got their unique keys just now
    for job in referred_to:
        del late[id(job)]
        vars(job)["args"] = JsonText(as_text(vars(job)["args"]))
        session.add(job)
    for job in late.values():
        if job in session:
            session.expunge(job)
    if late:
        session.info[_ASIDE] = list(late.values())
    if referred_to:
        session.info[_LINKED] = referred_to


def _refuse_unknown_keys(jobs: Sequence[JobMixin]) -> None:
    """A unique job's key is taken by the INSERT."""
    for job in jobs:
        waiting = waiting_of(job)
        if waiting is not None and waiting.decides_the_key(vars(job)["args"]):
            raise waiting.error(
                "the key of this unique job depends on an object that is not in the database yet, and that cannot be written "
                "before the job, because an object refers to the job: flush first (session.flush())"
            )


def _after_flush(session: Session, *_: Any) -> None:
    """Write what was set aside, and complete what was written too early."""
    aside: Sequence[JobMixin] = session.info.pop(_ASIDE, ())
    referred_to: Sequence[JobMixin] = session.info.pop(_LINKED, ())
    if aside:
        _remember(session, [Pending.completed(job, session, aside=True) for job in aside])
        insert(session, aside)
    if referred_to:
        _remember(session, [Pending.completed(job, session) for job in referred_to])
        complete(session, referred_to)


def _remember(session: Session, done: Sequence[Pending]) -> None:
    kept: list[Pending] = session.info.setdefault(_DONE, [])
    kept[:] = [one for one in kept if one.may_roll_back]
    kept.extend(done)


def _after_rollback(session: Session, previous: SessionTransaction) -> None:
    """Make them what they were."""
    for name in (_ASIDE, _LINKED):
        session.info.pop(name, None)
    kept: list[Pending] = session.info.get(_DONE, [])
    undone = [one for one in kept if one.is_undone_by(previous)]
    kept[:] = [one for one in kept if not one.is_undone_by(previous)]
    for one in undone:
        one.restore(session)
