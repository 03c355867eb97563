"""Numbers of waiting jobs, their tasks, and jobs that should be deleted by now.

A count that may be large reads an index and stops at `CAP`, so each statement takes milliseconds, however many jobs there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import sqlalchemy as sa

from ...models import Job, JobMixin, companions_of, status_literal
from ...rules.lifecycle import JobStatus
from ..claims import PRIORITIES
from ..ends import has_run_out, is_held
from ..limits.state import is_keyless, is_later, is_ready
from ..parts import ONE, ZERO, array, columns_of, count_of, epoch, in_calendar, in_seconds, materialized, rows, table_of
from .stats import By

#: Where counting stops: a number of this size means "more than 10,000".
CAP = 10_001

#: Queues that are read.
_QUEUES = 10_000
#: More queues than there can be.
_ALL = 2**31 - 1
#: If a queue has more ready jobs than are counted, the first jobs of so many keys and priorities are read.
_TURNS = 1_000

#: A time before which no job is due, for PostgreSQL has no difference to -infinity before version 17.
_EARLIEST: sa.ColumnElement[Any] = sa.literal_column("timestamptz '0002-01-01 00:00:00+00'")


def capped(number: int) -> str:
    """A count as people read it: 9,999 or 10,000+."""
    return f"{CAP - 1:,}+" if number >= CAP else f"{number:,}"


def capped_sum(numbers: Iterable[int]) -> str:
    """The sum of such counts; it may be more where one of them was not counted to its end."""
    numbers = list(numbers)
    more = "+" if max(numbers, default=0) >= CAP else ""
    return f"{sum(min(number, CAP - 1) for number in numbers):,}{more}"


def purge_overdue(*, cap: int = CAP, job: type[JobMixin] = Job) -> sa.Executable:
    """One row: how many finished jobs should have been deleted by now, counted up to `cap`, and the `seconds` since the first
    should have been. Where they are many, or their time was over long ago, cleanup is behind.
    """
    columns = table_of(job).c
    since = sa.func.greatest(columns.purge_at, _EARLIEST)
    over = (
        sa.select(since.label("purge_at"))
        .where(columns.purge_at <= sa.func.now())
        .order_by(columns.purge_at)
        .limit(sa.bindparam("cap", cap, sa.Integer))
        .subquery("over")
    )
    age = sa.func.extract("epoch", sa.func.now() - sa.func.min(over.c.purge_at))
    return sa.select(
        sa.func.count().label("rows"), sa.type_coerce(sa.func.coalesce(age, 0), sa.Float).label("seconds")
    ).select_from(over)


def since_first_job(*, job: type[JobMixin] = Job) -> sa.Executable:
    """Seconds since the oldest job was enqueued, or since a worker first counted a job, if that is longer ago; NULL without jobs."""
    stat = companions_of(job).stat
    columns = table_of(job).c
    oldest = sa.select(columns.created_at).order_by(columns.id).limit(ONE).scalar_subquery()
    counted = sa.select(
        sa.func.min(stat.at + stat.seconds * sa.literal_column("interval '1 second'"))
    ).scalar_subquery()
    return sa.select(sa.type_coerce(sa.func.extract("epoch", sa.func.now() - sa.func.least(oldest, counted)), sa.Float))


def queue_depths(
    *, cap: int = CAP, queues: int = _QUEUES, only: Collection[str] | None = None, job: type[JobMixin] = Job
) -> sa.Executable:
    """A row per queue that has queued jobs, by name: `queued` and `due`, each counted up to `cap`, and `oldest_due_age`, the
    seconds since which the first due job waits; NULL if none is due. `queues`: rows at most. `only`: a row for each of these queues.

    The names are found by one probe of each index of queued jobs, and each (queue, priority) is read from the front. Jobs with a
    concurrency key are ordered by key first: where `cap` of them are ready, the age is that of the oldest among these, and among the
    first jobs of 1,000 keys and priorities.
    """
    table = table_of(job)
    columns = table.c
    limit = sa.bindparam("cap", cap, sa.Integer)
    names = queue_names(job, queues, only)
    of_queue = columns.queue == names.c.queue
    slot = rows("slot", priority=array("priorities", PRIORITIES, sa.SmallInteger()))
    due = (
        sa.select(columns.run_at)
        .where(is_keyless(table), of_queue, columns.priority == slot.c.priority, columns.run_at <= sa.func.now())
        .order_by(columns.run_at)
        .correlate(names, slot)
    )
    counted = due.limit(limit).lateral("due")
    all_due = (
        sa.select(ONE).select_from(slot.join(counted, sa.true())).limit(limit).correlate(names).subquery("all_due")
    )
    keyless = sa.select(sa.func.count().label("due")).select_from(all_due).lateral("keyless")
    front = due.limit(ONE).lateral("front")
    oldest: Any = sa.select(_first(front.c.run_at)).select_from(slot.join(front, sa.true()))
    ready = _ready(job, names, limit)
    coming = sa.select(columns.run_at).where(is_later(table), of_queue, columns.run_at <= sa.func.now())
    later = _summary(coming.order_by(columns.run_at).limit(limit).correlate(names), "later")
    turns = first_of_turns(job, ready, columns.run_at, min(cap, _TURNS), ready.c.due >= limit)
    # The turns are read breadth first, so that each queue has its share of them.
    turn = sa.select(turns).limit(sa.bindparam("turns", min(cap, _TURNS), sa.Integer)).subquery("some_turns")
    first_turn = sa.select(turn.c.queue, _first(turn.c.run_at).label("oldest")).group_by(turn.c.queue).subquery("turns")

    number = keyless.c.due + ready.c.due + later.c.due
    without_key = count_of(sa.select(ONE).where(is_keyless(table), of_queue).limit(limit).correlate(names))
    not_ready = count_of(sa.select(ONE).where(is_later(table), of_queue).limit(limit).correlate(names))
    of_keyless = oldest.correlate(names).scalar_subquery()
    age = sa.func.extract(
        "epoch", sa.func.now() - sa.func.least(of_keyless, ready.c.oldest, first_turn.c.oldest, later.c.oldest)
    )
    return (
        sa.select(
            names.c.queue,
            # Where that number is due, at least as many are queued.
            sa.case((number >= limit, limit), else_=sa.func.least(without_key + ready.c.due + not_ready, limit)).label(
                "queued"
            ),
            sa.func.least(number, limit).label("due"),
            sa.type_coerce(age, sa.Float).label("oldest_due_age"),
        )
        .select_from(
            names.join(keyless, sa.true())
            .join(later, sa.true())
            .join(ready, ready.c.queue == names.c.queue)
            .outerjoin(first_turn, first_turn.c.queue == names.c.queue)
        )
        .order_by(names.c.queue)
    )


def queued_tasks(*, sample: int, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per queue and task of queued jobs: queue, task, and how many there are `jobs` among those looked at.

    Of each queue and priority these are the first `sample` that are due, and the first `sample` that will be: a worker that does
    not know a job's task gives it back for at most five minutes. Of jobs with a concurrency key that are ready, they are the first of
    each key and priority, up to ten times `sample` of a queue; of the others, the first `sample` of a queue that are due, and the first
    that will be.
    """
    table = table_of(job)
    columns = table.c
    names = queue_names(job, _QUEUES)
    slot = rows("slot", priority=array("priorities", PRIORITIES, sa.SmallInteger()))
    number = sa.bindparam("sample", sample, sa.Integer)

    def some(when: sa.ColumnElement[bool]) -> list[Any]:
        first = (
            sa.select(columns.task).where(columns.queue == names.c.queue, when).order_by(columns.run_at).limit(number)
        )
        of_slot = first.where(is_keyless(table), columns.priority == slot.c.priority).correlate(names, slot)
        of_queue = first.where(is_later(table)).correlate(names)
        page, later = of_slot.lateral("some"), of_queue.lateral("later")
        return [
            sa.select(names.c.queue, page.c.task).select_from(names.join(slot, sa.true()).join(page, sa.true())),
            sa.select(names.c.queue, later.c.task).select_from(names.join(later, sa.true())),
        ]

    turn = first_of_turns(job, names, columns.task, sample * len(PRIORITIES))
    parts = [
        *some(columns.run_at <= sa.func.now()),
        *some(columns.run_at > sa.func.now()),
        sa.select(turn.c.queue, turn.c.task),
    ]
    found = sa.union_all(*parts).subquery("found")
    return (
        sa.select(found.c.queue, found.c.task, sa.func.count().label("jobs"))
        .group_by(found.c.queue, found.c.task)
        .order_by(found.c.queue, found.c.task)
    )


