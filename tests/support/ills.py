"""Databases made ill, each in one way, and well again at the end of the block.

with invalid_index(url):
    assert look(url)["indexes"].level == "problem"
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

import psycopg
from sqlalchemy import Engine, NullPool, create_engine

from sa_jobqueue.doctor import Finding, Thresholds, examine
from sa_jobqueue.rules.tally import BUCKETS, bucket_of
from tests.support.databases import connect
from tests.support.pooler import direct
from tests.support.waiting import wait_until


def look(url: str, thresholds: Thresholds | None = None) -> dict[str, Finding]:
    """What each check finds."""
    return {finding.name: finding for finding in examine(_engine(direct(url)), thresholds=thresholds, probe=False)}


@lru_cache(maxsize=1)
def _engine(url: str) -> Engine:
    """The engine of several looks: it compiles their statements once."""
    return create_engine(url, poolclass=NullPool)


@contextmanager
def old_snapshot(url: str) -> Iterator[None]:
    """A report that was forgotten."""
    with connect(url) as connection:
        connection.execute("SET application_name = 'a forgotten report'")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1 FROM sa_jobqueue.job")
        yield


@contextmanager
def prepared_transaction(url: str) -> Iterator[None]:
    """A distributed transaction whose coordinator is gone. A second one is not to be found: its name is the server's."""
    with connect(url) as connection:
        name = f"order of {connection.info.dbname}"
        connection.execute("BEGIN")
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
        try:
            yield
        finally:
            connection.execute(f"ROLLBACK PREPARED '{name}'".encode())


@contextmanager
def dead_rows(url: str) -> Iterator[None]:
    """More than 100,000 rows that were deleted, and no autovacuum."""
    with connect(url) as connection:
        connection.execute("ALTER TABLE sa_jobqueue.unique_key SET (autovacuum_enabled = off)")
        connection.execute(
            "INSERT INTO sa_jobqueue.unique_key (key, job_id, expires_at)"
            " SELECT n::text, n, 'infinity' FROM generate_series(1, 120000) AS n"
        )
        connection.execute("ANALYZE sa_jobqueue.unique_key")
        connection.execute("DELETE FROM sa_jobqueue.unique_key")
        connection.execute("SELECT pg_stat_force_next_flush()")
        connection.execute("ANALYZE sa_jobqueue.unique_key")
        counted = "SELECT n_dead_tup >= 100000 FROM pg_stat_user_tables WHERE relname = 'unique_key'"
        wait_until(lambda: connection.execute(counted).fetchone() == (True,))
        yield
        connection.execute("ALTER TABLE sa_jobqueue.unique_key RESET (autovacuum_enabled)")
        wait_until(lambda: _shrunk(connection, "sa_jobqueue.unique_key"))
        connection.execute("VACUUM sa_jobqueue.unique_key")
        wait_until(lambda: connection.execute(counted).fetchone() == (False,))


def _shrunk(connection: psycopg.Connection, table: str) -> bool:
    """A transaction of another test's database, which began before, makes VACUUM FULL keep what it could have removed."""
    connection.execute(f"VACUUM FULL {table}".encode())
    return connection.execute("SELECT pg_total_relation_size(%s) < 100000", [table]).fetchone() == (True,)


