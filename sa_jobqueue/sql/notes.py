"""Progress and log lines of running jobs: writing them, deleting them, and reading log lines.

>>> from sa_jobqueue.statements import job_logs
>>> print(job_logs(7).selected_columns.keys())
['attempt', 'at', 'level', 'message']
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert

from ..models import Job, JobMixin, LogPart, companions_of, schema_function, status_in
from ..rules.lifecycle import LIVE
from .ends import fence
from .parts import FIRST_ID, ONE, array, columns_of, materialized, members, rows, table_of
from .tables import StorePart

#: Claims of a job whose lines are kept; the oldest go first. As many as there are entries in `Job.errors`.
MAX_RUNS = 20
#: How long the keys of `once` are kept.
ONCE_KEPT = sa.literal_column("interval '30 days'", sa.Interval)


def correct_units(*, id: int, token: int | None, used: str, job: type[JobMixin] = Job) -> sa.Executable:
    """Correct rates by the units that a job has used, unless the job was claimed again. `used`: JSON, by unit the number that the rate has taken
    so far, null for the estimate, and the used number.
    """
    values = (sa.bindparam("used_id", id, sa.BigInteger), sa.bindparam("used_token", token, sa.BigInteger))
    given = sa.cast(sa.bindparam("used_units", used, sa.Text), JSONB)
    return sa.select(schema_function("further_correct", table_of(job).schema, *values, given, of=sa.Boolean()))


def write_progress(
    *,
    ids: Sequence[int],
    tokens: Sequence[int],
    fractions: Sequence[float],
    messages: Sequence[str | None],
    ended: Sequence[bool],
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """Write the progress of these jobs, each only if the claim is still valid; no job's row is locked. Returns id and token of the
    claims whose progress was written.

    `ended`: the claim is over, and its outcome was written; then it is enough that no other claim came after it.
    """
    table, notes = table_of(job), table_of(companions_of(job).progress)
    of_jobs = array("note_ids", ids, sa.BigInteger())
    note = rows(
        "note",
        id=of_jobs,
        token=array("note_tokens", tokens, sa.BigInteger()),
        fraction=array("note_fractions", fractions, sa.Float(53)),
        message=array("note_messages", messages, sa.Text()),
        ended=array("note_ended", ended, sa.Boolean()),
    )
    last = sa.and_(note.c.ended, table.c.id == note.c.id, table.c.claim_token == note.c.token)
    news = (
        sa.select(
            *columns_of(table.c, "id claim_token claims"),
            note.c.fraction,
            note.c.message,
            sa.func.statement_timestamp(),
        )
        .select_from(table.join(note, table.c.id == note.c.id))
        .where(table.c.id == sa.func.any(of_jobs), sa.or_(fence(table, id=note.c.id, token=note.c.token), last))
        .order_by(table.c.id)
    )
    names = ["job_id", "claim_token", "claims", "fraction", "message", "written_at"]
    written = insert(notes).from_select(names, news)
    return written.on_conflict_do_update(
        index_elements=["job_id"],
        set_={name: written.excluded[name] for name in names[1:]},
        where=notes.c.claims <= written.excluded.claims,
    ).returning(notes.c.job_id, notes.c.claim_token)


def write_logs(
    *,
    ids: Sequence[int],
    tokens: Sequence[int],
    parts: Sequence[int],
    first: Sequence[int],
    attempts: Sequence[int],
    lines: Sequence[str],
    ended: Sequence[bool],
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """Write log lines of these claims, each only if the claim is still valid. Returns id and token of the claims whose lines were
    written.

    `parts`: the number of this part among those of its claim; `first`: the first that is kept. `lines`: JSON text. `ended`: the
    claim is over, and its outcome was written: then it is enough that there still is such a job.
    """
    table, logs = table_of(job), table_of(companions_of(job).log)
    of_jobs = array("log_ids", ids, sa.BigInteger())
    part = rows(
        "part",
        id=of_jobs,
        token=array("log_tokens", tokens, sa.BigInteger()),
        part=array("log_parts", parts, sa.Integer()),
        first=array("log_first", first, sa.Integer()),
        attempt=array("log_attempts", attempts, sa.SmallInteger()),
        lines=array("log_lines", lines, sa.Text()),
        ended=array("log_ended", ended, sa.Boolean()),
    )
    news = (
        sa.select(
            table.c.id,
            *columns_of(part.c, "token part attempt"),
            sa.cast(part.c.lines, JSONB),
            sa.func.statement_timestamp(),
        )
        .select_from(table.join(part, table.c.id == part.c.id))
        .where(table.c.id == sa.func.any(of_jobs), sa.or_(fence(table, id=part.c.id, token=part.c.token), part.c.ended))
        .order_by(table.c.id)
    )
    names = ["job_id", "claim_token", "part", "attempt", "lines", "written_at"]
    written = insert(logs).from_select(names, news)
    # The row is there already if the answer to an earlier try was lost.
    again = written.on_conflict_do_update(
        index_elements=names[:3], set_={name: written.excluded[name] for name in names[4:]}
    ).returning(logs.c.job_id, logs.c.claim_token)
    over = (
        sa.delete(logs)
        .where(logs.c.job_id == part.c.id, logs.c.claim_token == part.c.token, logs.c.part < part.c.first)
        .cte("over")
    )
    return again.add_cte(over)


def _first_line_at(logs: sa.Table) -> sa.ColumnElement[Any]:
    return sa.cast(logs.c.lines.op("#>>")(sa.literal_column("'{0,0}'")), sa.Float(53))


def drop_old_logs(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Delete the lines of all claims of these jobs except the newest `MAX_RUNS` of each job."""
    logs = table_of(companions_of(job).log)
    newest = (sa.func.max(logs.c.written_at).desc(), sa.func.max(_first_line_at(logs)).desc())
    place = sa.func.row_number().over(partition_by=logs.c.job_id, order_by=newest)
    claims = (
        sa.select(logs.c.job_id, logs.c.claim_token, place.label("place"))
        .where(logs.c.job_id == sa.func.any(array("log_ids", ids, sa.BigInteger())))
        .group_by(logs.c.job_id, logs.c.claim_token)
        .cte("claims")
    )
    return sa.delete(logs).where(
        logs.c.job_id == claims.c.job_id,
        logs.c.claim_token == claims.c.claim_token,
        claims.c.place > sa.literal_column(str(MAX_RUNS)),
    )


