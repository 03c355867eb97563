"""What claims under limits read: by index, also where the plan was made when all tables were empty and no statistics came since."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from tests.support.databases import Databases
from tests.support.limits import Claimant, end, key, limit, rate
from tests.support.plans import service_connection

BACKLOG, KEYS = 60_000, 300

FILL = f"""
    INSERT INTO sa_jobqueue.job (queue, task, concurrency_key, priority, run_at, created_at, status, attempt, claim_token, finished_at)
    SELECT 'default', CASE WHEN mod(n, 2) = 0 THEN 'few' ELSE 'a_task' END, CASE WHEN mod(n, 11) > 0 THEN 'k' || mod(n, {KEYS}) END, mod(n, 10),
        now() - interval '1 hour' + CASE WHEN mod(n, 7) = 0 THEN interval '1 day' ELSE interval '0' END, now() - interval '1 hour',
        CASE WHEN mod(n, 3) = 0 THEN 'completed' ELSE 'queued' END, (mod(n, 501) = 0)::integer, 1, CASE WHEN mod(n, 3) = 0 THEN now() END
    FROM generate_series(1, {BACKLOG}) AS n
"""


@pytest.fixture(params=["empty when planned", "full when planned"])
def connection(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Connection]:
    """A worker's connection, on which each statement has been executed and planned."""
    name = databases.new_name()
    engine = create_engine(databases.create(name))
    with engine.begin() as setup:
        for table in ("job", "job_limit", "job_key", "limit_state"):
            setup.exec_driver_sql(f"ALTER TABLE sa_jobqueue.{table} SET (autovacuum_enabled = off)")
    if request.param == "full when planned":
        fill(engine)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as setup:
        setup.exec_driver_sql("VACUUM ANALYZE")
    with service_connection(engine) as connection:
        limits(connection)
        for _ in range(8):
            Claimant(connection).claim(1)
        connection.rollback()
        if request.param == "empty when planned":
            fill(engine)
        yield connection
        connection.rollback()
    engine.dispose()
    databases.drop(name)


def fill(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(FILL)
        connection.exec_driver_sql(
            f"INSERT INTO sa_jobqueue.job_key (owner, name, key, weight) SELECT 'queue', 'default', 'k' || n, 2 FROM generate_series(1, {KEYS}, 2) AS n"
        )
        connection.exec_driver_sql(
            f"INSERT INTO sa_jobqueue.limit_state (owner, name, key, free_at) SELECT 'queue', 'default', 'k' || n, now() FROM generate_series(1, {KEYS}) AS n"
        )


def limits(connection: Connection) -> None:
    """All kinds at once."""
    limit(
        connection,
        running=100,
        key_running=2,
        strict=True,
        **rate(10_000, 1.0, 1_000),
        **rate(100, 1.0, 10, prefix="key_"),
    )
    limit(connection, "few", owner="task", running=50, key_running=1, **rate(10_000, 1.0, 1_000))
    key(connection, "k1", running=3)
    key(connection, "k2", "few", owner="task", running=3)


def reads(connection: Connection) -> dict[str, tuple[int, int]]:
    """By table and index, how often it was scanned, and how many entries were read; by this transaction too."""
    tables = "SELECT relname, seq_scan + pg_stat_get_xact_numscans(relid), seq_tup_read + pg_stat_get_xact_tuples_returned(relid) FROM pg_stat_user_tables"
    indexes = "SELECT indexrelname, pg_stat_get_xact_numscans(indexrelid), pg_stat_get_xact_tuples_returned(indexrelid) FROM pg_stat_user_indexes"
    connection.exec_driver_sql("SELECT pg_stat_clear_snapshot()")
    found = {
        name: (scans, read)
        for name, scans, read in connection.exec_driver_sql(f"{tables} WHERE schemaname = 'sa_jobqueue'")
    }
    return found | {
        name: (scans, read)
        for name, scans, read in connection.exec_driver_sql(f"{indexes} WHERE schemaname = 'sa_jobqueue'")
    }


def test_a_claim_reads_what_it_takes_and_a_key_or_so_more(connection: Connection) -> None:
    """No table is read as a whole but that of limits, which has two rows; of no index are more than some entries read per job."""
    limits(connection)
    claimant = Claimant(connection)
    end(connection, claimant.claim(20))
    before = reads(connection)

    jobs = claimant.claim(20)

    after = reads(connection)
    assert len(jobs) == 20
    used = {name: (after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in after}
    for table in ("job", "job_key", "limit_state"):
        assert used[table] == (0, 0), used
    read = {
        name: entries
        for name, (_, entries) in used.items()
        if entries and name.startswith("job_") and name != "job_limit"
    }
    assert max(read.values()) <= 40 * 20, read
    assert {"job_key_ready_idx", "job_pkey"} <= read.keys(), read
    assert not {"job_failed_idx", "job_purge_idx", "job_limit_idx", "job_schedule_idx"} & read.keys(), read


def test_a_claim_that_finds_all_keys_full_reads_no_backlog(connection: Connection) -> None:
    """The jobs behind the first of a key are not read."""
    limits(connection)
    limit(
        connection,
        running=None,
        key_running=1,
        strict=False,
        **{f"rate_{part}": None for part in ("count", "seconds", "burst")},
    )
    claimant = Claimant(connection)
    for _ in range(6):
        claimant.claim(1000)
    before = reads(connection)

    assert claimant.claim(50) == []

    after = reads(connection)
    read = {name: after[name][1] - before[name][1] for name in after if name.startswith("job_key")}
    assert max(read.values()) <= 20 * KEYS, read
    assert after["job"][0] == before["job"][0]


def test_a_claim_looks_past_the_jobs_of_a_paused_task_once(connection: Connection) -> None:
    """And looks others up by their ids."""
    limits(connection)
    limit(connection, running=None, key_running=1, **{f"rate_{part}": None for part in ("count", "seconds", "burst")})
    limit(connection, "few", owner="task", paused_at=text("now()"))
    connection.exec_driver_sql(
        "UPDATE sa_jobqueue.job SET task = 'few' WHERE concurrency_key IS NULL AND run_at < now() - interval '1 minute'"
    )
    before = reads(connection)

    Claimant(connection).claim_once(KEYS * 2)

    after = reads(connection)
    assert after["job"][0] == before["job"][0]
    read = {name: after[name][1] - before[name][1] for name in ("job_claim_idx", "job_pkey")}
    assert max(read.values()) <= 2 * BACKLOG // 11, read


def test_the_counters_see_a_scan_of_the_whole_table(connection: Connection) -> None:
    """So the tests above can fail."""
    before = reads(connection)
    connection.execute(text("SELECT count(*) FROM sa_jobqueue.job WHERE args IS NOT NULL"))
    after = reads(connection)
    assert max(after[name][1] - before[name][1] for name in after) >= BACKLOG
