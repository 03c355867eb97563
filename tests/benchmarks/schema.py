"""The database under measurement, one of its own: our real table, made by our migrations, where users have it.

In another schema SQLAlchemy would put its name into each statement of a handler's, which takes a while.

with benchmark_database(url) as bench:
    bench.fill(100_000, task="nothing")
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import Connection, Executable, NullPool, create_engine, text
from sqlalchemy.exc import ProgrammingError

from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.trials.bench.processes import Place
from sa_jobqueue.util.urls import database_url
from sa_jobqueue.worker.connections.service import Connector

SCHEMA = "sa_jobqueue"
#: The tables that are emptied for each run.
_TABLES = ", ".join(
    f"{SCHEMA}.{name}"
    for name in (
        "job",
        "unique_key",
        "job_progress",
        "job_log",
        "schedule",
        "job_limit",
        "job_key",
        "limit_state",
        "workflow",
        "workflow_dependency",
        "workflow_join",
        "workflow_callback",
        "workflow_event",
    )
)

#: The arguments of a job that `fill` makes: about as long as those of a small call.
_ARGS = "jsonb_build_object('n', n)"


@dataclass(frozen=True)
class Bench(Place):
    """Where a measure works, and how large: `small` is only to see that it runs."""

    small: bool = False
    repetitions: int = 3
    batch: int = 100

    @property
    def repeat(self) -> int:
        return 1 if self.small else self.repetitions

    def execute(self, sql: str, **parameters: Any) -> Any:
        """Run SQL outside of a transaction; the first column of the first row."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            found = connection.execute(text(sql), parameters)
            return found.scalar() if found.returns_rows else None

    def empty(self) -> None:
        """No jobs and no limits, no files of the old ones."""
        self.execute(f"TRUNCATE {_TABLES}")

    def fill(
        self, jobs: int, *, task: str = "nothing", queues: Sequence[str] = ("default",), priority: int = 4,
        due: str = "now()", scope: str | None = None, limits: bool = False, key: str = "NULL",
    ) -> None:  # fmt: skip
        """Queue this number of jobs, shared out among `queues`; each has one argument, `n`. `scope`: of their unique keys.
        `limits`: they expire, and have a deadline, in an hour. `key`: SQL for the key of job `n`.
        """
        limit = "now() + interval '1 hour'" if limits else "NULL"
        rule = "NULL" if scope is None else f"jsonb_build_object('key', 'nothing:' || md5(n::text), 'scope', '{scope}')"
        self.execute(
            f"INSERT INTO {SCHEMA}.job (task, args, queue, priority, run_at, uniqueness, expires_at, deadline_at, concurrency_key) "
            f"SELECT :task, {_ARGS}, (:queues)[1 + n % cardinality(:queues)], :priority, {due}, {rule}, {limit}, {limit}, {key} "
            "FROM generate_series(1, :jobs) AS n".replace(":queues", "CAST(:queues AS text[])"),
            task=task, queues=list(queues), priority=priority, jobs=jobs,
        )  # fmt: skip

    def settle(self) -> None:
        """Do now what autovacuum and the checkpointer would do at some time, so that it does not count for one side."""
        self.execute(f"VACUUM ANALYZE {_TABLES}")
        with suppress(ProgrammingError):  # the role may not
            self.execute("CHECKPOINT")

    def prepare(self, jobs: int, *statements: Executable, **options: Any) -> None:
        """An empty table, filled and settled. `statements` are executed before, to set limits perhaps."""
        self.empty()
        with self.engine.begin() as connection:
            for one in statements:
                connection.execute(one)
        self.fill(jobs, **options)
        self.settle()

    def count(self, where: str = "true") -> int:
        return int(self.execute(f"SELECT count(*) FROM {SCHEMA}.job WHERE {where}"))

    def wait_for(self, sql: str, patience: float = 60.0) -> Any:
        """Ask until the answer is true."""
        until = time.monotonic() + patience
        while not (found := self.execute(sql)):
            if time.monotonic() > until:
                raise TimeoutError(f"still not, after {patience:g} s: {sql}")
            time.sleep(0.05)
        return found

    @property
    def version(self) -> int:
        """The server's major version."""
        return int(self.execute("SHOW server_version_num")) // 10_000


def service_connection(address: str) -> tuple[Connection, psycopg.Connection[Any]]:
    """A connection with the settings of the worker's own, and the bare psycopg connection in it."""
    connection = Connector(create_engine(database_url(address)), lease=60).connect()
    bare = connection.connection.dbapi_connection
    assert isinstance(bare, psycopg.Connection)
    bare.autocommit = False
    return connection, bare


@contextmanager
def benchmark_database(url: str, **options: Any) -> Iterator[Bench]:
    """Create a database on the server of `url`, whose role must be allowed to; drop it afterwards."""
    beside = database_url(url)
    own = beside.set(database=f"{beside.database or beside.username}_measures")
    server = create_engine(beside, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    name = server.dialect.identifier_preparer.quote(own.database or "")
    drop = text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    with server.connect() as connection:
        connection.execute(drop)
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine = create_engine(own, pool_size=5)
    try:
        upgrade_database(engine)
        yield Bench(own, engine, **options)
    finally:
        engine.dispose()
        with server.connect() as connection:
            connection.execute(drop)
