"""Changing what jobs are to do, and running them once more as new jobs: `edit`, `copy`."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import typer

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.models import Job
from sa_jobqueue.statements import copy_jobs, edit_jobs
from sa_jobqueue.statements.edit import EDITABLE

from .actions import Action, Locked, LockedOption, Targets, act, by_statement
from .config import Config
from .enqueue import object_of, time_of
from .filters import Filters
from .options import Json, parse_duration, parse_id
from .output import note, print_json, say
from .place import transaction

__all__ = ["copy", "edit"]

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
