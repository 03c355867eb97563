"""The search field of all pages: it finds a job by its id, the jobs of a row, other things by a part of their name, and commands."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeAlias

import sqlalchemy as sa

from ...arguments.subjects import Subject
from ...models import TASK_GROUP, status_literal
from ...rules.lifecycle import JobStatus
from ...sql.limits.state import is_later
from ...sql.parts import table_of
from ...sql.readings.depths import first_of_turns, queue_names
from ...sql.workers import EVERY_QUEUE
from ..actions.schedules import reached_schedules
from ..actions.workflows import reached_workflows
from ..filters import seen_in_archive
from ..query import Query, as_id
from ..refusals import BadInput
from ..request import ONE, Elsewhere, Page, PageContext
from ..shared import Kept
from .workflows import NEWEST

#: Names are searched in the statistics of this time. They are kept for some seconds, because a busy day has 300,000 rows.
_LATELY = timedelta(days=1)
_KEPT: Kept[list[tuple[str, str]]] = Kept(15.0)
#: The names of each kind that are shown, and the queues with queued jobs that are searched.
_MOST, _QUEUES = 10, 1_000
#: The numbers of jobs whose keys are searched: the newest jobs, and the running, failed and later jobs each.
_NEWEST, _OTHERS = 10_000, 1_000
#: The numbers of keys of ready jobs that are searched: from the first key on, and from the searched text on.
_TURNS, _NEXT = 1_000, 100
_KEYS: Kept[list[tuple[str, str]]] = Kept(15.0)
#: A kind, the column of its names, and criteria.
_Source: TypeAlias = tuple[str, Any, list[Any]]
_KINDS = ("task", "queue", "worker", "schedule", "workflow", "key")
#: The commands that start a search, as in "pause mail": names of actions.
_COMMANDS = ("pause", "resume")


def read_find(context: PageContext) -> dict[str, Any]:
    """Raises Elsewhere if only one meaning is possible, unless the address says `list`. Else the page asks which is meant."""
    query, asked = context.query, context.query.one("q")
    shown: dict[str, Any] = {
        "asked": asked, "is_id": False, "found": [], "is_cut": False, "commands": [], "most": _MOST, "newest": _NEWEST,
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
        raise Elsewhere(*_link(context, exact[0], asked))
    with suppress(ValueError):
        if ":" in asked and not names and Subject.parse(asked):
            if not query.one("list"):
                raise Elsewhere("/jobs", Query([("subject", asked)]))
            names = [("subject", asked)]
    shown["is_cut"] = any([kind for kind, _ in names].count(kind) >= _MOST for kind in _KINDS)
    shown["found"] = [(kind, name, *_link(context, kind, name)) for kind, name in names]
    return shown


def _link(context: PageContext, kind: str, name: str) -> tuple[str, Query]:
    """The page of a key if the viewer may see it, else the list of the thing or of its jobs."""
    if kind == "key" and not context.access.is_partial:
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

    Names come from the statistics of the last day, workers, schedules, limits, the newest workflows, and the keys of jobs.
    """
    workflow = context.tables.workflow
    is_new = workflow.id > sa.select(sa.func.max(workflow.id) - NEWEST).scalar_subquery()
    sources: list[_Source] = [("workflow", workflow.name, [is_new, *reached_workflows(context)])]
    names: set[tuple[str, str]] = set()
    if not context.access.is_partial:
        sources += _sources_of_all(context)
        lately = [pair for pair in _of_lately(context) if context.queues is None or pair[0] in context.queues]
        both = {*(("queue", queue) for queue, _ in lately), *(("task", task) for _, task in lately)}
        names = {(kind, name) for kind, name in both if part.lower() in name.lower()}
    names |= _read(context, sources, part, _MOST) | {("key", key) for key in _keys(context, part)}
    found: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for kind, name in sorted(names, key=lambda pair: (pair[1] != part, pair[1])):
        found[kind].append(name)
    return [(kind, name) for kind, some in found.items() for name in some[:_MOST]]


def _of_lately(context: PageContext) -> list[tuple[str, str]]:
    """The queues and tasks of the jobs that have ended within the last day."""
    stat = context.tables.stat
    pairs = sa.select(stat.queue, stat.task).where(stat.seconds == 60, stat.at > sa.func.now() - _LATELY).distinct()
    read = context.connection.execute
    return _KEPT.get(context.connection, context.job, lambda: [(row.queue, row.task) for row in read(pairs)])


