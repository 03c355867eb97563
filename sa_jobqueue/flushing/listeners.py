"""What happens before and after a flush, and after a rollback."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session, SessionTransaction, object_session

from ..models import UNFINISHED, JobMixin, JsonText, UnfinishedJson, listen_to_sessions, put_in_order
from ..objects import Waiting, as_text
from .links import linked
from .pending import Pending, is_settled, waiting_of
from .writing import complete, insert

__all__ = ["wait_for_keys"]

#: The keys of `Session.info`: the jobs that are set aside, and those that the flush writes and that are completed after it.
_ASIDE, _LINKED = "sa_jobqueue.aside", "sa_jobqueue.linked"
#: What was completed in transactions that may still be rolled back.
_DONE = "sa_jobqueue.completed"


class _Listeners:
    """Whether there was any such job in this process. Until then each event ends at once."""

    needed = False


def wait_for_keys(job: JobMixin, waiting: Waiting) -> None:
    """Let the flush that writes `job` complete its arguments."""
    _Listeners.needed = True
    waiting_of(job, waiting)
    vars(job)["args"] = UnfinishedJson(vars(job)["args"])


def _before_flush(session: Session, *_: Any) -> None:
    """Set aside what has to wait. Everything is checked before anything is changed."""
    if not _Listeners.needed:
        return
    jobs = [*_aside(session), *(cast(JobMixin, one) for one in session.new if waiting_of(one) is not None)]
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
        session.info[_ASIDE] = _transaction(session), list(late.values())
    if referred_to:
        session.info[_LINKED] = referred_to


def _aside(session: Session) -> Sequence[JobMixin]:
    """Those that are still aside, because another listener has refused the last flush: unless the session was closed then."""
    transaction, jobs = session.info.get(_ASIDE, (None, ()))
    if jobs and transaction != _transaction(session):
        del session.info[_ASIDE]
        return ()
    return cast(Sequence[JobMixin], jobs)


def _transaction(session: Session) -> weakref.ref[SessionTransaction] | None:
    """The outermost one. It begins with the first `add()`, and each `close()` ends it."""
    found = session.get_transaction()
    return None if found is None else weakref.ref(found)


def _refuse_unknown_keys(jobs: Sequence[JobMixin]) -> None:
    """A unique job's key is taken by the INSERT."""
    for job in jobs:
        waiting = waiting_of(job)
        if waiting is not None and waiting.decides_the_key(vars(job)["args"]):
            raise waiting.error(
                "the key of this unique job depends on an object that is not in the database yet, and that cannot be written "
                "before the job, because an object refers to the job, or a listener has added it: flush first (session.flush())"
            )


def _before_insert(_mapper: object, _connection: object, job: JobMixin) -> None:
    """Take in a job that another listener has added behind us: it is too late to set it aside."""
    if not _Listeners.needed or waiting_of(job) is None or not isinstance(vars(job)["args"], UNFINISHED):
        return
    session = object_session(job)
    assert session is not None
    if is_settled(job, session, session.dirty):
        _remember(session, [Pending.completed(job, session)])
        return
    _refuse_unknown_keys([job])
    vars(job)["args"] = JsonText(as_text(vars(job)["args"]))
    session.info.setdefault(_LINKED, []).append(job)


def _after_flush(session: Session, *_: Any) -> None:
    """Write what was set aside, and complete what was written too early."""
    if not _Listeners.needed:
        return
    _, aside = session.info.pop(_ASIDE, (None, ()))
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
    if not _Listeners.needed:
        return
    session.info.pop(_ASIDE, None)
    for job in session.info.pop(_LINKED, ()):
        vars(job)["args"] = UnfinishedJson(as_text(vars(job)["args"]))
    kept: list[Pending] = session.info.get(_DONE, [])
    undone = [one for one in kept if one.is_undone_by(previous)]
    kept[:] = [one for one in kept if not one.is_undone_by(previous)]
    for one in undone:
        one.restore(session)


listen_to_sessions({"before_flush": _before_flush, "after_flush": _after_flush, "after_soft_rollback": _after_rollback})
sa.event.listen(JobMixin, "before_insert", _before_insert, propagate=True)
