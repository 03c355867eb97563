"""The archive: whether its months are there, and how large it is."""

from __future__ import annotations

import sqlalchemy as sa

from ...statements.archive_size import archive_months, archive_needs
from ...words import size
from ..examination import Examination
from ..finding import Finding, Level, found

__all__ = ["check_archive"]


def check_archive(examination: Examination) -> Finding:
    """Workers make this month's table and the next one's, if there are tasks whose jobs are archived."""
    task, connection = examination.store.tables.archived_task, examination.connection
    tasks = connection.scalar(sa.select(sa.func.count()).select_from(task)) or 0
    months = connection.execute(archive_months(schema=examination.schema)).all()
    there = {row.month for row in months}
    rows, total = sum(row.rows for row in months), sum(row.bytes for row in months)
    ill: list[tuple[Level, str, str]] = []
    if tasks:
        needs = connection.execute(archive_needs()).one()
        advice = (
            "workers make it: start one, or see its log; the owner of the schema needs the right to create tables in it"
        )
        if needs.this_month not in there:
            said = f"there is no table for {needs.this_month}: jobs that finish in this month cannot be moved"
            ill.append(("problem", said, advice))
        elif needs.next_month not in there:
            ill.append(("notice", f"there is no table for {needs.next_month} yet", advice))
    well = (
        "no task's jobs are archived"
        if not tasks
        else f"jobs of {tasks:,} task name{'' if tasks == 1 else 's'} are archived"
    )
    if months:
        well += f"; {len(months):,} month{'' if len(months) == 1 else 's'} from {months[0].month} on have about {rows:,} jobs, {size(total)}"
    numbers = {"tasks": tasks, "months": len(months), "rows": rows, "bytes": total}
    return found("archive", well, *ill, **{name: float(value) for name, value in numbers.items()})
