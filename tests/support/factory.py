"""Rows as tests need them: what a state implies is filled in, the rest is the table's defaults.

job = make_job(connection, status="running", attempt=3)
assert row(connection, job).lease_expires_at is not None
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Row, Text, bindparam, cast, func, insert, literal_column, select, text
from sqlalchemy.dialects.postgresql import JSONB

from sa_jobqueue.models import Job
from sa_jobqueue.rules.lifecycle import FINISHED, Change, Event, JobStatus, Rules, decide
from sa_jobqueue.rules.lifecycle import Claim as Seen
from sa_jobqueue.rules.outcomes import Outcome
from tests.support.waiting import wait_until

TABLE = Job.__table__

_JSON = ("args", "meta", "errors", "result", "uniqueness")


def _implied(status: JobStatus) -> dict[str, Any]:
    if status is JobStatus.RUNNING:
        return {
            "claim_token": 1,
            "claims": 1,
            "attempt": 1,
            "worker": "worker-1",
            "claimed_at": timedelta(0),
            "lease_expires_at": timedelta(minutes=1),
        }
    if status in FINISHED:
        return {
            "claim_token": 1,
            "claims": 1,
            "attempt": 1,
            "worker": "worker-1",
            "claimed_at": timedelta(minutes=-1),
            "finished_at": timedelta(0),
            "purge_at": timedelta(days=7),
        }
    return {}


def _value(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        return func.now() + value
    if isinstance(value, str) and value.endswith("infinity"):
        return literal_column(f"timestamptz '{value}'")
    if name in _JSON and value is not None:
        return bindparam(None, value, JSONB)
    return value


def make_job(connection: Connection, status: str = "queued", **columns: Any) -> int:
    """Insert one job; a timedelta counts from the database's now. Returns its id."""
    values = {"task": "a_task", **_implied(JobStatus(status)), **columns, "status": status}
    # Past the types of the model: a test may want what they would refuse.
    names = [TABLE.c[name] for name in values]
    given = select(*(_typed(name, value) for name, value in values.items()))
    return int(connection.scalar(insert(TABLE).from_select(names, given, include_defaults=False).returning(TABLE.c.id)))


def _typed(name: str, value: Any) -> Any:
    column = TABLE.c[name]
    value = _value(name, value)
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return cast(bindparam(None, value, Text if isinstance(value, str) else column.type), column.type)
    if value is None:
        return cast(literal_column("NULL"), column.type)
    return value


def unfolding(numbers: int) -> str:
    """SQL for JSON that is small as it is stored, and as text has 131,000 bytes for each number; of 9,000 more than 1 GB."""
    return f"(SELECT jsonb_build_object('n', jsonb_agg('1e131000'::jsonb)) FROM generate_series(1, {numbers}))"


def make_jobs(connection: Connection, number: int, status: str = "queued", **columns: Any) -> list[int]:
    """Insert several alike."""
    return [make_job(connection, status, **columns) for _ in range(number)]


def row(connection: Connection, id: int) -> Row[Any]:
    """The job as it is now; fails if it is gone."""
    return connection.execute(select(TABLE).where(TABLE.c.id == id)).one()


def statuses(connection: Connection) -> dict[int, str]:
    """Every job's status."""
    found = connection.execute(select(TABLE.c.id, TABLE.c.status))
    return {one: status.value for one, status in found}


def exists(connection: Connection, id: int) -> bool:
    return connection.scalar(select(TABLE.c.id).where(TABLE.c.id == id)) is not None


def seen(connection: Connection, id: int) -> Seen:
    """What a claim of the job as it is now would have seen."""
    job = row(connection, id)
    return Seen(
        job.id,
        job.claim_token,
        job.attempt,
        job.max_attempts,
        job.rescues,
        None if job.uniqueness is None else '{"unique": true}',
    )


def change(connection: Connection, id: int, outcome: Outcome, rules: Rules | None = None) -> Change:
    """What `outcome` makes of the job as it is now."""
    return decide(seen(connection, id), outcome, rules or Rules(), random=0.5)


def completed(id: int, claim_token: int = 1, **fields: Any) -> Change:
    """A plain completion."""
    return Change(
        id, claim_token, Event.COMPLETE, JobStatus.COMPLETED, JobStatus.COMPLETED, **{"retain": 60.0, **fields}
    )


def users_table(connection: Connection, *, deferred: bool = False) -> None:
    """A table of the application's that references jobs."""
    when = "DEFERRABLE INITIALLY DEFERRED" if deferred else ""
    connection.execute(text(f"CREATE TABLE orders (job_id bigint NOT NULL REFERENCES sa_jobqueue.job {when})"))


def refer(connection: Connection, id: int) -> None:
    """A row of the application's that needs the job; it holds a KEY SHARE lock until the transaction ends."""
    connection.execute(text("INSERT INTO orders VALUES (:id)"), {"id": id})


def wait_until_blocked_by(connection: Connection) -> None:
    """Wait until another connection waits for a lock that this one holds. A third one looks: in a transaction the list of processes
    is the same at each look.
    """
    pid = connection.scalar(text("SELECT pg_backend_pid()"))
    blocked = text("SELECT count(*) FROM pg_stat_activity WHERE :pid = ANY (pg_blocking_pids(pid))")
    with connection.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as watching:
        wait_until(
            lambda: watching.scalar(blocked, {"pid": pid}) == 1,
            message="another connection to wait for a lock of this one",
        )
