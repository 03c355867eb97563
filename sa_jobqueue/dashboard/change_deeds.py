"""Changing what a job is to do, and running a copy of one."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from ..errors import OptionError, PayloadError
from ..options import MAX_PRIORITY
from ..statements import copy_jobs, edit_jobs, retry_jobs
from .deeds import Deed, Done
from .look import Look
from .page import Missing
from .query import Query
from .refusals import BadInput
from .strings import text
from .workflow_deeds import reopened

__all__ = ["CHANGE_DEEDS"]

_ARGS = 'a JSON object, as in {"order_id": 7}'


def _edit(look: Look) -> Done:
    """Change one job; with `again`, run it again as it is then. All of it, or nothing."""
    job, query = look.job, look.query
    mine = [job.id == _id(query), *look.mine()]
    changes = _changes(look)
    again = query.one("again") == "yes"
    if again and not look.access.may("retry"):
        raise BadInput("again", "yes", "nothing: you may not run jobs again")
    if not changes and not again:
        raise BadInput("the form", "nothing new", "arguments, a queue, a priority or a time")
    done = Done(1)
    if again:
        seen = list(look.connection.scalars(sa.select(job.id).where(*mine)))
        if not reopened(look, seen):
            done = _changed(look, retry_jobs(*mine, locked="skip", job=job))
    if changes and done.count:
        try:
            statement = edit_jobs(*mine, **changes, locked="skip", job=job)
        except (PayloadError, OptionError) as error:
            raise BadInput("the form", ", ".join(changes), f"values that a job can have ({error})") from error
        done = _changed(look, statement)
        if done.count and look.connection.scalar(sa.select(job.id).where(*mine)) is None:
            raise BadInput("the form", ", ".join(changes), "values with which you may still see the job")
    return done


def _changed(look: Look, statement: Any) -> Done:
    rows = look.connection.execute(statement).all()
    changed = sum(row.changed for row in rows)
    return Done(changed, len(rows) - changed)


def _changes(look: Look) -> dict[str, Any]:
    """What is to become of the job. An empty field leaves what is there."""
    query = look.query
    found: dict[str, Any] = {}
    if given := query.one("args"):
        found["args"] = _object(given)
    if queue := query.one("queue"):
        if look.queues is not None and queue not in look.queues:
            raise BadInput("queue", queue, f"one of {', '.join(sorted(look.queues))}")
        found["queue"] = queue
    if query.one("priority"):
        found["priority"] = query.number("priority", 0, range(MAX_PRIORITY + 1))
    if (run_at := query.moment("run_at")) is not None:
        found["run_at"] = run_at
    return found


def _object(given: str) -> dict[str, Any]:
    try:
        found = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise BadInput("args", given, f"{_ARGS} ({error})") from error
    if not isinstance(found, dict):
        raise BadInput("args", given, _ARGS)
    return found


def _copy(look: Look) -> Done:
    """Enqueue a copy of one job, and go to it."""
    job = look.job
    rows = look.connection.execute(copy_jobs(job.id == _id(look.query), *look.mine(), job=job)).all()
    return Done(len(rows), to=f"/jobs/{rows[0].id}" if rows else None)


def _id(query: Query) -> int:
    named = query.id("id")
    if named is None:
        raise Missing(text("missing.job", id="?"))
    return named


#: By name. The arguments are not in the audit: who may read that need not be one who may see them.
CHANGE_DEEDS = {
    deed.name: deed
    for deed in (
        Deed("edit", "edit", _edit, target=("id", "queue", "priority", "run_at", "again")),
        Deed("copy", "copy", _copy),
    )
}
