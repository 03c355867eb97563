"""Jobs with rare attributes in a Session: a single INSERT for all, and unique jobs in the order of their keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from pydantic_core import from_json
from sqlalchemy import event
from sqlalchemy.orm import Mapper, Session

from ..rules.job_fields import RARE_FIELDS

#: The columns that are rarely set.
_FEW = tuple(field.column for field in RARE_FIELDS)
#: The classes whose jobs are inserted in order.
_ordered: set[type[Any]] = set()


def listen_to_sessions(listeners: Mapping[str, Callable[..., None]]) -> None:
    """Call these at the events of every Session, by name: from the time on when mappers are configured, which is before any flush.

    Later is too late. With the first job that needs it, a flush may be under way, in another thread or because a listener of the
    application's makes the job; and SQLAlchemy's listeners cannot change while they are called. Earlier is too early: those of the
    application come first, if they are there when it is imported.
    """

    def listen() -> None:
        for name, listener in listeners.items():
            event.listen(Session, name, listener)

    event.listen(Mapper, "after_configured", listen, once=True)


def insert_in_order(job: type[Any]) -> None:
    """Have every Session insert unique jobs of this class in the order of their keys.

    Called when such a job is made, so that a program without them pays for a call in each flush. The keys of an INSERT are taken in
    this order: so two flushes cannot deadlock. And all jobs of the flush say what their key, expiry and deadline are, or that they
    have none: else the INSERT would be parted at each change.
    """
    _ordered.add(job)


def say_all(jobs: Sequence[Any]) -> bool:
    """Set the rare attributes that any of these jobs has on all of them. Returns False if no job has any."""
    names = {name for job in jobs for name in _FEW if vars(job).get(name) is not None}
    for job in jobs:
        for name in names - vars(job).keys():
            setattr(job, name, None)
    return bool(names)


def put_in_order(session: Session, job: type[Any]) -> None:
    """Order the jobs of the next flush of this session by their keys."""
    jobs = [instance for instance in session.new if isinstance(instance, job)]
    if len(jobs) == 1 or not say_all(jobs):
        return
    unique = [instance for instance in jobs if vars(instance).get("uniqueness") is not None]
    states: list[Any] = [sa.inspect(instance) for instance in unique]
    places = sorted(state.insert_order for state in states)
    for place, instance in zip(places, sorted(unique, key=_key), strict=True):
        sa.inspect(instance).insert_order = place


def _key(job: Any) -> str:
    """Its unique key. Unlike `job.unique_key` this leaves the JSON as the text that an INSERT takes."""
    given = vars(job)["uniqueness"]
    return str((from_json(given) if isinstance(given, str) else given).get("key"))


def _order(session: Session, *_: Any) -> None:
    for job in tuple(_ordered):
        put_in_order(session, job)


listen_to_sessions({"before_flush": _order})
