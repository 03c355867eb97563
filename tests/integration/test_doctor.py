"""The doctor on a database that is ill in one way: it finds that, says what to do, and finds it well afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy import Engine, NullPool, create_engine, event, make_url, text

from sa_jobqueue.doctor import CHECKS, Examination, Finding, Thresholds, examine, look_at
from sa_jobqueue.doctor.checks import connection as checking
from sa_jobqueue.doctor.finding import found, worst
from sa_jobqueue.migrations import runner
from tests.support import ills, pooler
from tests.support.databases import connect
from tests.support.ills import look
from tests.support.waiting import wait_until

Ill = Callable[[str], AbstractContextManager[None]]

DEFAULT = Thresholds()


@pytest.fixture
def database_url(database_url: str) -> str:
    """The URL past a pooler, whose sessions would be other clients' as well."""
    return pooler.direct(database_url)


@pytest.mark.parametrize(
    ("ill", "check", "thresholds", "detail", "advice"),
    [
        (
            ills.old_snapshot, "snapshot", Thresholds(snapshot=(0.0, 0.0)),
            "(a forgotten report, role postgres, idle in transaction) holds a snapshot for 0s: SELECT 1 FROM sa_jobqueue.job",
            "SELECT pg_terminate_backend(",
        ),
        (
            ills.prepared_transaction, "snapshot", Thresholds(snapshot=(0.0, 0.0)),
            "the prepared transaction order of ", "ROLLBACK PREPARED 'order of ",
        ),
        (
            ills.dead_rows, "dead-rows", Thresholds(dead_rows=(1_000, 100_000)),
            "unique_key has 120,000 dead rows beside 0 live ones", "VACUUM sa_jobqueue.unique_key",
        ),
        (
            ills.dead_rows, "bloat", Thresholds(bloat_ratio=(2.0, 4.0), bloat_bytes=(1_000_000, 4_000_000)),
            "times what its rows need by estimate", "VACUUM FULL sa_jobqueue.unique_key",
        ),
        (ills.dead_rows, "vacuum", DEFAULT, "autovacuum is off for unique_key", "RESET (autovacuum_enabled)"),
        (ills.no_autovacuum, "vacuum", DEFAULT, "autovacuum is off for job", "ALTER TABLE sa_jobqueue.job RESET"),
        (ills.invalid_index, "indexes", DEFAULT, "one_of_each is not valid", "DROP INDEX CONCURRENTLY sa_jobqueue.one_of_each"),
        (ills.no_claim_index, "indexes", DEFAULT, "missing: job_claim_idx", "sa-jobqueue migrate --sql"),
        (ills.no_claim_index, "plans", DEFAULT, "the claim: ", "ANALYZE sa_jobqueue.job"),
        (
            ills.full_notify_queue, "notify-queue", Thresholds(notify_queue=(0.0001, 0.0001)),
            "the notification queue is 0.0", "pg_terminate_backend",
        ),
        (
            ills.row_lock, "locks", Thresholds(lock_wait=(0.0, 0.0)),
            "uses job and waits for process", "SELECT pg_terminate_backend(",
        ),
        (
            ills.unserved_queue, "queues", DEFAULT,
            "due jobs that no live worker serves: images\\x1b (1)", "sa-jobqueue work --queue NAME",
        ),
        (ills.expired_lease, "leases", DEFAULT, "1 job running with an expired lease", "any worker rescues them"),
        (ills.stray_key, "unique", DEFAULT, "as after a DELETE by hand: 'order 7' of job 4711", "a worker frees them"),
        (
            ills.overdue_jobs, "cleanup", Thresholds(overdue_rows=10),
            "10 jobs should be deleted by now, the first for 3h", "workers delete them",
        ),
        (ills.late_schedule, "schedules", DEFAULT, "no worker has looked at what is due: nightly report", "start a worker"),
        (ills.failing_schedule, "schedules", DEFAULT, "nightly report (no such time zone)", "sa-jobqueue schedule list"),
        (ills.paused_schedule, "schedules", DEFAULT, "paused because its jobs failed: nightly report", "sa-jobqueue schedule resume"),
        (ills.newer_schema, "schema", DEFAULT, "has version 99", "upgrade the package"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)  # fmt: skip
def test_an_ill_is_found_and_is_gone_when_it_is_mended(
    database_url: str, ill: Ill, check: str, thresholds: Thresholds, detail: str, advice: str
) -> None:
    """A problem with what was found and what to do; then the same check finds it well, and so do all others at the default limits."""
    with ill(database_url):
        finding = look(database_url, thresholds)[check]
        assert finding.level == "problem", finding
        assert detail in finding.detail
        assert advice in finding.advice

    wait_until(lambda: look(database_url, thresholds)[check].level == "ok", message=f"{check} to be well again")
    after = look(database_url)
    assert {name: one for name, one in after.items() if one.level == "problem" and name != "queues"} == {}
    assert all(one.advice == "" for one in after.values() if one.level == "ok")


def test_a_database_that_is_well_is_found_well(database_url: str) -> None:
    """Each check once, in the order of the list."""
    findings = look(database_url)
    assert list(findings) == [check.name for check in CHECKS]
    assert {one.level for name, one in findings.items() if name not in {"slots", "connections"}} == {"ok"}
    plans = findings["plans"].detail
    assert "the claim reads job_claim_idx and job_pkey" in plans
    assert "the completion reads job_running_idx" in plans


def test_the_doctor_writes_nothing(database_url: str) -> None:
    """Its transaction is READ ONLY, and is rolled back. No prepared statement is left behind."""
    engine = create_engine(database_url)
    said: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    examine(engine, probe=False)
    assert "SET TRANSACTION READ ONLY" in said[0]
    assert any(one.startswith("PREPARE") for one in said)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM pg_prepared_statements WHERE from_sql")) == 0
        assert connection.scalar(text("SHOW transaction_read_only")) == "off"
        assert connection.scalar(text("SHOW enable_seqscan")) == "on"
    engine.dispose()


def test_a_missing_schema_ends_the_checks(empty_database_url: str) -> None:
    """What needs the tables is not asked."""
    findings = look(empty_database_url)
    assert list(findings) == ["database", "clock", "schema"]
    assert findings["schema"].advice == "run `sa-jobqueue migrate`"
    assert "is missing; version 1 is needed" in findings["schema"].detail


def test_an_older_schema_is_a_problem(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is migrated before the workers of the new release start."""
    monkeypatch.setattr(runner, "CURRENT", 2)
    finding = look(database_url)["schema"]
    assert (finding.level, finding.advice) == ("problem", "run `sa-jobqueue migrate`")
    assert "has version 1; version 2 is needed" in finding.detail


def test_a_newer_schema_that_works_is_a_notice(database_url: str) -> None:
    """As while a deployment rolls."""
    with connect(database_url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.schema_version (version, compatible_with) VALUES (2, 1)")
    finding = look(database_url)["schema"]
    assert finding.level == "notice"
    assert "version 2, newer than this release's 1" in finding.detail


def test_an_old_server_and_a_wrong_clock_are_problems(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    """Each with what to do."""
    monkeypatch.setattr(checking, "_OLDEST_SERVER", 99)
    monkeypatch.setattr(checking, "time", SimpleNamespace(time=lambda: time.time() - 10))
    findings = look(database_url)
    assert findings["database"].detail.endswith("99 or newer is needed")
    assert "ahead of this machine" in findings["clock"].detail
    assert findings["clock"].advice.startswith("set the clocks")
    assert 9 < findings["clock"].numbers["seconds"] < 12


def test_a_read_only_database_is_a_problem(database_url: str) -> None:
    """An operator has made it so; the doctor's own transaction is READ ONLY as well, and is not meant."""
    assert look(database_url)["database"].level == "ok"
    with connect(database_url) as connection:
        name = make_url(database_url).database
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'.encode())
    assert "read-only" in look(database_url)["database"].detail


def test_a_listen_that_hears_nothing_is_a_problem(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    """As behind a pooler, which gives NOTIFYs to the client that has the connection."""
    engine = create_engine(database_url, poolclass=NullPool)
    (heard,) = (one for one in examine(engine) if one.name == "wake-ups")
    assert heard.detail.startswith("a NOTIFY was heard after")
    monkeypatch.setattr(checking, "_NOTIFY_PATIENCE", 0.0)
    monkeypatch.setattr(psycopg.Connection, "notifies", lambda self, **options: iter(()))
    (deaf,) = (one for one in examine(engine) if one.name == "wake-ups")
    assert (deaf.level, deaf.detail) == ("problem", "LISTEN hears nothing")


def test_a_locked_table_makes_notices_and_holds_nothing_up(database_url: str) -> None:
    """As while VACUUM FULL runs: a check that has to wait for the table gives up, and the others go on."""
    with connect(database_url) as connection:
        connection.execute("BEGIN")
        connection.execute("LOCK TABLE sa_jobqueue.job IN ACCESS EXCLUSIVE MODE")
        findings = look(database_url)
    assert list(findings) == [check.name for check in CHECKS]
    assert findings["leases"].level == "notice"
    assert findings["leases"].detail.startswith("a table is locked")
    assert findings["connections"].level == "ok"


def test_a_check_that_the_server_refuses_is_said_and_the_others_go_on(database_url: str, engine: Engine) -> None:
    """A table of ours that is gone, say. Within the transaction of a caller, which goes on as well."""
    with connect(database_url) as connection:
        connection.execute("DROP TABLE sa_jobqueue.schedule CASCADE")
    with engine.begin() as connection:
        findings = {one.name: one for one in look_at(Examination(connection))}
        assert connection.scalar(text("SELECT 1")) == 1
    assert findings["schedules"].level == "problem"
    assert 'it could not be looked at: relation "sa_jobqueue.schedule" does not exist' in findings["schedules"].detail
    assert findings["plans"].level == "ok"


def test_workers_of_several_releases_are_a_notice(database_url: str) -> None:
    """During a deployment it is right; afterwards it is not."""
    with connect(database_url) as connection:
        connection.execute(ills.WORKER, [["mail"]])
        assert look(database_url)["workers"].level == "ok"
        connection.execute(ills.WORKER, [["mail"]])
        connection.execute(
            "UPDATE sa_jobqueue.worker SET version = '2' WHERE id = (SELECT min(id::text)::uuid FROM sa_jobqueue.worker)"
        )
    finding = look(database_url)["workers"]
    assert finding.level == "notice"
    assert finding.detail.endswith("they are of several releases: 1 of 1, 1 of 2")


def test_the_worst_thing_that_a_check_finds_comes_first() -> None:
    """And an advice that holds for several is given once."""
    both = found("x", "well", ("notice", "a", "do"), ("problem", "b", "do"), seconds=1.0, rows=None)
    assert both == Finding("x", "problem", "b; a", "do", {"seconds": 1.0})
    assert found("x", "well") == Finding("x", "ok", "well")
    assert worst([]) == "ok"
    assert worst(["notice", "problem", "ok"]) == "problem"
