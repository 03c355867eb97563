"""Is all well? `check` asks the database and the tables, one question after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated, Any

import psycopg
import typer
from psycopg import sql
from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.errors import ConfigurationError, JobQueueError, SchemaError
from sa_jobqueue.log import one_line
from sa_jobqueue.migrations import CURRENT, check_schema, current_version
from sa_jobqueue.payload import shown
from sa_jobqueue.statements import count_jobs
from sa_jobqueue.statements.overview import count_expired, list_workers
from sa_jobqueue.statements.unique import find_stray_keys
from sa_jobqueue.store import default_store
from sa_jobqueue.urls import mask_passwords

from .config import Config
from .options import Json, parse_duration
from .output import age, cleaned, jobs_of, print_facts, print_json
from .place import name_database, open_engine

__all__ = ["check"]

_OLDEST_SERVER = 15
#: Seconds by which two clocks may differ: `run_at` is a producer's clock, "due" the server's.
_SKEW = 2.0
_NOTIFY_PATIENCE = 5.0
#: Unique keys that are named.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question."""

    name: str
    ok: bool
    detail: str


def check(
    config: Config,
    *,
    max_wait: Annotated[
        timedelta | None,
        typer.Option(
            metavar="TIME", parser=parse_duration, help="A due job that has waited longer is a problem: 10m, 2h."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check that all is well: database, workers, waiting jobs.

    It looks at the server, its clock, the schema, LISTEN and NOTIFY, the workers and how many of them listen, queues with
    due jobs that no worker serves, expired leases, and unique keys that no job needs any more. Exit code 0: all is well; 1:
    something is wrong; 2: the database does not answer.

    sa-jobqueue check --max-wait 10m --json
    """
    engine = open_engine(config)
    try:
        with engine.connect() as connection:
            name_database(config, connection)
            findings = list(_findings(connection, engine, max_wait, config.schema))
    except (DBAPIError, JobQueueError) as error:
        if json:
            reason = error.orig if isinstance(error, DBAPIError) else error
            finding = Finding("database", False, one_line(mask_passwords(str(reason))))
            print_json({"ok": False, "checks": [asdict(finding)]})
        raise
    ok = all(finding.ok for finding in findings)
    if json:
        print_json({"ok": ok, "checks": [asdict(finding) for finding in findings]})
    else:
        print_facts(
            [("ok" if finding.ok else "problem", finding.name, finding.detail) for finding in findings],
            styles=["" if finding.ok else "red" for finding in findings],
        )
    if not ok:
        raise typer.Exit(1)


def _findings(connection: Connection, engine: Engine, max_wait: timedelta | None, schema: str) -> Iterator[Finding]:
    yield _database(connection)
    yield _clock(connection)
    yield (there := _schema(connection, schema))
    if not there.ok:
        return
    yield _wake_ups(engine, default_store.channel(connection))
    workers = connection.execute(list_workers()).all()
    yield _workers(workers)
    queues = connection.execute(count_jobs()).all()
    yield _served(queues, {name for worker in workers if not worker.stale for name in worker.queues})
    yield _waiting(queues, max_wait)
    yield _leases(connection)
    yield _unique_keys(connection)


def _database(connection: Connection) -> Finding:
    version, number, read_only, name = connection.execute(
        text(
            "SELECT current_setting('server_version'), current_setting('server_version_num')::int / 10000, "
            "pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool, current_database()"
        )
    ).one()
    said = f"PostgreSQL {version}, database {cleaned(name)}"
    if number < _OLDEST_SERVER:
        return Finding("database", False, f"{said}: {_OLDEST_SERVER} or newer is needed")
    if read_only:
        return Finding("database", False, f"{said}: it is read-only (a standby?); give the primary's URL")
    return Finding("database", True, said)


def _clock(connection: Connection) -> Finding:
    before = time.time()
    there = float(connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())")) or 0)
    after = time.time()
    skew = there - (before + after) / 2
    detail = f"the server is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} this machine"
    if abs(skew) > _SKEW + (after - before) / 2:
        return Finding("clock", False, f"{detail}: set the clocks (NTP); the server's decides when a job is due")
    return Finding("clock", True, detail)


def _schema(connection: Connection, schema: str) -> Finding:
    try:
        check_schema(connection)
    except SchemaError as error:
        return Finding("schema", False, str(error))
    found = current_version(connection)
    newer = "" if found == CURRENT else f", newer than this release's {CURRENT}"
    return Finding("schema", True, f"{schema} has version {found}{newer}")


def _wake_ups(engine: Engine, channel: str) -> Finding:
    """LISTEN on one connection, NOTIFY on another, over a channel beside the real one."""
    probe = f"{channel}_check"
    with engine.connect() as listening, engine.connect() as other:
        raw = listening.connection.dbapi_connection
        if not isinstance(raw, psycopg.Connection):
            raise ConfigurationError("check needs psycopg 3")
        raw.autocommit = True
        raw.execute(sql.SQL("LISTEN {}").format(sql.Identifier(probe)))
        begun = time.monotonic()
        other.execute(select(func.pg_notify(probe, "")))
        other.commit()
        heard = next(iter(raw.notifies(timeout=_NOTIFY_PATIENCE, stop_after=1)), None)
        took = time.monotonic() - begun
    if heard is None:
        return Finding("wake-ups", False, "LISTEN hears nothing: behind a pooler, give workers a direct --listen-url")
    return Finding("wake-ups", True, f"a NOTIFY was heard after {took * 1000:.1f} ms")


def _workers(workers: Any) -> Finding:
    live = [worker for worker in workers if not worker.stale]
    stale = len(workers) - len(live)
    places = ", ".join(f"{cleaned(worker.host)}:{worker.pid}" for worker in live[:5]) + (", …" if len(live) > 5 else "")
    listening = f" ({places}), {sum(worker.listening for worker in live)} listening" if live else ""
    return Finding("workers", True, f"{len(live)} live{listening}{f', {stale} stale' if stale else ''}")


def _served(queues: Any, served: set[str]) -> Finding:
    alone = [f"{cleaned(queue.queue)} ({queue.due:,})" for queue in queues if queue.due and queue.queue not in served]
    if alone:
        return Finding(
            "queues",
            False,
            f"due jobs that no live worker serves: {', '.join(alone)}; start one with `sa-jobqueue work --queue NAME`",
        )
    return Finding("queues", True, "every queue with due jobs is served")


def _waiting(queues: Any, max_wait: timedelta | None) -> Finding:
    due = sum(queue.due for queue in queues)
    oldest = max((queue.oldest_due_age for queue in queues if queue.due), default=0.0)
    said = f"{jobs_of(due)} due" + (f", the oldest for {age(oldest)}" if due else "")
    if max_wait is not None and oldest > max_wait.total_seconds():
        return Finding("waiting", False, f"{said}; more than {age(max_wait.total_seconds())} is too long")
    return Finding("waiting", True, said)


def _leases(connection: Connection) -> Finding:
    expired = connection.scalar(count_expired())
    if expired:
        return Finding(
            "leases",
            False,
            f"{jobs_of(expired)} running with an expired lease: the worker died or is cut off; any worker rescues them",
        )
    return Finding("leases", True, "no running job has an expired lease")


def _unique_keys(connection: Connection) -> Finding:
    """Ends and deletes by SQL of the user's own leave keys behind; nothing else does."""
    stray = connection.execute(find_stray_keys(limit=_NAMED)).all()
    if not stray:
        return Finding("unique", True, "no unique key is held by a job that has ended or is gone")
    named = ", ".join(f"{shown(one.key)} of job {one.job_id}" for one in stray)
    more = ", …" if stray[0].total > len(stray) else ""
    return Finding(
        "unique",
        False,
        f"{stray[0].total:,} unique keys of jobs that have ended or are gone, as after a DELETE by hand: {named}{more}; "
        "a worker frees them within a minute: start one, or see its log",
    )