def due_queues(*, job: type[JobMixin] = Job) -> sa.Executable:
    """The names of the queues that have due jobs. Each queue with queued jobs costs some probes of their indexes."""
    table = table_of(job)
    columns = table.c
    names = queue_names(job, _ALL)
    slot = rows("slot", priority=array("priorities", PRIORITIES, sa.SmallInteger()))

    def first(*where: sa.ColumnElement[bool]) -> sa.Select[Any]:
        return sa.select(ONE).where(columns.queue == names.c.queue, *where).limit(ONE).correlate(names, slot)

    # A probe for each priority: a single condition on all priorities would read jobs of the future.
    keyless = first(is_keyless(table), columns.priority == slot.c.priority, columns.run_at <= sa.func.now())
    found = keyless.order_by(columns.run_at).lateral("found")
    first_keyless = sa.select(ONE).select_from(slot.join(found, sa.true())).limit(ONE).correlate(names)
    ready, later = first(is_ready(table)), first(is_later(table), columns.run_at <= sa.func.now())
    # Not EXISTS: for that the planner may read all jobs once, and hash their queues.
    any_due = sa.func.coalesce(*(page.scalar_subquery() for page in (first_keyless, ready, later)))
    return sa.select(names.c.queue).where(names.c.queue.is_not(None), any_due.is_not(None))


