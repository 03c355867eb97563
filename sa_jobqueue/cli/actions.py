"""Acting on jobs: `retry`, `cancel`, `discard`, `prune`. Each takes ids or filters and says how many it touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Annotated, Any, TypeAlias

import sqlalchemy as sa
import typer
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import InstrumentedAttribute

from ..errors import ConfigurationError
from ..models import Job, status_in, status_literal
from ..rules.lifecycle import FINISHED, Event, JobStatus, sources
from ..rules.words import jobs_of
from ..sql.archive import is_not_archived
from ..sql.archived import archived_ends
from ..sql.chosen import Status
from ..sql.edit import EDITABLE
from ..sql.unique import key_holders
from ..sql.workflows.actions import reopen_below
from ..statements import cancel_jobs, copy_jobs, discard_jobs, edit_jobs, prune_jobs, release_jobs, retry_jobs
from .config import Config, Json, Options, parse_duration, parse_id
from .enqueue import object_of, time_of
from .filters import PANEL, Filters
from .output import note, print_json, say
from .place import open_engine, transaction

Criterion = sa.ColumnElement[bool]
Criteria = Sequence[Criterion]

_PAGE = 1_000
#: Jobs that were not touched and are named.
_NAMED = 20
_LOCKED = "locked by another transaction, or changed just now"
#: The SQLSTATE of NOWAIT.
_NOT_AVAILABLE = "55P03"


@dataclass(frozen=True)
class Targets(Options):
    """Which jobs to act on, besides the filters, and how; the same for all these commands."""

    # None, because click before 8.3 refuses an empty list as the default of an argument.
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ID", parser=parse_id, help="These jobs.", show_default=False)
    ] = None
    all: Annotated[bool, typer.Option("--all", help="All jobs in a state that allows it.", rich_help_panel=PANEL)] = (
        False
    )
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, max=1_000_000_000, help="At most this many jobs, the oldest first."
        ),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many jobs it would be; change nothing.")] = (
        False
    )
    json: Json = False

    def criteria(self, filters: Filters, *, by: InstrumentedAttribute[Any] = Job.created_at) -> list[Criterion]:
        """The ids and the filters as criteria."""
        return [*([self.named] if self.ids else []), *filters.criteria(by=by)]

    @property
    def named(self) -> Criterion:
        """The jobs whose ids are given. All ids are one parameter, because a statement takes 65,535 at most."""
        return Job.id == sa.func.any(sa.literal(self.ids, sa.ARRAY(sa.BigInteger)))

    def check(self, filters: Filters) -> None:
        """Refuse a command that names no jobs: all of them must be asked for by `--all`."""
        narrowed = bool(self.ids or filters)
        if self.all and narrowed:
            raise ConfigurationError("--all and a choice of jobs contradict each other: give one of them")
        if not self.all and not narrowed:
            raise ConfigurationError("say which jobs: by ids, by filters such as --queue, --task or --status, or --all")


class Locked(StrEnum):
    """What to do about a job whose row another transaction has locked."""

    WAIT = "wait"
    NOWAIT = "nowait"
    SKIP = "skip"


#: Executes it, with what to do about locked rows. Returns by id whether the job was changed.
Do: TypeAlias = Callable[[sa.Engine, Criteria, Locked], dict[int, bool]]
LockedOption = Annotated[
    Locked,
    typer.Option(help="A row that another transaction has locked: wait for it, change nothing at all, or skip it."),
]


def retry(
    config: Config,
    filters: Filters,
    targets: Targets,
    *,
    spread: Annotated[
        timedelta | None,
        typer.Option(
            metavar="TIME", parser=parse_duration, help="Spread them over this time, in the order of their ids."
        ),
    ] = None,
    locked: LockedOption = Locked.WAIT,
) -> None:
    """Run jobs again, now.

    With filters or --all it takes the failed jobs, unless --status says otherwise; by id any job that is not running.
    Each gets all its attempts again. A job that waits for a later time becomes due now. Members of workflows that were
    cancelled because these jobs failed come back, too.

    sa-jobqueue retry 17 18
    sa-jobqueue retry --queue mail --finished-since 2030-01-31T01:00 --finished-before 2030-01-31T02:00 --spread 1h
    """
    targets.check(filters)
    if not targets.ids and not filters.status:
        filters = replace(filters, status=[Status.FAILED])
    action = replace(RETRY, do=by_statement(partial(retry_jobs, spread=spread or 0)))
    act(config, targets, filters, targets.criteria(filters), action, locked=locked)


def cancel(config: Config, filters: Filters, targets: Targets, *, locked: LockedOption = Locked.WAIT) -> None:
    """Cancel jobs; running ones are asked to stop.

    sa-jobqueue cancel 17
    sa-jobqueue cancel --queue mail --status scheduled --dry-run
    """
    targets.check(filters)
    act(config, targets, filters, targets.criteria(filters), CANCEL, locked=locked)


def discard(
    config: Config,
    filters: Filters,
    targets: Targets,
    *,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="What the jobs' errors will say.")
    ] = "discarded by an operator",
    locked: LockedOption = Locked.WAIT,
) -> None:
    """Give up waiting jobs: they end as failed.

    Their errors say the reason. Running jobs are not touched: cancel those.

    sa-jobqueue discard --task shop.send_receipt --status retrying --reason "the shop is closed"
    """
    targets.check(filters)
    action = replace(DISCARD, do=by_statement(partial(discard_jobs, reason=reason)))
    act(config, targets, filters, targets.criteria(filters), action, locked=locked)


def release(
    config: Config,
    filters: Filters,
    targets: Targets,
    *,
    delay: Annotated[
        timedelta,
        typer.Option(metavar="TIME", parser=parse_duration, help="Claim them again after this time at the earliest."),
    ] = timedelta(0),
    locked: LockedOption = Locked.WAIT,
) -> None:
    """Take running jobs from their workers: they are queued again, in their place, and spend no attempt.

    Nothing that a worker still does for such a job is written. The worker stops it when it next renews the lease: after a third to a half
    of that, 20 to 30 s by default.

    sa-jobqueue release 17
    sa-jobqueue release --worker web-1:4711
    """
    targets.check(filters)
    action = Action("release", "released", sources(Event.RELEASE), by_statement(partial(release_jobs, delay=delay)))
    act(config, targets, filters, targets.criteria(filters), action, locked=locked)


def prune(
    config: Config,
    filters: Filters,
    targets: Targets,
    *,
    expired: Annotated[
        bool,
        typer.Option(
            "--expired",
            help="Those that have been kept for long enough: what workers delete by themselves.",
            rich_help_panel=PANEL,
        ),
    ] = False,
) -> None:
    """Delete finished jobs.

    In pages of 1,000, each in a transaction of its own. Ages count from a job's end. A job stays where a
    foreign key of the application refers to it. Jobs of archived tasks that have been kept for long enough are left to the workers by
    --expired.

    sa-jobqueue prune --expired
    sa-jobqueue prune --status completed --older-than 3d --dry-run
    """
    criteria = targets.criteria(filters, by=Job.finished_at)
    if expired:
        if targets.all:
            raise ConfigurationError("--all and --expired contradict each other: give one of them")
        criteria += [Job.purge_at <= sa.func.now(), is_not_archived(Job)]
    else:
        targets.check(filters)
    act(config, targets, filters, criteria, PRUNE)


def act(
    config: Config,
    targets: Targets,
    filters: Filters,
    criteria: Criteria,
    action: Action,
    *,
    locked: Locked = Locked.WAIT,
) -> None:
    """Act on the jobs, or only count them; say how many, and which were not touched: of the given ids, and of the locked ones."""
    possible = [*criteria, status_in(Job.status, action.statuses)]
    running = [*possible, Job.status == status_literal(JobStatus.RUNNING)]
    left: dict[int, str] = {}
    below = set[int]()
    engine = open_engine(config)
    with transaction(config, engine) as connection:
        filters.check_workers(connection)
        if targets.limit is not None:
            first = connection.scalars(sa.select(Job.id).where(*possible).order_by(Job.id).limit(targets.limit))
            chosen = Job.id == sa.func.any(sa.literal(first.all(), sa.ARRAY(sa.BigInteger)))
            if targets.ids:
                beyond = connection.execute(sa.select(Job.id, Job.status).where(*possible, ~chosen))
                left = {row.id: f"{row.status}, beyond --limit {targets.limit}" for row in beyond}
            criteria, possible, running = [*criteria, chosen], [*possible, chosen], [*running, chosen]
        asked = connection.scalar(sa.select(sa.func.count()).where(*running)) or 0
        rows = connection.execute(sa.select(Job.id, Job.status).where(targets.named))
        found = {row.id: str(row.status) for row in rows}
        if missing := [one for one in targets.ids or [] if one not in found]:
            archived = connection.execute(archived_ends(missing))
            found |= {row.id: f"{row.status}, in the archive" for row in archived}
        touched = set(connection.scalars(sa.select(Job.id).where(*possible))) if targets.dry_run else set[int]()
    if not targets.dry_run:
        answers = action.do(engine, criteria, locked)
        touched = {one for one, changed in answers.items() if changed}
        left |= {one: _LOCKED for one, changed in answers.items() if not changed}
        below = _retried_below(engine, touched) if action.verb == RETRY.verb else below
    for one in targets.ids or []:
        if one not in touched:
            left.setdefault(one, found.get(one, "no such job"))
    if left and action.verb == RETRY.verb:
        with engine.begin() as connection:
            for one, holder in connection.execute(key_holders(list(left))):
                status = f"{found[one]}, " if one in found else ""
                left[one] = f"{status}its unique key is held by job {holder}"
    stop = f", {asked:,} of them still running and asked to stop" if asked and action is CANCEL else ""
    _tell(action, targets, touched=touched, below=below, left=left, stop=stop)
    if left:
        raise typer.Exit(1)


def _retried_below(engine: sa.Engine, touched: set[int]) -> set[int]:
    """Bring back the members of workflows that were cancelled because of these jobs, and return their ids.

    It is a transaction of its own: the retry of a workflow locks its row first, and then waits for its jobs.
    """
    if not touched:
        return set()
    with engine.begin() as connection:
        return set(connection.scalars(reopen_below(sorted(touched)))) - touched


def _tell(
    action: Action, targets: Targets, *, touched: set[int], below: set[int], left: dict[int, str], stop: str
) -> None:
    if targets.json:
        more: dict[str, Any] = {"also_retried": sorted(below)} if below else {}
        print_json(
            {"action": action.verb, "count": len(touched), "dry_run": targets.dry_run, "not_touched": left} | more
        )
        return
    say(f"{f'would {action.verb}' if targets.dry_run else action.done} {jobs_of(len(touched))}{stop}")
    if below:
        note(f"and {jobs_of(len(below))} that had been cancelled because of them")
    if left:
        others = f", and {len(left) - _NAMED:,} more" if len(left) > _NAMED else ""
        note("not touched: " + ", ".join(f"{one} ({why})" for one, why in islice(left.items(), _NAMED)) + others)


def by_statement(build: Callable[..., Any]) -> Do:
    """An action that executes the statement of a builder, in one transaction."""

    def do(engine: sa.Engine, criteria: Criteria, locked: Locked) -> dict[int, bool]:
        with engine.begin() as connection:
            try:
                rows = connection.execute(build(*criteria or [sa.true()], locked=locked.value)).mappings().all()
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) != _NOT_AVAILABLE:
                    raise
                raise ConfigurationError(
                    "another transaction has locked one of these jobs; nothing was changed. --locked skip leaves such jobs, "
                    "--locked wait waits for them"
                ) from error
        return {row["id"]: row.get("changed", True) for row in rows}

    return do


def _prune(engine: sa.Engine, criteria: Criteria, locked: Locked) -> dict[int, bool]:
    """Delete page by page, each in a transaction of its own. If a foreign key holds a row, the page shrinks to find it."""
    deleted: list[int] = []
    kept: list[int] = []
    after: int | None = None
    page = _PAGE
    while True:
        where = [*criteria, sa.true() if after is None else Job.id > after]
        try:
            with engine.begin() as connection:
                ids = list(connection.scalars(prune_jobs(*where, limit=page)))
        except IntegrityError:
            if page > 1:
                page = max(page // 10, 1)
                continue
            with engine.begin() as connection:
                after = _first_finished(connection, where)
            kept.append(after)
            continue
        deleted += ids
        if len(ids) < page:
            break
        after, page = max(ids), min(page * 10, _PAGE)
    if kept:
        note(f"{jobs_of(len(kept))} kept, because other rows refer to them: {', '.join(map(str, kept[:10]))}")
    return dict.fromkeys(deleted, True)


def _first_finished(connection: sa.Connection, where: Criteria) -> int:
    first = sa.select(sa.func.min(Job.id)).where(*where, status_in(Job.status, FINISHED))
    return int(connection.scalar(first) or 0)


@dataclass(frozen=True, slots=True)
class Action:
    """What can be done to jobs in certain states; `do` does it, and returns by id whether the job was changed."""

    verb: str
    done: str
    statuses: Sequence[JobStatus]
    do: Do


RETRY = Action("retry", "retried", sources(Event.REQUEUE), by_statement(retry_jobs))
CANCEL = Action("cancel", "cancelled", sources(Event.CANCEL), by_statement(cancel_jobs))
DISCARD = Action("discard", "discarded", sources(Event.DISCARD), by_statement(discard_jobs))
PRUNE = Action("prune", "pruned", tuple(status for status in JobStatus if status in FINISHED), _prune)

# ---- Changing what jobs are to do, and running them once more as new jobs: `edit`, `copy`.

_PANEL = "What becomes of them"


def edit(
    config: Config,
    filters: Filters,
    targets: Targets,
    *,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="All their arguments, as a JSON object.", rich_help_panel=_PANEL)
    ] = None,
    to_queue: Annotated[str | None, typer.Option(metavar="NAME", help="Their queue.", rich_help_panel=_PANEL)] = None,
    to_priority: Annotated[
        int | None, typer.Option(metavar="0-9", help="Their priority.", rich_help_panel=_PANEL)
    ] = None,
    run_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="When they are due, with its zone: 2030-01-31T09:00+01:00.", rich_help_panel=_PANEL
        ),
    ] = None,
    delay: Annotated[
        timedelta | None,
        typer.Option(metavar="TIME", parser=parse_duration, help="Or how long from now.", rich_help_panel=_PANEL),
    ] = None,
    locked: LockedOption = Locked.WAIT,
) -> None:
    """Change what jobs are to do that are not running: their arguments, queue, priority or time.

    A job that has ended stays as it has: `retry` runs it again.

    sa-jobqueue edit 17 --args '{"order_id": 8}'
    sa-jobqueue edit --queue mail --status queued --to-queue slow
    """
    if run_at is not None and delay is not None:
        raise ConfigurationError("--run-at and --delay exclude each other: give one of them")
    changes: dict[str, Any] = {
        "args": None if args is None else object_of(args, "the arguments"),
        "queue": to_queue,
        "priority": to_priority,
        "run_at": delay if run_at is None else time_of(run_at, "--run-at"),
    }
    if all(value is None for value in changes.values()):
        raise ConfigurationError("say what is to change: --args, --to-queue, --to-priority, --run-at or --delay")
    targets.check(filters)
    action = Action("edit", "edited", EDITABLE, by_statement(partial(edit_jobs, **changes)))
    act(config, targets, filters, targets.criteria(filters), action, locked=locked)


def copy(
    config: Config,
    ids: Annotated[list[int], typer.Argument(metavar="ID", parser=parse_id, help="These jobs.")],
    *,
    delay: Annotated[
        timedelta,
        typer.Option(metavar="TIME", parser=parse_duration, help="Run the copies after this time at the earliest."),
    ] = timedelta(0),
    json: Json = False,
) -> None:
    """Enqueue a copy of each of these jobs, whatever became of them. Print the ids of the copies.

    The copy of a unique job is a duplicate while another job has its key. Jobs that take the results of others are not copied.

    sa-jobqueue copy 17
    """
    with transaction(config) as connection:
        copies = connection.execute(copy_jobs(Job.id.in_(ids), delay=delay)).all()
    if json:
        print_json([{"id": row.id, "duplicate_of": row.duplicate_of} for row in copies])
    else:
        for row in copies:
            say(f"{row.id}{'' if row.duplicate_of is None else f' (a duplicate of {row.duplicate_of})'}")
    if missing := len(set(ids)) - len(copies):
        note(f"not copied: {missing} of these jobs, which are not there, or take the results of others")
        raise typer.Exit(1)
