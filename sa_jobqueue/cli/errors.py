"""What goes wrong: `errors`."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
import typer

from sa_jobqueue.failures import error_text
from sa_jobqueue.log import one_line
from sa_jobqueue.statements.alike import MOST_GROUPS, NEWEST_FAILED, extent_of_errors, group_errors
from sa_jobqueue.urls import mask_passwords

from .config import Config
from .filters import Filters
from .jobs import since
from .options import Json
from .output import Column, last_part, note, print_json, print_table
from .place import transaction

__all__ = ["errors"]

_COLUMNS = (
    Column("jobs", "right"),
    Column("task", wide=True, least=12, shortened=last_part),
    Column("first"),
    Column("last"),
    Column("error", wide=True, least=20),
)


def errors(
    config: Config,
    filters: Filters,
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="At most this many groups.")
    ] = MOST_GROUPS,
    json: Json = False,
) -> None:
    """Group failed jobs by task, class of error and first line of the message, the largest groups first.

    The newest 10,000 failed jobs that meet the filters are looked at, as on the dashboard.

    sa-jobqueue errors --finished-since 2h
    sa-jobqueue retry --task shop.send_receipt --error ConnectTimeout --finished-since 2h --spread 10m
    """
    where = filters.criteria()
    with transaction(config) as connection:
        filters.check_workers(connection)
        now = connection.scalar(sa.select(sa.func.now()))
        rows: Any = connection.execute(group_errors(*where, most=limit)).all()
        of = connection.execute(extent_of_errors(*where)).one().jobs
    if json:
        names = ("task", "error", "line", "jobs", "first", "last")
        print_json([{**{name: getattr(row, name) for name in names}, "line": mask_passwords(row.line)} for row in rows])
    elif rows:
        print_table(_COLUMNS, [_line(row, now) for row in rows])
    else:
        note("no such failed jobs")
    if rows and rows[0].groups > len(rows):
        note(f"{len(rows)} of {rows[0].groups:,} groups; --limit N shows more")
    if of >= NEWEST_FAILED:
        note(f"of the newest {of:,} failed jobs that meet the filters; there may be more")


def _line(row: Any, now: Any) -> tuple[object, ...]:
    error = one_line(mask_passwords(error_text(row.error.rpartition(".")[2], row.line)))
    return row.jobs, row.task, f"{since(row.first, now)} ago", f"{since(row.last, now)} ago", error
