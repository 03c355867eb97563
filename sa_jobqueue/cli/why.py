"""Why a job is not being run: `why`."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any

import typer

from sa_jobqueue.explain import JobExplanation, explain_job
from sa_jobqueue.lifecycle import LIVE
from sa_jobqueue.log import one_line
from sa_jobqueue.reasons import WaitReason
from sa_jobqueue.urls import mask_passwords

from .config import Config
from .options import Json, parse_id
from .output import age, cleaned, masked, moment, print_json, say
from .place import transaction

__all__ = ["moment_and_distance", "reason_as_json", "sentence", "why"]


def why(
    config: Config,
    id: Annotated[int, typer.Argument(metavar="ID", parser=parse_id, help="The job's number.")],
    json: Json = False,
) -> None:
    """Say why a job is not being run; or which worker runs it, or how it has ended.

    The first line is the deciding reason, and each line after "also" one more. A line with an arrow says what can be done about it.

    A job that is not in the table any more is looked for in the archive.

    Exit code 0: it runs, has completed, is in the archive, or will run without help. 1: it will not, unless something is done; or there is no such job.

    sa-jobqueue why 7
    sa-jobqueue why 7 --json
    """
    with transaction(config) as connection:
        found = explain_job(connection, id)
    if json:
        print_json(_as_json(found))
    else:
        _print(found)
    if found.needs_help:
        raise typer.Exit(1)


def moment_and_distance(time: datetime, *, now: datetime) -> str:
    """A time in the zone of this machine, and how far away it is."""
    seconds = (time - now).total_seconds()
    return f"{moment(time)} ({f'in {age(seconds)}' if seconds > 0 else f'{age(seconds)} ago'})"


def sentence(one: WaitReason, now: datetime) -> str:
    """The reason in a line."""
    return cleaned(one_line(mask_passwords(one.said(partial(moment_and_distance, now=now)))))


def reason_as_json(one: WaitReason, job_id: int) -> dict[str, Any]:
    """The reason as data, with its sentence, and what can be done about it."""
    said = {"said": mask_passwords(str(one)), "needs_help": one.needs_help, "advice": one.advice(job_id)}
    return one._asdict() | {"reason": masked(one.reason)} | said


def _as_json(found: JobExplanation) -> dict[str, Any]:
    reasons = [reason_as_json(one, found.job_id) for one in found.reasons]
    return {
        "job_id": found.job_id, "status": found.status, "task": found.task, "queue": found.queue, "at": found.at,
        "archived_at": found.archived_at, "needs_help": found.needs_help, "reasons": reasons,
    }  # fmt: skip


def _print(found: JobExplanation) -> None:
    if found.status is None:
        say(f"job {found.job_id}", "bold")
    else:
        say(f"job {found.job_id}  {cleaned(found.task)}  {found.status}", "bold")
        say(f"queue {cleaned(found.queue)}")
    for place, one in enumerate(found.reasons):
        said = sentence(one, found.at)
        style = "red" if one.needs_help else "yellow" if place == 0 and found.status in LIVE else ""
        say(said if place == 0 else f"also {said}", style, wrap=True)
        if advice := one.advice(found.job_id):
            say(f"  → {cleaned(advice)}")
