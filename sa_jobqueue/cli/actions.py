"""Act on jobs: `retry`, `cancel`, `discard`, `release`, `prune`, `edit`, `copy` and `fork`. Most take ids or filters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Annotated, Any, NamedTuple, TypeAlias

import sqlalchemy as sa
import typer
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import InstrumentedAttribute

from ..errors import ConfigurationError
from ..models import Job, status_in, status_literal
from ..rules.lifecycle import FINISHED, Event, JobStatus, sources
from ..rules.words import jobs_of
from ..sql.admin import may_retry
from ..sql.archive import is_not_archived
from ..sql.archived import archived_ends
from ..sql.chosen import Status
from ..sql.edit import EDITABLE
from ..sql.secrets import has_marks
from ..sql.unique import key_holders
from ..sql.workflows.actions import reopen_below
from ..statements import cancel_jobs, copy_jobs, discard_jobs, edit_jobs, fork_job, prune_jobs, release_jobs, retry_jobs
from .config import Config, DryRun, JobId, Json, Options, duration_option, parse_id
from .enqueue import object_of, time_of
from .filters import PANEL, Filters
from .output import note, print_json, say
from .place import open_engine, transaction

Criterion = sa.ColumnElement[bool]
Criteria = Sequence[Criterion]

#: Jobs that `prune` deletes in one transaction.
_PAGE = 1_000
#: The most untouched jobs that are listed.
_LISTED = 20
_LOCKED = "locked by another transaction, or changed just now"
#: The SQLSTATE of NOWAIT.
_NOT_AVAILABLE = "55P03"


@dataclass(frozen=True)
class Targets(Options):
    """The options, in addition to filters, that all commands which act on jobs share."""

    # None, because click before 8.3 refuses an empty list as the default of an argument.
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ID", parser=parse_id, help="These jobs.", show_default=False)
    ] = None
    all: Annotated[bool, typer.Option("--all", help="All jobs in a state that allows it.", rich_help_panel=PANEL)] = (
        False
    )
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", metavar="N", min=1, max=1_000_000_000, help="At most N jobs, the oldest first."),
    ] = None
    dry_run: DryRun = False
    json: Json = False

    def criteria(
        self, filters: Filters, *, by: InstrumentedAttribute[Any] = Job.created_at, needed: bool = True
    ) -> list[Criterion]:
        """The ids and the filters as criteria. Raises ConfigurationError with both criteria and `--all`, or if one is `needed`, neither."""
        criteria = [*([_among(self.ids)] if self.ids else []), *filters.criteria(by=by)]
        if self.all and criteria:
            raise ConfigurationError("--all and a choice of jobs contradict each other: give one of them")
        if needed and not self.all and not criteria:
            raise ConfigurationError("say which jobs: by ids, by filters such as --queue, --task or --status, or --all")
        return criteria


def _among(ids: Sequence[int]) -> Criterion:
    """The jobs with these ids, which are one parameter, because a statement takes 65,535 at most."""
    return Job.id == sa.func.any(sa.literal(ids, sa.ARRAY(sa.BigInteger)))


class Locked(StrEnum):
    """What to do with a job whose row another transaction has locked."""

    WAIT = "wait"
    NOWAIT = "nowait"
    SKIP = "skip"


#: Performs an action on the jobs that meet the criteria; returns for each id whether the job was changed.
Do: TypeAlias = Callable[[sa.Engine, Criteria, Locked], dict[int, bool]]
LockedOption = Annotated[
    Locked,
    typer.Option(help="If another transaction has locked a row: wait for it, change nothing at all, or skip it."),
]


def retry(
    config: Config,
    filters: Filters,
    targets: Targets,
    *,
    spread: Annotated[
        timedelta | None, duration_option(help="Spread the jobs over this time, in the order of their ids.")
    ] = None,
    locked: LockedOption = Locked.WAIT,
) -> None:
    """Run jobs again, now.

    With filters or --all it retries failed jobs, unless --status is given; by id any job that has ended, is queued, or is held at a step. Each job gets
    all its attempts again. A job that waits for a later time becomes due now. Members of workflows that were cancelled
    because these jobs failed come back as well.

    sa-jobqueue retry 17 18
    sa-jobqueue retry --queue mail --finished-since 2030-01-31T01:00 --finished-before 2030-01-31T02:00 --spread 1h
    """
    criteria = targets.criteria(filters)
    if not targets.ids and not filters.status:
        criteria += Filters(status=[Status.FAILED]).criteria()
    action = Action("retry", "retried", may_retry(Job), _by_statement(retry_jobs, spread=spread or 0))
    _act(config, targets, filters, criteria, action, locked=locked)


def cancel(config: Config, filters: Filters, targets: Targets, *, locked: LockedOption = Locked.WAIT) -> None:
    """Cancel jobs; running ones are asked to stop.

    sa-jobqueue cancel 17
    sa-jobqueue cancel --queue mail --status scheduled --dry-run
    """
    action = Action("cancel", "cancelled", status_in(Job.status, sources(Event.CANCEL)), _by_statement(cancel_jobs))
    _act(config, targets, filters, targets.criteria(filters), action, locked=locked)


def discard(
    config: Config,
    filters: Filters,
    targets: Targets,
    *,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="The message of their errors.")
    ] = "discarded by an operator",
    locked: LockedOption = Locked.WAIT,
) -> None:
    """Give up waiting jobs: they end as failed.

    Their errors state the reason. Running jobs are not touched: cancel those.

    sa-jobqueue discard --task shop.send_receipt --status retrying --reason "the shop is closed"
    """
    action = Action(
        "discard",
        "discarded",
        status_in(Job.status, sources(Event.DISCARD)),
        _by_statement(discard_jobs, reason=reason),
    )
    _act(config, targets, filters, targets.criteria(filters), action, locked=locked)


def release(
    config: Config,
    filters: Filters,
    targets: Targets,
    *,
    delay: Annotated[
        timedelta, duration_option(help="Do not claim them again before this time has passed.")
    ] = timedelta(0),
    locked: LockedOption = Locked.WAIT,
) -> None:
    """Take running jobs from their workers: they are queued again, in their place, and spend no attempt.

    Nothing that a worker still does for such a job is written. The worker stops the job when it next renews the lease: after a
    third to a half of the lease, 20 to 30 s by default.

    sa-jobqueue release 17
    sa-jobqueue release --worker web-1:4711
    """
    action = Action(
        "release", "released", status_in(Job.status, sources(Event.RELEASE)), _by_statement(release_jobs, delay=delay)
    )
    _act(config, targets, filters, targets.criteria(filters), action, locked=locked)


def prune(
    config: Config,
    filters: Filters,
    targets: Targets,
    *,
    expired: Annotated[
        bool,
        typer.Option(
            "--expired", help="Jobs whose retention is over, which workers delete on their own.", rich_help_panel=PANEL
        ),
    ] = False,
) -> None:
    """Delete finished jobs.

    In pages of 1,000, each in a transaction of its own. Ages count from a job's end. A job stays if a foreign key of the
    application refers to it. --expired leaves jobs of archived tasks to the workers, which move them into the archive.

    sa-jobqueue prune --expired
    sa-jobqueue prune --status completed --older-than 3d --dry-run
    """
    if expired and targets.all:
        raise ConfigurationError("--all and --expired contradict each other: give one of them")
    criteria = targets.criteria(filters, by=Job.finished_at, needed=not expired)
    if expired:
        criteria += [Job.purge_at <= sa.func.now(), is_not_archived(Job)]
    _act(config, targets, filters, criteria, Action("prune", "pruned", status_in(Job.status, FINISHED), _prune))


class Action(NamedTuple):
    """An action that is possible for the jobs that `allowed` chooses."""

    verb: str
    done: str
    allowed: Criterion
    do: Do


def _act(
    config: Config,
    targets: Targets,
    filters: Filters,
    criteria: Criteria,
    action: Action,
    *,
    locked: Locked = Locked.WAIT,
) -> None:
    """Act on the jobs, or only count them. Print how many, and why given ids and locked jobs were not touched."""
    possible = [*criteria, action.allowed]
    ids, retries = targets.ids or [], action.verb == "retry"
    untouched: dict[int, str] = {}
    reopened = set[int]()
    engine = open_engine(config)
    with transaction(config, engine) as connection:
        filters.check_workers(connection)
        if targets.limit is not None:
            first = connection.scalars(sa.select(Job.id).where(*possible).order_by(Job.id).limit(targets.limit))
            chosen = _among(first.all())
            if ids:
                beyond = connection.execute(sa.select(Job.id, Job.status).where(*possible, ~chosen))
                untouched = {row.id: f"{row.status}, beyond --limit {targets.limit}" for row in beyond}
            criteria, possible = [*criteria, chosen], [*possible, chosen]
        is_running = Job.status == status_literal(JobStatus.RUNNING)
        running = connection.scalar(sa.select(sa.func.count()).where(*possible, is_running)) or 0
        known = {
            row.id: str(row.status) for row in connection.execute(sa.select(Job.id, Job.status).where(_among(ids)))
        }
        if missing := [job_id for job_id in ids if job_id not in known]:
            archived = connection.execute(archived_ends(missing))
            known |= {row.id: f"{row.status}, in the archive" for row in archived}
        touched = set(connection.scalars(sa.select(Job.id).where(*possible))) if targets.dry_run else set[int]()
    if not targets.dry_run:
        changes = action.do(engine, criteria, locked)
        touched = {job_id for job_id, changed in changes.items() if changed}
        untouched |= {job_id: _LOCKED for job_id, changed in changes.items() if not changed}
        if retries and touched:
            # In a transaction of its own, because the retry of a workflow locks its row first, and then waits for its jobs.
            with engine.begin() as connection:
                reopened = set(connection.scalars(reopen_below(sorted(touched)))) - touched
    untouched = {job_id: known.get(job_id, "no such job") for job_id in ids if job_id not in touched} | untouched
    untouched |= _obstacles(engine, action, untouched, known)
    if targets.json:
        result = {"action": action.verb, "count": len(touched), "dry_run": targets.dry_run, "not_touched": untouched}
        print_json(result | ({"also_retried": sorted(reopened)} if reopened else {}))
    else:
        stop = f", {running:,} of them still running and asked to stop" if running and action.verb == "cancel" else ""
        say(f"{f'would {action.verb}' if targets.dry_run else action.done} {jobs_of(len(touched))}{stop}")
        if reopened:
            note(f"and {jobs_of(len(reopened))} that had been cancelled because of them")
        if untouched:
            listed = ", ".join(f"{job_id} ({reason})" for job_id, reason in islice(untouched.items(), _LISTED))
            more = f", and {len(untouched) - _LISTED:,} more" if len(untouched) > _LISTED else ""
            note(f"not touched: {listed}{more}")
    if untouched:
        raise typer.Exit(1)


def _obstacles(
    engine: sa.Engine, action: Action, untouched: Mapping[int, str], known: Mapping[int, str]
) -> dict[int, str]:
    """The reasons, other than the status, why some of these jobs did not change."""
    if not untouched or action.verb not in {"retry", "edit"}:
        return {}
    with engine.begin() as connection:
        if action.verb == "edit":
            marked = connection.scalars(sa.select(Job.id).where(_among(list(untouched)), has_marks(Job.args)))
            return dict.fromkeys(marked, "it has secret arguments: change them in code, by Task.edit")
        return {
            job_id: f"{f'{known[job_id]}, ' if job_id in known else ''}its unique key is held by job {holder}"
            for job_id, holder in connection.execute(key_holders(list(untouched)))
        }


def _by_statement(build: Callable[..., Any], **options: Any) -> Do:
    """An action that executes the statement of a builder, in one transaction."""

    def do(engine: sa.Engine, criteria: Criteria, locked: Locked) -> dict[int, bool]:
        statement = build(*criteria or [sa.true()], locked=locked.value, **options)
        with engine.begin() as connection:
            try:
                rows = connection.execute(statement).mappings().all()
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
            first = sa.select(sa.func.min(Job.id)).where(*where, status_in(Job.status, FINISHED))
            with engine.begin() as connection:
                after = int(connection.scalar(first) or 0)
            kept.append(after)
            continue
        deleted += ids
        if len(ids) < page:
            break
        after, page = max(ids), min(page * 10, _PAGE)
    if kept:
        note(f"{jobs_of(len(kept))} kept, because other rows refer to them: {', '.join(map(str, kept[:10]))}")
    return dict.fromkeys(deleted, True)


# ---- `edit` changes jobs, `copy` enqueues them again as new jobs, and `fork` repeats a job from a step on.

_change = partial(typer.Option, rich_help_panel="Changes")


def edit(
    config: Config,
    filters: Filters,
    targets: Targets,
    *,
    args: Annotated[str | None, _change(metavar="JSON", help="All new arguments, as a JSON object.")] = None,
    to_queue: Annotated[str | None, _change(metavar="NAME", help="The new queue.")] = None,
    to_priority: Annotated[int | None, _change(metavar="0-9", help="The new priority.")] = None,
    run_at: Annotated[
        str | None, _change(metavar="TIME", help="When they are due, with its zone: 2030-01-31T09:00+01:00.")
    ] = None,
    delay: Annotated[timedelta | None, duration_option(help="Or how long from now.", rich_help_panel="Changes")] = None,
    locked: LockedOption = Locked.WAIT,
) -> None:
    """Change the arguments, queue, priority or time of jobs that are not running.

    A job that has ended keeps its status: `retry` runs it again.

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
    allowed = status_in(Job.status, EDITABLE)
    if args is not None:
        allowed &= ~has_marks(Job.args)
    action = Action("edit", "edited", allowed, _by_statement(edit_jobs, **changes))
    _act(config, targets, filters, targets.criteria(filters), action, locked=locked)