def delete_notes(ids: Any, *, returning: bool = False, job: type[JobMixin] = Job) -> tuple[sa.CTE, ...]:
    """CTEs that delete the progress, log lines, steps and waits of the jobs that the query `ids` names.

    For the statement that deletes the jobs. `returning`: the CTEs return the rows.
    """
    tables = [(name, table_of(getattr(companions_of(job), name))) for name, _ in _OF_JOBS]
    gone = [(name, table, sa.delete(table).where(members(table.c.job_id, ids))) for name, table in tables]
    return tuple((rows.returning(*table.c) if returning else rows).cte(f"{name}_gone") for name, table, rows in gone)


#: The tables whose rows belong to jobs, and the columns with their times.
_OF_JOBS = (("progress", "written_at"), ("log", "written_at"), ("step", "ended_at"), ("wait", "since"))


def drop_strays(table: str, *, after: int, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Read a page of at most `limit` rows of a companion table, by job id after `after`, and delete the rows whose jobs are gone, and the
    waits of jobs that have ended.

    Returns one row: the last id that was read, NULL if there was none; how many rows were read; and how many are deleted.
    """
    jobs, notes = table_of(job), table_of(getattr(companions_of(job), table))
    page = sa.select(notes.c.job_id).where(notes.c.job_id > sa.bindparam("after_id", after, sa.BigInteger))
    looked_at = materialized(page.order_by(notes.c.job_id).limit(sa.bindparam("page", limit, sa.Integer)), "page")
    # An id that is used again, after a restore perhaps, belongs to a job that is newer than the note.
    theirs: sa.Select[Any] = (
        sa.select(ONE)
        .where(jobs.c.id == notes.c.job_id, jobs.c.created_at <= notes.c[dict(_OF_JOBS)[table]])
        .correlate(notes)
    )
    over: list[sa.ColumnElement[bool]] = []
    if table == "wait":
        # The row of an ended job is of no use. If the job was retried and waits again, the row is new, and is kept.
        theirs, over = theirs.where(status_in(jobs.c.status, LIVE)), [sa.not_(notes.c.is_new)]
    gone = (
        sa.delete(notes)
        .where(members(notes.c.job_id, sa.select(looked_at.c.job_id)), sa.not_(theirs.exists()), *over)
        .returning(notes.c.job_id)
        .cte("gone")
    )
    return sa.select(
        sa.func.max(looked_at.c.job_id).label("last"),
        sa.func.count().label("looked_at"),
        sa.select(sa.func.count()).select_from(gone).scalar_subquery().label("gone"),
    ).select_from(looked_at)


def drop_expired(table: str, *, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Delete at most `limit` expired signals, or keys of `once` that are older than 30 days. Returns a row for each."""
    model = table_of(getattr(companions_of(job), table))
    (key,) = model.primary_key
    is_over = model.c.expires_at <= sa.func.now() if table == "signal" else model.c.done_at <= sa.func.now() - ONCE_KEPT
    page = (
        sa.select(key).where(is_over).limit(sa.bindparam("page", limit, sa.Integer)).with_for_update(skip_locked=True)
    )
    return sa.delete(model).where(members(key, page)).returning(ONE)


def job_logs(id: int, *, attempt: int | None = None, log: type[LogPart] = LogPart) -> sa.Select[Any]:
    """The kept log lines of a job, the oldest first; of a single attempt, or of all.

    Columns: `attempt`; `at`, a datetime, by the worker's clock; `level`, such as "INFO"; `message`. An attempt that was interrupted
    and begun again may be there twice, one after the other.
    """
    logs = table_of(log)
    line: sa.ColumnElement[Any] = sa.column("line", JSONB)
    lines = (
        sa.func.jsonb_array_elements(logs.c.lines)
        .table_valued(line, with_ordinality="place", name="lines", joins_implicitly=True)
        .render_derived(name="lines")
    )
    # Several claims that were written together are of a single worker, whose own clock has their order.
    began = [
        sa.func.min(time).over(partition_by=logs.c.claim_token) for time in (logs.c.written_at, _first_line_at(logs))
    ]
    seconds, level, message = (
        lines.c.line.op("->>", return_type=sa.Text())(sa.literal_column(f"{n}")) for n in range(3)
    )
    at = sa.func.to_timestamp(sa.cast(seconds, sa.Float(53)), type_=sa.DateTime(timezone=True)).label("at")
    columns: list[sa.ColumnElement[Any]] = [logs.c.attempt, at, level.label("level"), message.label("message")]
    found = (
        sa.select(*columns)
        .select_from(logs)
        .where(logs.c.job_id == sa.bindparam("job_id", id, sa.BigInteger))
        .order_by(*began, logs.c.claim_token, logs.c.part, lines.c.place)
    )
    return found if attempt is None else found.where(logs.c.attempt == sa.bindparam("attempt", attempt, sa.Integer))


# ---- Progress and log lines of running jobs.

#: Claims as (id, token).
Claims: TypeAlias = frozenset[tuple[int, int]]


class Report(NamedTuple):
    """The progress of the job of a claim."""

    id: int
    token: int
    fraction: float
    message: str | None
    ended: bool
    """The outcome of the claim is written."""


class LogLines(NamedTuple):
    """Some log lines of a claim."""

    id: int
    token: int
    part: int
    """Its number among the parts of the claim, from 0 on."""
    first: int
    """The first part that is kept."""
    attempt: int
    lines: str
    """JSON text: see `LogPart.lines`."""
    ended: bool
    """The outcome of the claim is written."""


class JobNotes(StorePart):
    """Writing progress and log lines of running jobs, and deleting those of jobs that are gone."""

    def write_progress(self, connection: sa.Connection, reports: Sequence[Report]) -> Claims:
        """Write the progress of jobs. Returns the claims that are still valid."""
        names = ("note_ids", "note_tokens", "note_fractions", "note_messages", "note_ended")
        return self._write(connection, self._write_progress, names, reports)

    def correct_units(self, connection: sa.Connection, id: int, token: int | None, used: str) -> None:
        """Correct rates by the units that a job has used; see `JobReports.take_use`."""
        connection.execute(correct_units(id=id, token=token, used=used, job=self.job))

    def write_logs(self, connection: sa.Connection, parts: Sequence[LogLines]) -> Claims:
        """Write log lines. Returns the claims that are still valid, or have just ended."""
        names = ("log_ids", "log_tokens", "log_parts", "log_first", "log_attempts", "log_lines", "log_ended")
        written = self._write(connection, self._write_logs, names, parts)
        if begun := [part.id for part in parts if part.part == 0]:
            connection.execute(self._drop_old_logs, {"log_ids": begun})
        return written

    def drop_stray_notes(
        self, connection: sa.Connection, *, after: Sequence[int] = (FIRST_ID,) * len(_OF_JOBS), limit: int = 1_000
    ) -> tuple[tuple[int, ...], int]:
        """Read a page of each table, and delete the rows of jobs that are gone, expired signals, and old keys of `once`.

        Returns where the next pages begin, and how many rows were deleted.
        """
        reached, deleted = [], 0
        for (table, _), place in zip(_OF_JOBS, after, strict=True):
            found = connection.execute(drop_strays(table, after=place, limit=limit, job=self.job)).one()
            reached.append(int(found.last) if found.looked_at == limit else FIRST_ID)
            deleted += found.gone
        for table in ("signal", "inbox"):
            deleted += len(connection.execute(drop_expired(table, limit=limit, job=self.job)).all())
        return tuple(reached), deleted

    @staticmethod
    def _write(
        connection: sa.Connection, statement: Any, names: Sequence[str], notes: Sequence[tuple[Any, ...]]
    ) -> Claims:
        columns = dict(zip(names, map(list, zip(*notes, strict=True)), strict=True))
        return frozenset((row.job_id, row.claim_token) for row in connection.execute(statement, columns))

    # The values are given at each execution.

    @cached_property
    def _write_progress(self) -> Any:
        return write_progress(ids=[], tokens=[], fractions=[], messages=[], ended=[], job=self.job)

    @cached_property
    def _write_logs(self) -> Any:
        return write_logs(
            ids=[], tokens=[], parts=[], first=[], attempts=[], lines=[], ended=[], job=self.job
        )  # fmt: skip

    _drop_old_logs = cached_property(lambda self: drop_old_logs([], job=self.job))