def queue_names(job: type[JobMixin], most: int, only: Collection[str] | None = None) -> sa.CTE:
    """The names of the queues with queued jobs, followed by NULL; or `only` these. Each name costs a probe of each index of queued jobs."""
    if only is not None:
        of = rows("given", queue=array("queue_names", list(only), sa.Text()))
        return sa.select(of.c.queue).cte("names")
    table = table_of(job)
    columns = table.c

    def first(*after: sa.ColumnElement[bool]) -> Any:
        of_indexes = (
            sa.select(columns.queue).where(kind, *after)
            for kind in (is_keyless(table), is_ready(table), is_later(table))
        )
        return [page.order_by(columns.queue).limit(ONE) for page in of_indexes]

    start = sa.func.least(*(page.scalar_subquery() for page in first()), type_=columns.queue.type)
    names = sa.select(start.label("queue"), ONE.label("number")).cte("names", recursive=True)
    following = sa.func.least(
        *(page.correlate(names).scalar_subquery() for page in first(columns.queue > names.c.queue)),
        type_=columns.queue.type,
    )
    more = sa.select(following, names.c.number + ONE)
    return names.union_all(
        more.where(names.c.queue.is_not(None), names.c.number < sa.bindparam("queues", most, sa.Integer))
    )


def _ready(job: type[JobMixin], names: sa.CTE, limit: sa.ColumnElement[int]) -> sa.CTE:
    """For each queue: how many jobs with a key are ready, and since when the oldest of the counted jobs is due."""
    table = table_of(job)
    columns = table.c
    page = (
        sa.select(columns.run_at).where(is_ready(table), columns.queue == names.c.queue).limit(limit).correlate(names)
    )
    found = _summary(page, "found")
    return materialized(
        sa.select(names.c.queue, found.c.due, found.c.oldest)
        .select_from(names.join(found, sa.true()))
        .where(names.c.queue.is_not(None)),
        "ready",
    )