@contextmanager
def invalid_index(url: str) -> Iterator[None]:
    """A CREATE INDEX CONCURRENTLY that failed."""
    with connect(url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.job (task) VALUES ('twice'), ('twice')")
        with suppress(psycopg.errors.UniqueViolation):
            connection.execute("CREATE UNIQUE INDEX CONCURRENTLY one_of_each ON sa_jobqueue.job (task)")
        yield
        connection.execute("DROP INDEX CONCURRENTLY sa_jobqueue.one_of_each")


@contextmanager
def sequence_behind(url: str) -> Iterator[None]:
    """Logical replication has copied a job, and not the sequence that gave its id."""
    with connect(url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.job (id, task, run_at) VALUES (4711, 'a_task', 'infinity')")
        yield
        name = "'sa_jobqueue.job'"
        connection.execute(
            f"SELECT setval(pg_get_serial_sequence({name}, 'id'), max(id)) FROM sa_jobqueue.job".encode()
        )


@contextmanager
def no_claim_index(url: str) -> Iterator[None]:
    """Someone has dropped it."""
    with connect(url) as connection:
        connection.execute("DROP INDEX sa_jobqueue.job_claim_idx")
        yield
        connection.execute(
            "CREATE INDEX job_claim_idx ON sa_jobqueue.job (queue, priority, run_at, id) WHERE status = 'queued'"
        )


@contextmanager
def full_notify_queue(url: str) -> Iterator[None]:
    """A session that listens and stays in its transaction, while others notify."""
    with connect(url) as listening, connect(url) as other:
        listening.execute("LISTEN nothing")
        listening.execute("BEGIN")
        listening.execute("SELECT 1")
        other.execute("SELECT pg_notify('nothing', repeat('x', 7900) || n) FROM generate_series(1, 300) AS n")
        yield


@contextmanager
def row_lock(url: str) -> Iterator[None]:
    """A transaction that has a job's row, and another that waits for it."""
    with connect(url) as holding, connect(url) as waiting:
        holding.execute("INSERT INTO sa_jobqueue.job (task) VALUES ('a_task')")
        holding.execute("SET application_name = 'an operator'")
        holding.execute("BEGIN")
        holding.execute("UPDATE sa_jobqueue.job SET task = 'b_task'")
        thread = threading.Thread(target=waiting.execute, args=["UPDATE sa_jobqueue.job SET task = 'c_task'"])
        thread.start()
        pid = waiting.info.backend_pid
        blocked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
        wait_until(lambda: holding.execute(blocked, [pid]).fetchone() == (True,))
        try:
            yield
        finally:
            holding.execute("COMMIT")
            thread.join(30)


@contextmanager
def no_autovacuum(url: str) -> Iterator[None]:
    """Turned off for the jobs, say for a bulk load, and never on again."""
    with connect(url) as connection:
        connection.execute("ALTER TABLE sa_jobqueue.job SET (autovacuum_enabled = off)")
        yield
        connection.execute("ALTER TABLE sa_jobqueue.job RESET (autovacuum_enabled)")


@contextmanager
def unserved_queue(url: str) -> Iterator[None]:
    """A due job of a queue that no worker serves, until one does."""
    with connect(url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.job (task, queue) VALUES ('a_task', 'images\x1b')")
        yield
        connection.execute("UPDATE sa_jobqueue.job SET queue = 'mail'")
        connection.execute(WORKER, [["mail"]])


WORKER = (
    "INSERT INTO sa_jobqueue.worker (id, host, pid, queues, concurrency, version)"
    " VALUES (gen_random_uuid(), 'web-1', 7, %s, 4, '1')"
)


ABLE_WORKER = (
    "INSERT INTO sa_jobqueue.worker (id, host, pid, queues, concurrency, version, lease, schema_version, tasks)"
    " VALUES (gen_random_uuid(), 'web-1', 7, '{mail}', 4, '1', %s, 1, %s)"
)


@contextmanager
def unknown_task(url: str) -> Iterator[None]:
    """A task that was renamed, until it has its old name as an alias."""
    with connect(url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.job (task, queue) VALUES ('shop.send', 'mail')")
        connection.execute(SCHEDULE)
        connection.execute(ABLE_WORKER, [60.0, '{"shop.post": {"timeout": null, "aliases": []}}'])
        yield
        connection.execute(
            "UPDATE sa_jobqueue.worker SET tasks = %s",
            ['{"shop.post": {"timeout": null, "aliases": ["shop.send"]}, "shop.report": {"aliases": []}}'],
        )


@contextmanager
def near_timeout(url: str) -> Iterator[None]:
    """Handlers that often run into their timeout, until they get more time."""
    with connect(url) as connection:
        connection.execute(ABLE_WORKER, [60.0, '{"shop.post": {"timeout": 2.5, "aliases": []}}'])
        ran(connection, "shop.post", completed=95, seconds=0.3)
        ran(connection, "shop.post", completed=5, seconds=2.6)
        yield
        connection.execute("UPDATE sa_jobqueue.worker SET tasks = %s", ['{"shop.post": {"timeout": 10.0}}'])


@contextmanager
def failing_task(url: str) -> Iterator[None]:
    """More than half of its jobs fail for good, until that was long ago."""
    with connect(url) as connection:
        ran(connection, "shop.charge", completed=40, seconds=0.1)
        ran(connection, "shop.charge", failed=60, seconds=0.1)
        yield
        connection.execute("UPDATE sa_jobqueue.stat SET at = at - interval '2 h'")


def ran(connection: psycopg.Connection, task: str, *, seconds: float, completed: int = 0, failed: int = 0) -> None:
    """Runs of a task in the last minutes, as workers count them."""
    runs = [0] * BUCKETS
    runs[bucket_of(seconds)] = completed + failed
    names = "retried, cancelled, snoozed, suspended, released, rescued, lost"
    connection.execute(
        f"INSERT INTO sa_jobqueue.stat (seconds, at, queue, task, completed, failed, {names}, run_seconds, wait_seconds, runs, waits)"
        f" SELECT 60, date_trunc('minute', now()) - count(*) * interval '1 min', 'mail', %s, %s, %s, 0, 0, 0, 0, 0, 0, 0, 0, 0, %s, %s"
        " FROM sa_jobqueue.stat".encode(),
        [task, completed, failed, runs, [0] * BUCKETS],
    )


@contextmanager
def expired_lease(url: str) -> Iterator[None]:
    """A running job whose worker is gone, until it is rescued."""
    with connect(url) as connection:
        connection.execute(
            "INSERT INTO sa_jobqueue.job (task, status, claim_token, lease_expires_at)"
            " VALUES ('a_task', 'running', 1, now() - interval '1 s')"
        )
        yield
        connection.execute("UPDATE sa_jobqueue.job SET lease_expires_at = now() + interval '1 min'")


@contextmanager
def forgotten_pause(url: str) -> Iterator[None]:
    """A queue that was paused two days ago and has a due job, until it is resumed."""
    with connect(url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.job (task, queue) VALUES ('a_task', 'mail\x1b')")
        connection.execute(
            "INSERT INTO sa_jobqueue.job_limit (owner, name, paused_at, pause_reason)"
            " VALUES ('queue', 'mail\x1b', now() - interval '2 days', 'the provider\nis down')"
        )
        yield
        connection.execute("DELETE FROM sa_jobqueue.job_limit")


@contextmanager
def lapsed_permits(url: str) -> Iterator[None]:
    """All permits of a limit are those of a dead worker, until its jobs are rescued."""
    with connect(url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.job_limit (owner, name, running) VALUES ('task', 'a_task', 2)")
        connection.execute(
            "INSERT INTO sa_jobqueue.job (id, task, status, claim_token, claimed_at, lease_expires_at)"
            " SELECT 70 + n, 'a_task', 'running', 1, now(), now() - interval '1 s' FROM generate_series(1, 2) AS n"
        )
        yield
        connection.execute("UPDATE sa_jobqueue.job SET lease_expires_at = now() + interval '1 min'")


@contextmanager
def stray_key(url: str) -> Iterator[None]:
    """A key whose job was deleted by hand."""
    with connect(url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.unique_key (key, job_id) VALUES ('order 7', 4711)")
        yield
        connection.execute("DELETE FROM sa_jobqueue.unique_key")


@contextmanager
def waiting_in_a_circle(url: str) -> Iterator[None]:
    """Jobs of a workflow that wait for each other, by an INSERT by hand."""
    with connect(url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.workflow (id) VALUES (7)")
        connection.execute(
            "INSERT INTO sa_jobqueue.job (id, task, status, workflow_id, blocked_by)"
            " VALUES (7001, 'a_task', 'blocked', 7, 7002), (7002, 'a_task', 'blocked', 7, 7001)"
        )
        connection.execute(
            "INSERT INTO sa_jobqueue.workflow_dependency (child_id, parent_id) VALUES (7001, 7002), (7002, 7001)"
        )
        yield
        connection.execute("DELETE FROM sa_jobqueue.workflow_dependency")
        connection.execute("DELETE FROM sa_jobqueue.job")


@contextmanager
def waiting_for_an_ended_job(url: str) -> Iterator[None]:
    """A job of a workflow whose parent was ended by hand."""
    with connect(url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.workflow (id) VALUES (7)")
        connection.execute(
            "INSERT INTO sa_jobqueue.job (id, task, status, workflow_id, blocked_by)"
            " VALUES (7001, 'a_task', 'completed', 7, NULL), (7002, 'a_task', 'blocked', 7, 7001)"
        )
        yield
        connection.execute("DELETE FROM sa_jobqueue.job")


@contextmanager
def unread_workflow(url: str) -> Iterator[None]:
    """A job of a workflow ended while no worker was there to release the one that waits for it, until one reads that."""
    with connect(url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.workflow (id) VALUES (7)")
        connection.execute(
            "INSERT INTO sa_jobqueue.job (id, task, status, workflow_id, blocked_by, finished_at) VALUES"
            " (7001, 'a_task', 'completed', 7, NULL, now() - interval '3 h'), (7002, 'a_task', 'blocked', 7, 7001, NULL)"
        )
        connection.execute(
            "INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id, completed) VALUES (7, 7001, true)"
        )
        yield
        connection.execute("SELECT sa_jobqueue.advance('{7}', '{0}', 100)")
        connection.execute("UPDATE sa_jobqueue.job SET status = 'completed' WHERE id = 7002")


@contextmanager
def unanswered_question(url: str) -> Iterator[None]:
    """A job whose question has been without an answer for eight days."""
    with connect(url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.job (id, task, status) VALUES (7001, 'a_task', 'blocked')")
        connection.execute(
            "INSERT INTO sa_jobqueue.wait (job_id, step, signal, question, since)"
            " VALUES (7001, 'signal:go', 'go\x1b', '{\"text\": \"Ship?\"}', now() - interval '8 days')"
        )
        yield
        connection.execute("UPDATE sa_jobqueue.wait SET resumed_at = now()")


@contextmanager
def overdue_jobs(url: str) -> Iterator[None]:
    """Finished jobs that no worker deletes."""
    with connect(url) as connection:
        connection.execute(
            "INSERT INTO sa_jobqueue.job (task, status, finished_at, purge_at)"
            " SELECT 'a_task', 'completed', now(), now() - interval '3 h' FROM generate_series(1, 10)"
        )
        yield
        connection.execute("DELETE FROM sa_jobqueue.job WHERE purge_at <= now()")


SCHEDULE = (
    "INSERT INTO sa_jobqueue.schedule (name, expression, task) VALUES ('nightly report', '0 3 * * *', 'shop.report')"
)


@contextmanager
def late_schedule(url: str) -> Iterator[None]:
    """Its time has passed, and no worker looked."""
    with connect(url) as connection:
        connection.execute(SCHEDULE)
        connection.execute("UPDATE sa_jobqueue.schedule SET due_at = now() - interval '5 min'")
        yield
        connection.execute("UPDATE sa_jobqueue.schedule SET due_at = now() + interval '5 min'")


@contextmanager
def failing_schedule(url: str) -> Iterator[None]:
    """A worker could not enqueue its job."""
    with connect(url) as connection:
        connection.execute(SCHEDULE)
        connection.execute("UPDATE sa_jobqueue.schedule SET error = 'no such\ntime zone'")
        yield
        connection.execute("UPDATE sa_jobqueue.schedule SET error = NULL")


@contextmanager
def paused_schedule(url: str) -> Iterator[None]:
    """Its jobs have failed too often."""
    with connect(url) as connection:
        connection.execute(SCHEDULE)
        connection.execute("UPDATE sa_jobqueue.schedule SET paused_at = now(), paused_by = 'failures'")
        yield
        connection.execute("UPDATE sa_jobqueue.schedule SET paused_at = NULL")


@contextmanager
def newer_schema(url: str) -> Iterator[None]:
    """A version that this release cannot work with."""
    with connect(url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.schema_version (version, compatible_with) VALUES (99, 99)")
        yield
        connection.execute("DELETE FROM sa_jobqueue.schema_version WHERE version = 99")
