"""The search field of all pages: it finds a job by its id, the jobs of a row, other things by a part of their name, and commands."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ...arguments.subjects import Subject
from ...sql.readings.depths import queue_names
from ...sql.workers import EVERY_QUEUE
from ..actions.schedules import reached_schedules
from ..actions.workflows import reached_workflows
from ..filters import seen_in_archive
from ..query import Query, as_id
from ..refusals import BadInput
from ..request import ONE, Elsewhere, Page, PageContext
from .workflows import NEWEST

#: Names are searched in the statistics of this time.
_LATELY = timedelta(days=1)
#: The names of each kind that are shown, and the queues with queued jobs that are searched.
_MOST, _QUEUES = 10, 1_000
_KINDS = ("task", "queue", "worker", "schedule", "workflow", "key")
#: The commands that start a search, as in "pause mail": names of actions.
_COMMANDS = ("pause", "resume")


def read_find(context: PageContext) -> dict[str, Any]:
    """Raises Elsewhere if only one meaning is possible, unless the address says `list`. Else the page asks which is meant."""
    query, asked = context.query, context.query.one("q")
    shown: dict[str, Any] = {
        "asked": asked, "is_id": False, "found": [], "is_cut": False, "commands": [], "most": _MOST,
    }  # fmt: skip
    if not asked:
        return shown
    with suppress(BadInput):
        number = as_id("q", asked)
        if not _exists(context, number):
            return {**shown, "is_id": True}
        shown["found"] = [("job", asked, f"/jobs/{number}", Query())]
        if query.one("list"):
            return shown
        raise Elsewhere(f"/jobs/{number}")
    names = _names(context, asked)
    verb, _, rest = asked.partition(" ")
    if rest and verb.lower() in _COMMANDS and context.access.may("pause"):
        kinds = ("queue", "task") if context.queues is None else ("queue",)
        shown["commands"] = [
            (verb.lower(), kind, name) for kind, name in _names(context, rest.strip()) if kind in kinds
        ]
    exact = [kind for kind, name in names if name == asked]
    if len(exact) == 1 and not query.one("list"):
        raise Elsewhere(*_link(exact[0], asked))
    with suppress(ValueError):
        if ":" in asked and not names and Subject.parse(asked):
            if not query.one("list"):
                raise Elsewhere("/jobs", Query([("subject", asked)]))
            names = [("subject", asked)]
    shown["is_cut"] = any(sum(kind == other for other, _ in names) >= _MOST for kind, _ in names)
    shown["found"] = [(kind, name, *_link(kind, name)) for kind, name in names]
    return shown


def _link(kind: str, name: str) -> tuple[str, Query]:
    """The page of this key, or the list of this thing or of its jobs."""
    if kind == "key":
        return f"/keys/{name}", Query()
    is_listed = kind in ("schedule", "workflow")
    return (f"/{kind}s", Query([("name", name)])) if is_listed else ("/jobs", Query([(kind, name)]))


def _exists(context: PageContext, id: int) -> bool:
    """Whether the table or the archive has a job with this id that the viewer may see."""

    def has(seen: PageContext) -> bool:
        found = sa.select(seen.job.id).where(seen.job.id == id, *seen.mine()).limit(ONE)
        return seen.connection.scalar(found) is not None

    return has(context) or ((archived := seen_in_archive(context)) is not None and has(archived))


def _names(context: PageContext, part: str) -> list[tuple[str, str]]:
    """The kind and the name of the things that the viewer may see whose name contains this text: equal names first.

    Names come from the statistics of the last day, workers, schedules, limits, and the newest workflows.
    """
    tables, queues = context.tables, context.queues
    workflow = tables.workflow
    is_new = workflow.id > sa.select(sa.func.max(workflow.id) - NEWEST).scalar_subquery()
    sources: list[tuple[str, Any, list[Any]]] = [("workflow", workflow.name, [is_new, *reached_workflows(context)])]
    if not context.access.is_partial:
        sources += _sources_of_all(context)
    statements = []
    for number, (kind, name, where) in enumerate(sources):
        mine = [name.in_(sorted(queues))] if kind == "queue" and queues is not None else []
        named = sa.select(sa.literal(kind, sa.Text).label("kind"), name.label("name"))
        matching = named.where(name.icontains(part, autoescape=True), *mine, *where)
        of_kind = matching.group_by(name).order_by(name != part, name).limit(_MOST).subquery(f"of_{number}")
        statements.append(sa.select(of_kind))
    rows: Sequence[Any] = context.connection.execute(sa.union(*statements)).all()
    found: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for kind, name in sorted(rows, key=lambda row: (row.name != part, row.name)):
        found[kind].append(name)
    return [(kind, name) for kind, some in found.items() for name in some[:_MOST]]


def _sources_of_all(context: PageContext) -> list[tuple[str, Any, list[Any]]]:
    """Kinds, columns of names, and criteria, for viewers who may see the jobs of all tenants."""
    tables, queues = context.tables, context.queues
    stat, worker, limit, key = tables.stat, tables.worker, tables.limit, tables.key
    lately = [stat.seconds == 60, stat.at > sa.func.now() - _LATELY]
    process = sa.func.concat(worker.host, ":", sa.cast(worker.pid, sa.Text), type_=sa.Text())
    served = sa.select(sa.func.unnest(worker.queues).label("name")).subquery("served")
    waiting = queue_names(context.job, _QUEUES)
    found: list[tuple[str, Any, list[Any]]] = [
        ("queue", stat.queue, lately),
        ("queue", served.c.name, [served.c.name != EVERY_QUEUE]),
        ("queue", waiting.c.queue, []),
        ("queue", limit.name, [limit.owner == "queue"]),
        ("schedule", tables.schedule.name, reached_schedules(context)),
    ]
    if queues is not None:
        own = sorted(queues)
        return [
            *found,
            ("task", stat.task, [*lately, stat.queue.in_(own)]),
            ("key", key.key, [key.owner == "queue", key.name.in_(own)]),
            ("worker", process, [worker.queues.overlap([*own, EVERY_QUEUE])]),
        ]
    known = sa.select(sa.func.jsonb_object_keys(worker.tasks).label("name")).subquery("known")
    return [
        *found,
        ("task", stat.task, lately),
        ("task", known.c.name, []),
        ("task", limit.name, [limit.owner == "task"]),
        ("key", key.key, []),
        ("worker", process, []),
    ]


FIND = Page("find", "Find", "/find", read_find, in_menu=False, is_live=False)