def first_of_turns(
    job: type[JobMixin],
    queues: sa.CTE,
    seen: sa.Column[Any],
    most: int,
    *where: sa.ColumnElement[bool],
    since: Sequence[Any] = (),
) -> sa.CTE:
    """The first ready job of each key and priority, at most `most` in each queue: the queue, `key`, and the column `seen` of the job.

    Each job costs a probe of the index. `since`: conditions for the place at which to begin.
    """
    table = table_of(job)
    columns = table.c
    turn = -columns.priority

    def front(of: sa.CTE, *after: sa.ColumnElement[bool]) -> Any:
        return (
            sa.select(columns.concurrency_key.label("key"), turn.label("turn"), seen)
            .where(is_ready(table), columns.queue == of.c.queue, *after)
            .order_by(columns.concurrency_key, turn, columns.run_at)
            .limit(ONE)
            .correlate(of)
            .lateral("front")
        )

    start = front(queues, *since)
    begin = (
        sa.select(queues.c.queue, *start.c, ONE.label("number"))
        .select_from(queues.join(start, sa.true()))
        .where(*where)
    )
    turns = begin.cte("turn", recursive=True)
    following = front(turns, sa.tuple_(columns.concurrency_key, turn) > sa.tuple_(turns.c.key, turns.c.turn))
    more = sa.select(turns.c.queue, *following.c, turns.c.number + ONE).select_from(turns.join(following, sa.true()))
    return turns.union_all(more.where(turns.c.number < sa.bindparam("turns", most, sa.Integer)))


def _summary(page: sa.Select[Any], name: str) -> sa.FromClause:
    """How many jobs are on the page, and since when the oldest of them is due."""
    its = page.subquery("page").c
    return sa.select(sa.func.count().label("due"), _first(its.run_at).label("oldest")).lateral(name)