def _keys(context: PageContext, part: str) -> set[str]:
    """The keys that contain this text, of jobs that the viewer may see."""
    job, table = context.job, table_of(context.job)
    first = sa.select(job.queue, job.concurrency_key.label("key"))
    newest = first.order_by(job.id.desc())

    def read(*pages: Any) -> list[tuple[str, str]]:
        # The key is compared afterwards: a condition on it in the query could read a whole index.
        found = sa.union(*(sa.select(page.subquery()) for page in pages))
        return [(row.queue, row.key) for row in context.connection.execute(found) if row.key is not None]

    def ready(most: int, *since: sa.ColumnElement[bool]) -> Any:
        turn = first_of_turns(job, queue_names(job, _QUEUES, context.queues), table.c.id, most, since=since)
        return sa.select(turn.c.queue, turn.c.key).limit(_TURNS)

    if context.access.is_partial:
        found = read(first.where(_is_new(context), *context.mine()))
    else:
        some = (newest.where(job.status == status_literal(status)) for status in (JobStatus.RUNNING, JobStatus.FAILED))
        pages = (newest.limit(_NEWEST), *(page.limit(_OTHERS) for page in some), ready(_TURNS))
        later = first.where(is_later(table)).order_by(job.queue, job.run_at).limit(_OTHERS)
        found = _KEYS.get(context.connection, (job, context.queues), lambda: read(*pages, later))
        found = [*found, *read(ready(_NEXT, table.c.concurrency_key >= part))]
    of_mine = (key for queue, key in found if context.queues is None or queue in context.queues)
    return {key for key in of_mine if part.lower() in key.lower() and not key.startswith(TASK_GROUP)}


def _is_new(context: PageContext) -> sa.ColumnElement[bool]:
    job = context.job
    return job.id > sa.select(sa.func.max(job.id) - _NEW).correlate(None).scalar_subquery()


def _read(context: PageContext, sources: Iterable[_Source], part: str, most: int) -> set[tuple[str, str]]:
    """The kinds and names of these sources that contain `part`: for each source the first `most`."""
    statements = []
    for number, (kind, name, where) in enumerate(sources):
        mine = [] if kind != "queue" or context.queues is None else [name.in_(sorted(context.queues))]
        named = sa.select(sa.literal(kind, sa.Text).label("kind"), name.label("name"))
        matching = named.where(name.icontains(part, autoescape=True), *mine, *where)
        of_kind = matching.group_by(name).order_by(name != part, name).limit(most).subquery(f"of_{number}")
        statements.append(sa.select(of_kind))
    return {(row.kind, row.name) for row in context.connection.execute(sa.union(*statements))}


def _sources_of_all(context: PageContext) -> list[_Source]:
    """The sources for viewers who may see the jobs of all tenants."""
    tables, queues = context.tables, context.queues
    worker, limit, key, state = tables.worker, tables.limit, tables.key, tables.limit_state
    process = sa.func.concat(worker.host, ":", sa.cast(worker.pid, sa.Text), type_=sa.Text())
    served = sa.select(sa.func.unnest(worker.queues).label("name")).subquery("served")
    found: list[_Source] = [
        ("queue", served.c.name, [served.c.name != EVERY_QUEUE]),
        ("queue", queue_names(context.job, _QUEUES).c.queue, []),
        ("queue", limit.name, [limit.owner == "queue"]),
        ("schedule", tables.schedule.name, reached_schedules(context)),
    ]
    if queues is not None:
        own = sorted(queues)
        return [
            *found,
            *(("key", of.key, [of.owner == "queue", of.name.in_(own), of.key != ""]) for of in (key, state)),
            ("worker", process, [worker.queues.overlap([*own, EVERY_QUEUE])]),
        ]
    known = sa.select(sa.func.jsonb_object_keys(worker.tasks).label("name")).subquery("known")
    return [
        *found,
        ("task", known.c.name, []),
        ("task", limit.name, [limit.owner == "task"]),
        *(
            ("key", of.key, [of.key != "", of.owner.not_like("queue:%"), of.owner.not_like("task:%")])
            for of in (key, state)
        ),
        ("worker", process, []),
    ]


# ---- Suggestions in the fields of filters.

#: The ids below the newest whose jobs have the suggested names, the most names of a field, and the characters of tags that are read.
_NEW, _SUGGESTED, _TAGS = 1_000, 200, 1_000
_SUGGESTIONS: Kept[dict[str, list[str]]] = Kept(15.0)


def suggestions(context: PageContext) -> dict[str, list[str]]:
    """The known tasks, queues, tags and workers, by the field of a filter, from workers, limits, queued jobs and the newest jobs. It has no
    tags if the application masks values.
    """
    if context.access.is_partial:
        found = _suggested(context)
    else:
        found = _SUGGESTIONS.get(context.connection, (context.job, context.queues), lambda: _suggested(context))
    return found if context.options.format_args is None else {**found, "tag": []}


def _suggested(context: PageContext) -> dict[str, list[str]]:
    job = context.job
    tags = sa.func.left(sa.cast(job.meta["tags"], sa.Text), _TAGS)
    rows = context.connection.execute(
        sa.select(job.queue, job.task, tags).where(_is_new(context), *context.mine()).distinct()
    )
    found: dict[str, set[str]] = {"task": set(), "queue": set(), "tag": set(), "worker": set()}
    for queue, task, text in rows:
        found["queue"].add(queue)
        found["task"].add(task)
        with suppress(ValueError, RecursionError, TypeError):
            found["tag"].update(tag for tag in json.loads(text) if isinstance(tag, str))
    if not context.access.is_partial:
        sources = [source for source in _sources_of_all(context) if source[0] in found]
        for kind, name in _read(context, sources, "", _SUGGESTED):
            found[kind].add(name)
    return {field: sorted(names)[:_SUGGESTED] for field, names in found.items()}


FIND = Page("find", "Find", "/find", read_find, in_menu=False, is_live=False)