def copy(
    config: Config,
    ids: Annotated[list[int], typer.Argument(metavar="ID", parser=parse_id, help="These jobs.")],
    *,
    delay: Annotated[timedelta, duration_option(help="Do not run the copies before this time has passed.")] = timedelta(
        0
    ),
    json: Json = False,
) -> None:
    """Enqueue a copy of each of these jobs, in whatever state they are. Print the ids of the copies.

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
        note(f"not copied: {missing} of these jobs, which do not exist, or take the results of others")
        raise typer.Exit(1)


def fork(
    config: Config,
    id: JobId,
    *,
    from_step: Annotated[str, typer.Option("--from-step", metavar="NAME", help="The first step to run again.")],
    delay: Annotated[
        timedelta, duration_option(help="Do not run the new job before this time has passed.")
    ] = timedelta(0),
    json: Json = False,
) -> None:
    """Enqueue a new job that repeats an ended job from a recorded step on. Print the new job's id.

    The new job has the arguments of the old job, and the results of the steps before this step. The old job does not change. `show` lists the steps.

    sa-jobqueue fork 17 --from-step book
    """
    with transaction(config) as connection:
        forked = connection.execute(fork_job(id, from_step=from_step, delay=delay)).scalar_one()
    print_json({"id": forked}) if json else say(f"{forked}")