def _first(time: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    # A job that was enqueued after this transaction began may be ready, and due a moment later.
    return sa.func.min(sa.func.least(sa.func.greatest(time, _EARLIEST), sa.func.now()))


# ---- Numbers for a chart: jobs of a status by queue, recently enqueued jobs, and how late schedules are. Each reads an index, up to a cap.

#: Seconds for which a schedule may be due: a live worker acts within a second or two, without NOTIFY within 20.
_IN_TIME = 60.0


def count_by_queue(status: JobStatus, *, cap: int = CAP, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per queue: the `number` of jobs of this status, among the last `cap` of all queues. For running and failed jobs."""
    columns = table_of(job).c
    last = (
        sa.select(columns.queue)
        .where(columns.status == status_literal(status))
        .order_by(columns.id.desc())
        .limit(sa.bindparam("cap", cap, sa.Integer))
        .subquery("last")
    )
    return sa.select(last.c.queue, sa.func.count().label("number")).group_by(last.c.queue).order_by(last.c.queue)


def arrivals(
    *, within: timedelta, by: By = "queue", queues: Collection[str] = (), cap: int = CAP, job: type[JobMixin] = Job
) -> sa.Executable:
    """A row per queue or task: its name, the `number` of jobs that were enqueued `within` this time, among the last `cap` of all queues;
    and the `seconds` that these cover, fewer where there were more jobs. `queues`: counts only their jobs. Jobs that are deleted as they
    complete are not there to be counted.
    """
    columns = table_of(job).c
    most = sa.bindparam("cap", cap, sa.Integer)
    begin = in_seconds(-within.total_seconds(), name="within_seconds")
    last = (
        sa.select(columns[by], *([columns.queue] if queues and by != "queue" else []), columns.created_at)
        .order_by(columns.id.desc())
        .limit(most)
        .subquery("last")
    )
    number = sa.func.count().filter(last.c.queue.in_(list(queues))) if queues else sa.func.count()
    recent = (
        sa.select(
            last.c[by],
            number.label("number"),
            *([sa.func.count().label("all")] if queues else []),
            sa.func.min(last.c.created_at).label("first"),
        )
        .where(last.c.created_at >= begin)
        .group_by(last.c[by])
        .subquery("recent")
    )
    # Of fewer jobs than the cap, none is missing.
    whole = sa.func.sum(recent.c["all" if queues else "number"]).over() < most
    since = sa.case((whole, begin), else_=sa.func.min(recent.c.first).over())
    seconds = sa.func.greatest(epoch(sa.func.now() - since), sa.literal_column("1.0", sa.Float))
    return sa.select(recent.c[by], recent.c.number, sa.type_coerce(seconds, sa.Float).label("seconds")).order_by(
        recent.c[by]
    )


def running_jobs(*, cap: int = CAP, job: type[JobMixin] = Job) -> sa.Executable:
    """A row per queue and worker: queue, worker, how many jobs are `running`, and of these those whose lease has `expired`; among
    `cap` of all.
    """
    table = table_of(job)
    held = (
        sa.select(table.c.queue, table.c.worker, has_run_out(table).label("expired"))
        .where(is_held(table))
        .limit(sa.bindparam("cap", cap, sa.Integer))
        .subquery("held")
    )
    expired = sa.func.count().filter(held.c.expired).label("expired")
    return sa.select(held.c.queue, held.c.worker, sa.func.count().label("running"), expired).group_by(
        held.c.queue, held.c.worker
    )


def schedule_lag(*, seen: float = _IN_TIME, job: type[JobMixin] = Job) -> sa.Executable:
    """One row about schedules that are not paused: their number, how many are `behind` and how many `failing`, and for how many
    `seconds` the first of those behind has been due.
    """
    columns = table_of(companions_of(job).schedule).c
    behind = columns.due_at < in_seconds(-seen, name="seen_seconds")
    since = epoch(sa.func.now() - sa.func.min(columns.due_at).filter(behind))
    return sa.select(
        sa.func.count().label("number"),
        sa.func.count().filter(behind).label("behind"),
        sa.func.count().filter(columns.error.is_not(None)).label("failing"),
        sa.type_coerce(sa.func.coalesce(since, sa.literal_column("0.0", sa.Float)), sa.Float).label("seconds"),
    ).where(columns.paused_at.is_(None))


# ---- Counting jobs, by queue.


def count_jobs(
    *where: sa.ColumnExpressionArgument[bool], lately: float = 3_600.0, job: type[JobMixin] = Job
) -> sa.Executable:
    """A row per queue, by name: queue, queued, due, oldest_due_age, blocked, running, completed, failed, cancelled.

    `due` are the queued jobs whose time has come; `oldest_due_age` is how long, in seconds, the first of them has
    waited. completed, failed and cancelled count the jobs that ended within the last `lately` seconds.
    `where` narrows what is counted, as in `select(Job).where(...)`.
    """
    columns = table_of(job).c
    status = columns.status

    def having(*criteria: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        return sa.func.count().filter(sa.and_(*criteria))

    recent = columns.finished_at >= in_seconds(-lately, name="lately_seconds")
    due = sa.and_(status == status_literal(JobStatus.QUEUED), columns.run_at <= sa.func.now())
    # A job that is due since ever (-infinity) has waited since the year 2: there is no difference to infinity before
    # PostgreSQL 17, and no JSON for it.
    since = sa.func.greatest(columns.run_at, sa.literal_column("timestamptz '0002-01-01 00:00:00+00'"))
    oldest = sa.func.extract("epoch", sa.func.now() - sa.func.min(since).filter(due))
    return (
        sa.select(
            columns.queue,
            having(status == status_literal(JobStatus.QUEUED)).label("queued"),
            having(due).label("due"),
            sa.type_coerce(oldest, sa.Float).label("oldest_due_age"),
            having(status == status_literal(JobStatus.BLOCKED)).label("blocked"),
            having(status == status_literal(JobStatus.RUNNING)).label("running"),
            *(
                having(status == status_literal(end), recent).label(end.value)
                for end in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
            ),
        )
        .select_from(job)  # so that a session that is bound by class finds its engine
        .where(*where)
        .group_by(columns.queue)
        .order_by(columns.queue)
    )


# ---- The workers, and running jobs that no worker holds any more.

#: A connection that listens for a worker has this and the worker's id as its application_name.
LISTENS_FOR = "sa-jobqueue "
#: Seconds without a heartbeat after which a worker is stale. Workers send a heartbeat at least every 20 s.
STALE = 60.0

_UUID_LENGTH = 36
_ACTIVITY = sa.table("pg_stat_activity", sa.column("datname"), sa.column("application_name"), schema="pg_catalog")


def list_workers(*, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """A row per worker process that has not left, the oldest first.

    Its columns; `age` and `unseen` in seconds; the number of jobs `running`; whether it is `listening` for wake-ups; and
    whether it is `stale`: unseen for `STALE` seconds, or a lease of its has expired.
    """
    worker = companions_of(job).worker
    jobs = table_of(job).c
    held = (
        sa.select(sa.func.count())
        .where(is_held(table_of(job)), jobs.worker == sa.cast(worker.id, sa.Text))
        .correlate(worker)
    )
    running = held.scalar_subquery()
    expired = held.where(jobs.lease_expires_at <= sa.func.now()).scalar_subquery()
    started = sa.func.extract("epoch", sa.func.now() - worker.started_at)
    seen = sa.func.extract("epoch", sa.func.now() - worker.seen_at)
    listeners = sa.select(sa.func.left(_ACTIVITY.c.application_name, len(LISTENS_FOR) + _UUID_LENGTH)).where(
        _ACTIVITY.c.datname == sa.func.current_database()
    )
    found = sa.select(
        *columns_of(
            worker,
            "id host pid queues concurrency version schema_version lease memory loop_lag pressure drain_requested_at "
            "started_at seen_at slots wanted",
        ),
        sa.cast(started, sa.Float).label("age"),
        sa.cast(seen, sa.Float).label("unseen"),
        sa.or_(seen > STALE, expired > 0).label("stale"),
        running.label("running"),
        sa.func.concat(LISTENS_FOR, sa.cast(worker.id, sa.Text)).in_(listeners).label("listening"),
    ).order_by(worker.started_at, worker.id)
    return cast("sa.Select[Any]", found)


def deployed_at(*, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """When the first of the live workers of the newest version, which the worker has that started last, started; NULL without workers."""
    worker = companions_of(job).worker
    is_live = sa.func.extract("epoch", sa.func.now() - worker.seen_at) <= STALE
    newest = sa.select(worker.version).where(is_live).order_by(worker.started_at.desc()).limit(ONE)
    return sa.select(sa.func.min(worker.started_at)).where(is_live, worker.version == newest.scalar_subquery())


def count_expired(*, job: type[JobMixin] = Job) -> sa.Executable:
    """The number of running jobs whose lease has expired: their worker died or is cut off."""
    return sa.select(sa.func.count()).where(is_held(table_of(job)), has_run_out(table_of(job)))


# ---- Groups of failed jobs with the same task, class of error and first line of the message. For the dashboard and `sa-jobqueue errors`.

#: Failed jobs that are read.
NEWEST_FAILED = 10_000
#: Groups that are shown.
MOST_GROUPS = 50
#: Hours before now whose failures are counted each.
HOURS = 24
#: Characters of the first line of a message that count.
_LINE = 200
#: Words and numbers with a digit, such as ids, times and addresses.
_IDS = r"[\w-]*\d(?:[\w-]|[.,:]\d)*"
#: Also quoted text.
_VARYING = rf"""(?<!\w)(?:''[^'']*''|"[^"]*")|{_IDS}"""


def line_of(last: Any) -> sa.ColumnElement[str]:
    """The first line of the message of an error, with "…" for each text that varies between jobs that fail alike."""
    first = sa.func.split_part(sa.func.coalesce(last["message"].astext, ""), sa.literal_column("E'\\n'"), 1)
    line = sa.func.left(first, _LINE)
    shape, of_name = (
        sa.func.regexp_replace(line, sa.literal_column(f"'{pattern}'"), "…", "g") for pattern in (_VARYING, _IDS)
    )
    # The message of a KeyError is a quoted name.
    return sa.func.coalesce(sa.func.nullif(shape, "…"), of_name, type_=sa.Text())


def class_of(last: Any) -> sa.ColumnElement[str]:
    """The class of an error; an empty text if it has none."""
    return sa.func.coalesce(last["type"].astext, "", type_=sa.Text())


def sign_of(line: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
    """A short name of a line, for addresses: a line may hold anything."""
    hashed = sa.func.sha256(sa.func.convert_to(line, sa.literal_column("'UTF8'")))
    return sa.func.left(sa.func.encode(hashed, sa.literal_column("'hex'")), 16, type_=sa.Text())


def group_errors(
    *where: sa.ColumnElement[bool],
    newest: int = NEWEST_FAILED,
    most: int = MOST_GROUPS,
    after: datetime | None = None,
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """A row for each of the `most` largest groups of the `newest` failed jobs that meet the criteria.

    `task`, `error`, `line`; `group`, the line's short name; `jobs`, how many; `first` and `last`, when they ended; `hours`, how many
    hours ago each of the last 24 hours did; and `groups`, how many groups there are of all. `after`: only groups that began after this time.
    """
    failed = _newest(where, newest, job)
    ago = sa.func.floor(sa.func.extract("epoch", sa.func.now() - failed.c.finished_at) / 3_600)
    hours = sa.func.array_agg(sa.cast(ago, sa.Integer)).filter(ago.between(0, HOURS - 1))
    number = sa.func.count()
    began = [] if after is None else [sa.func.min(failed.c.finished_at) > sa.bindparam("began_after", after)]
    return (
        sa.select(
            *columns_of(failed.c, "task error line"),
            sign_of(failed.c.line).label("group"),
            number.label("jobs"),
            sa.func.min(failed.c.finished_at).label("first"),
            sa.func.max(failed.c.finished_at).label("last"),
            hours.label("hours"),
            sa.func.count().over().label("groups"),
        )
        .group_by(failed.c.task, failed.c.error, failed.c.line)
        .having(*began)
        .order_by(number.desc(), sa.func.max(failed.c.id).desc())
        .limit(most)
    )


def extent_of_errors(
    *where: sa.ColumnElement[bool], newest: int = NEWEST_FAILED, job: type[JobMixin] = Job
) -> sa.Executable:
    """Of how many `jobs` these groups are, and `floor`, the lowest id of these; NULL without any."""
    ids = sa.select(job.id).where(_failed(job), *where).order_by(job.id.desc()).limit(newest).subquery("ids")
    return sa.select(sa.func.count().label("jobs"), sa.func.min(ids.c.id).label("floor")).select_from(ids)


#: The actions that mark a group of errors, and a finding of the doctor; an entry of the audit is the mark.
_MARKS = ("resolve_errors", "mute_errors", "show_errors", "acknowledge", "unacknowledge")
#: How long a group can be muted.
MUTES = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}


def newest_marks(*, most: int = 5_000, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """The newest marks, the last first, with the columns `action`, `at`, `who`, `now` and `for`, the name of a time.

    A mark of a group of errors has `task`, `error` and `group`; a mark of a finding has `check`, `level`, `detail` and `about`. The others are empty.
    """
    audit = companions_of(job).audit
    values = (
        sa.func.coalesce(audit.target[(name, "0")].astext, "").label(name)
        for name in ("task", "error", "group", "check", "level", "detail", "about", "for")
    )
    # Literals, for which the planner takes the index of the marks.
    is_mark = audit.action.in_([sa.literal(name, literal_execute=True) for name in _MARKS])
    columns = (audit.action, audit.at, audit.who, sa.func.now().label("now"), *values)
    return sa.select(*columns).where(is_mark).order_by(audit.id.desc()).limit(most)


def mark_state(mark: Any, last: datetime, now: datetime) -> tuple[str, datetime | None]:
    """The state of a group whose last job failed at `last`, by its last mark: "resolved"; "again", if a job failed like this since it was
    resolved; "muted", with the end; or none, as without a mark.
    """
    if mark is None or mark["action"] == "show_errors":
        return "", None
    if mark["action"] == "resolve_errors":
        return "again" if last > mark["at"] else "resolved", None
    until = mark["at"] + MUTES.get(mark["for"], timedelta(0))
    return ("muted", until) if now < until else ("", None)


def _failed(job: type[JobMixin]) -> sa.ColumnElement[bool]:
    return job.status == status_literal(JobStatus.FAILED)


def _newest(where: tuple[sa.ColumnElement[bool], ...], most: int, job: type[JobMixin]) -> sa.CTE:
    """The newest failed jobs with the class and first line of their last errors. A traceback would not fit into memory for sorting."""
    newest = (
        sa.select(job.id, job.task, in_calendar(table_of(job).c.finished_at).label("finished_at"), job.errors)
        .where(_failed(job), *where)
        .order_by(job.id.desc())
        .limit(most)
        .subquery("newest")
    )
    # A fence: TOAST values are fetched once for each job.
    last = sa.select(newest.c.errors[-1].label("last")).correlate(newest)
    its = last.offset(ZERO).lateral("its")
    kind = [class_of(its.c.last).label("error"), line_of(its.c.last).label("line")]
    failed = sa.select(newest.c.id, newest.c.task, newest.c.finished_at, *kind)
    return failed.select_from(newest.join(its, sa.true())).cte("said").prefix_with("MATERIALIZED")
