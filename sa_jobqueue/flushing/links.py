"""Which jobs other objects refer to by a relationship, so that they must be part of the flush itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import InstanceState, Mapper, Session

from ..models import JobMixin

__all__ = ["linked"]


def linked(session: Session, jobs: Sequence[JobMixin]) -> list[JobMixin]:
    """Those of `jobs` that this flush brings into a relationship with an object, on either side."""
    of_all = {id(job): job for job in jobs}
    found: set[int] = {id(job) for job in jobs if any(True for _ in _added(sa.inspect(job), of_jobs=False))}
    for one in (*session.new, *session.dirty):
        found.update(id(target) for target in _added(sa.inspect(one), of_jobs=True) if id(target) in of_all)
    return [job for job in jobs if id(job) in found]


def _added(state: Any, *, of_jobs: bool) -> list[Any]:
    """What was put into the relationships of an object: all of them, or those that lead to jobs."""
    of: InstanceState[Any] = state
    names = _relationships(of.mapper, of_jobs)
    return [one for name in names for one in cast(Any, of.attrs[name].history.added or ()) if one is not None]


@lru_cache(maxsize=512)
def _relationships(mapper: Mapper[Any], of_jobs: bool) -> tuple[str, ...]:
    """The names of those that a flush writes."""
    return tuple(
        one.key
        for one in mapper.relationships
        if not one.viewonly and (not of_jobs or issubclass(one.mapper.class_, JobMixin))
    )
