"""Making the checks, one after the other, in a transaction that can write nothing and waits for nothing long."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ..log import one_line
from ..store import Store, default_store
from ..urls import mask_passwords
from ..worker.connections.service import setting
from .catalogue import CHECKS, Check
from .examination import Examination
from .finding import Finding
from .thresholds import Thresholds

__all__ = ["examine", "look_at", "make_reading", "reading"]

#: A check that takes longer is given up: what is wrong with a busy server must not become worse by it.
_PATIENCE = timedelta(seconds=5)
_LOCK_PATIENCE = timedelta(milliseconds=250)


def examine(
    engine: sa.Engine,
    *,
    thresholds: Thresholds | None = None,
    checks: Sequence[Check] = CHECKS,
    probe: bool = True,
    tasks: Collection[str] | None = None,
    store: Store = default_store,
) -> list[Finding]:
    """Make the checks on a connection of this engine, and return what each found.

    `tasks`: the names that an application knows, to find queued jobs that it does not. `probe`: try LISTEN and NOTIFY, too, which
    takes two more connections, of psycopg 3, and up to 5 seconds.

    Raises DBAPIError where the database does not answer, JobQueueError where the role may not see the schema or the probe cannot be made.
    """
    with reading(engine) as connection:
        examination = Examination(
            connection, engine=engine if probe else None, thresholds=thresholds, tasks=tasks, store=store
        )
        return list(look_at(examination, checks=checks))


def look_at(
    examination: Examination, *, checks: Sequence[Check] = CHECKS, patience: timedelta = _PATIENCE
) -> Iterator[Finding]:
    """Make the checks in the transaction of the examination's connection, which may be READ ONLY. `patience`: its limit for a statement."""
    for check in checks:
        finding = _answer(check, examination, patience)
        yield finding
        if check.decides and finding.level == "problem":
            return


@contextmanager
def reading(
    engine: sa.Engine,
    *,
    statement: timedelta = _PATIENCE,
    lock: timedelta = _LOCK_PATIENCE,
    idle: timedelta = 6 * _PATIENCE,
) -> Generator[sa.Connection]:
    """A READ ONLY transaction, rolled back at the end, whose statements are given up after some time."""
    # Also where the engine is in AUTOCOMMIT mode.
    level = {"isolation_level": "READ COMMITTED"}
    with engine.connect().execution_options(**level) as connection, connection.begin() as transaction:
        make_reading(connection, statement=statement, lock=lock, idle=idle)
        yield connection
        transaction.rollback()


def make_reading(connection: sa.Connection, *, statement: timedelta, lock: timedelta, idle: timedelta) -> None:
    """Make the transaction of this connection, which has done nothing yet, READ ONLY, with these limits."""
    connection.exec_driver_sql("SET TRANSACTION READ ONLY")
    limits = {
        "statement_timeout": statement,
        "lock_timeout": lock,
        "idle_in_transaction_session_timeout": idle,
    }
    milliseconds = {name: f"{int(limit.total_seconds() * 1000)}ms" for name, limit in limits.items()}
    # The statistics of a queue's table are often old, and by a plan that trusts them a count would not stop at its cap. Compiling
    # such statements takes longer than they do.
    planner = {"enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off"}
    connection.exec_driver_sql(setting({**milliseconds, **planner}, local=True))


def _answer(check: Check, examination: Examination, patience: timedelta) -> Finding:
    """What the check found; where the database refused or took too long, that."""
    point = examination.connection.begin_nested()
    try:
        finding = check.look(examination)
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None)
        if state is None or error.connection_invalidated or state[:2] in _AWAY:
            raise
        point.rollback()
        return _refused(check.name, state, error, patience)
    point.commit()
    return finding


#: SQLSTATE classes of a connection that is gone, and of a server that goes.
_AWAY = {"08", "58"}
#: What keeps a check from being made, and what to do about it, by SQLSTATE. None of them is wrong with the queue.
_MEANINGS = {
    "42501": ("this role may not look", "`sa-jobqueue grants --role ROLE --can read` prints what it needs"),
    "57014": (
        "it took longer than {patience:g} s, and was given up",
        "look again when the server is less busy",
    ),
    "55P03": ("a table is locked", "look again when the migration or VACUUM FULL that locks it is over"),
}


def _refused(name: str, state: str, error: DBAPIError, patience: timedelta) -> Finding:
    said = one_line(mask_passwords(str(error.orig)))
    if state in _MEANINGS:
        meaning, advice = _MEANINGS[state]
        return Finding(name, "notice", f"{meaning.format(patience=patience.total_seconds())}: {said}", advice)
    return Finding(name, "problem", f"it could not be looked at: {said}", "see the server's log")
