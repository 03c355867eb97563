"""The filter of the jobs, as an address or a form says it, and the criteria that it means: for looks and for actions."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from ..objects import Subject
from ..statements.chosen import Status, criteria_of
from .look import Look
from .refusals import BadInput

__all__ = ["FILTERS", "chosen"]

#: The names of a filter's values. All of them narrow what is shown, and what is done.
FILTERS = (
    "id", "status", "queue", "task", "tag", "subject", "key", "error", "args", "workflow", "older_than", "newer_than", "from",
)  # fmt: skip


def chosen(look: Look) -> list[sa.ColumnElement[bool]]:
    """The criteria of the jobs that the viewer asks for, and may see. Raises BadInput."""
    query, job = look.query, look.job
    found: list[sa.ColumnElement[bool]] = []
    if ids := query.ids("id"):
        # One parameter, because a statement takes 65,535 at most.
        found.append(job.id == sa.func.any(sa.literal(ids, sa.ARRAY(sa.BigInteger))))
    if since := query.id("from"):
        found.append(job.id >= since)
    if workflow := query.id("workflow"):
        found.append(job.workflow_id == workflow)
    named: dict[str, Any] = {name: query.all(name) for name in ("queue", "task", "tag", "key", "error")}
    found += criteria_of(
        **named,
        status=[_status(one) for one in query.all("status")],
        subject=[_subject(one) for one in query.all("subject")],
        args=_args(look),
        older_than=query.duration("older_than"),
        newer_than=query.duration("newer_than"),
        job=job,
    )
    return [*found, *look.mine()]


def _status(text: str) -> Status:
    try:
        return Status(text)
    except ValueError as error:
        raise BadInput("status", text, f"one of {', '.join(Status)}") from error


def _subject(text: str) -> str:
    if ":" in text:
        try:
            Subject.parse(text)
        except ValueError as error:
            raise BadInput("subject", text, "a type and the key of a row, as in Order:7, or a type alone") from error
    return text


def _args(look: Look) -> dict[str, Any] | None:
    """The arguments that a job must have. A viewer who may not see them must not find them by guessing, either."""
    if not (given := look.query.one("args")):
        return None
    if look.options.format_args is not None and not look.access.may("search_arguments"):
        raise BadInput("args", given, "nothing: arguments are masked here, and you may not search them")
    try:
        found = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise BadInput("args", given, 'a JSON object, as in {"order_id": 7}') from error
    if not isinstance(found, dict):
        raise BadInput("args", given, 'a JSON object, as in {"order_id": 7}')
    return found
