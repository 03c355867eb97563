"""A job whose arguments wait for the keys of objects, and what it was before it got them."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import InstanceState, Session, SessionTransaction, make_transient

from ..errors import PayloadError
from ..models import JobMixin, JsonText
from ..objects import Reference, Waiting

__all__ = ["Pending", "is_settled", "waiting_of"]

#: Where a job has what completes it: beside its mapped attributes.
_WAITING = "_waiting_for_keys"
#: The attributes that are completed.
_COMPLETED = ("args", "uniqueness", "subject_type", "subject_id")


def waiting_of(one: object, waiting: Waiting | None = None) -> Waiting | None:
    """What completes the arguments of a job; None if they are complete. `waiting`: it is that from now on."""
    if waiting is not None:
        vars(one)[_WAITING] = waiting
    return cast(Waiting | None, vars(one).get(_WAITING))


def is_settled(job: JobMixin, session: Session, dirty: Collection[object]) -> bool:
    """Whether the keys and versions of all its objects are known, and this flush does not change them.

    `dirty`: the session's. Raises PayloadError if it does not give them either.
    """
    waiting = waiting_of(job)
    assert waiting is not None
    try:
        known = [_is_known(one, session, dirty) for one in waiting.references]
    except PayloadError as error:
        raise waiting.error(str(error)) from error
    return all(known)


def _is_known(reference: Reference, session: Session, dirty: Collection[object]) -> bool:
    one = reference.object
    state: InstanceState[Any] = sa.inspect(one)
    if state.key is not None:
        reference.now()  # it may be deleted by now
        return not (reference.of.said.fresh and state.session is session and one in dirty)
    if state.session is session:
        return False
    mend = (
        "add it, session.add(...), or flush it first"
        if state.session is None
        else "flush it there, and commit that session before this one"
    )
    place = "in no session" if state.session is None else "in another session than its job"
    raise reference.error(f"{reference} is not in the database yet, and it is {place}: {mend}")


@dataclass(frozen=True, slots=True)
class Pending:
    """What a job was before its arguments were completed."""

    job: weakref.ref[JobMixin]
    waiting: Waiting
    before: dict[str, Any]
    aside: bool
    """Whether it was not part of the flush, so that the session's rollback does not know it as new."""
    transactions: tuple[weakref.ref[SessionTransaction], ...]
    """The transaction in which it was written, and those around it."""

    @classmethod
    def completed(cls, job: JobMixin, session: Session, *, aside: bool = False) -> Pending:
        """Complete the arguments of `job`. Raises PayloadError if a key is not known."""
        waiting = waiting_of(job)
        assert waiting is not None
        known = vars(job)
        before = {name: known[name] for name in _attributes(type(job)) if name in known}
        args = waiting.completed(known["args"])
        subject = waiting.subject()
        del known[_WAITING]
        known["args"] = JsonText(args)
        if waiting.rule is not None and known.get("uniqueness") is not None:
            known["uniqueness"] = JsonText(waiting.rule(args))
        if subject is not None:
            known["subject_type"], known["subject_id"] = subject
        return cls(weakref.ref(job), waiting, before, aside, _transactions(session))

    @property
    def may_roll_back(self) -> bool:
        """Whether the outermost transaction goes on."""
        root = self.transactions[-1]() if self.transactions else None
        return root is not None and root.is_active

    def is_undone_by(self, rolled_back: SessionTransaction) -> bool:
        """Whether the rollback of this transaction has undone the INSERT."""
        return any(one() is rolled_back for one in self.transactions)

    def restore(self, session: Session) -> None:
        """Make the job what it was."""
        job = self.job()
        if job is None:
            return
        known = vars(job)
        if self.aside:
            if job in session:
                session.expunge(job)
            make_transient(job)
            for name in _attributes(type(job)) - self.before.keys():
                known.pop(name, None)
            known.update(self.before)
        for name in ("subject_type", "subject_id"):
            known.pop(name, None)
        known.update({name: self.before[name] for name in _COMPLETED if name in self.before})
        waiting_of(job, self.waiting)


@cache
def _attributes(job: type[JobMixin]) -> frozenset[str]:
    return frozenset(sa.inspect(job).column_attrs.keys())


def _transactions(session: Session) -> tuple[weakref.ref[SessionTransaction], ...]:
    found: list[weakref.ref[SessionTransaction]] = []
    one = session.get_nested_transaction() or session.get_transaction()
    while one is not None:
        found.append(weakref.ref(one))
        one = one.parent
    return tuple(found)
